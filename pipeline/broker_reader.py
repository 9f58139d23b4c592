"""Reads a task through brokers: sends several pull requests for a queue concurrently, and builds columns from the answers.

An answer holds records as they are stored, so it is decoded like a segment. The broker decides how many messages an answer
holds. The reader learns it from the first answer, and then sends several requests of that size before it waits.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from ..message.layout import RECORD_SIZE_MIN
from ..message.message import MessageQueue
from ..remoting.codes import ResponseCode
from ..remoting.command import RemotingCommand
from ..store.statuses import GetStatus
from .batches import BATCH_BYTES, BATCH_ROWS, HEAD_DTYPES, Expected, Piece, cut_rows, read_heads
from .broker_client import BrokerClient, check_group, is_busy, pull_request
from .errors import CorruptStore, Unavailable
from .link import Link, LinkLost
from .options import Pulling
from .ranges import QueueRange
from .segment_reader import Reader
from .waiting import Wait

WINDOWS_MAX = 4
"""How many requests for one queue may wait for an answer at the same time."""
NO_MEMBER = "no member of its broker is in the route"
_ENDS = "ends before offset"
_GATHER_BYTES = BATCH_BYTES // 4

Array = Any
_size_at = struct.Struct(">i").unpack_from


@attrs.define(eq=False)
class _Window:
    """The messages that one request asks for."""

    start: int
    count: int
    opaque: int


@attrs.define(eq=False)
class _Answers:
    """Bodies of answers that are gathered for a batch."""

    queue: MessageQueue
    source: str
    next: int
    """The offset up to which messages have been yielded or reported."""
    end: int
    """The offset at which the range ends."""
    dense: bool
    """Whether every offset must be in the answers. With a filter by tags some are missing."""
    bodies: list[bytes] = attrs.field(factory=list[bytes])
    positions: list[int] = attrs.field(factory=list[int])
    size: int = 0
    reported: int = 0
    """How many messages from `next` on were reported as gone."""
    damaged: list[str] = attrs.field(factory=list[str])
    """What is to be said of records that the broker did not send, because they are damaged on its disk."""

    def add(self, body: bytes) -> None:
        """Add the records of an answer.

        Raises:
            CorruptStore: the sizes of records do not add up to the answer.
        """
        at, length, base, positions = 0, len(body), self.size, self.positions
        while at < length:
            size = _size_at(body, at)[0] if length - at >= RECORD_SIZE_MIN else 0
            if size < RECORD_SIZE_MIN or at + size > length:
                raise CorruptStore(
                    f"{self.source}, {self.queue}", f"an answer has {length - at} bytes left and no whole record"
                )
            positions.append(base + at)
            at += size
        self.bodies.append(body)
        self.size += length

    @property
    def is_full(self) -> bool:
        return self.size >= _GATHER_BYTES or len(self.positions) >= BATCH_ROWS

    def batches(self, reader: Reader, reached: int) -> Iterator[Array]:
        """Yield batches of the gathered records, which are those before the offset `reached`, and clear them."""
        yield from reader.corrupt(self.damaged)
        self.damaged = []
        reached = min(reached, self.end)
        if not self.positions:
            self._check_dense(0, reached, reader)
            return
        whole = self.bodies[0] if len(self.bodies) == 1 else b"".join(self.bodies)
        piece, positions = Piece.of(whole), np.array(self.positions, np.int64)
        self.bodies, self.positions, self.size = [], [], 0
        head = np.ndarray((len(whole) - HEAD_DTYPES[0].itemsize + 1,), HEAD_DTYPES[0], piece.bytes, strides=(1,))[positions]
        positions = positions[head["queue_offset"] < self.end]
        self._check_dense(len(positions), reached, reader)
        if not len(positions):
            return
        head = head[: len(positions)]
        expected = Expected(
            head["total_size"].astype(np.int64),
            head["physical_offset"].astype(np.int64),
            head["queue_offset"].astype(np.int64),
            [self.queue],
            np.zeros(len(head), np.int32),
        )
        for rows in cut_rows(expected.sizes):
            records, faults = read_heads(piece, positions[rows], expected.take(rows))
            yield from reader.emit(records, faults, lambda row: (self.source, int(expected.physical_offsets[row])))

    def _check_dense(self, count: int, reached: int, reader: Reader) -> None:
        """Report messages that a broker has left out of its answers.

        Raises:
            DataLoss: some are missing, and `failOnDataLoss` is on.
        """
        begin, gone = self.next, reached - self.next - count - self.reported
        self.next, self.reported = reached, 0
        if self.dense and gone:
            reader.lose(self.queue, f"{gone} messages between offsets {begin} and {reached - 1} are gone from the log")


@attrs.define(eq=False)
class BrokerReader:
    """Reads ranges of queues."""

    client: BrokerClient
    pulling: Pulling
    reader: Reader
    _reached: int = 0
    """The next offset of the range that is being read."""

    def read(self, task: Sequence[QueueRange]) -> Iterator[Array]:
        """Read a task's messages as record batches.

        Raises:
            DataLoss: messages no longer exist, and `failOnDataLoss` is on.
            Unavailable: no member of a broker answered in time.
        """
        for each in task:
            yield from self._read_range(each)

    def _read_range(self, each: QueueRange) -> Iterator[Array]:
        self._reached = each.start
        wait, reason = self._wait(), ""
        while self._reached < each.end:
            before = self._reached
            try:
                link = self._link(each.queue)
                if link is None:
                    if not self._is_there(each):
                        return
                    reason = NO_MEMBER
                else:
                    reason = yield from self._read_from(link, each)
            except LinkLost as error:
                reason = str(error)
                self.client.avoid(error.address)
            if self._reached >= each.end:
                return
            if self._reached > before:
                wait = self._wait()
            elif not wait.goes_on(f"{each.queue}: offset {self._reached} could not be read yet: {reason}"):
                self._give_up(each, reason)
                return
            self.client.routes.forget(each.queue.topic)

    def _wait(self) -> Wait:
        return Wait(self.client.servers.failover_seconds)

    def _link(self, queue: MessageQueue) -> Link | None:
        if queue.topic not in self.client.routes.routes:
            self.client.route(queue.topic)
        address = self.client.member(queue)
        return None if address is None else self.client.link(address)

    def _is_there(self, each: QueueRange) -> bool:
        """Return whether to wait for the topic, because its broker may be down; if it was deleted, report the loss instead."""
        if not self.client.is_deleted(each.queue.topic, each.queue.broker_name):
            return True
        self._lose(each, "the topic has been deleted")
        return False

    def _give_up(self, each: QueueRange, reason: str) -> None:
        waited = f"within {self.client.servers.failover_seconds:g} s ('failoverTimeoutMs')"
        if reason == NO_MEMBER and self.client.is_gone(each.queue.broker_name):
            self._lose(each, f"offsets {self._reached} to {each.end - 1} were planned, but no name server knows its broker")
            return
        if _ENDS in reason:
            self._lose(each, f"offsets {self._reached} to {each.end - 1} were planned, but {reason}; none came {waited}")
            return
        raise Unavailable(f"{each.queue}: offset {self._reached} could not be read {waited}: {reason}")

    def _lose(self, each: QueueRange, reason: str) -> None:
        self.reader.lose(each.queue, reason)
        self._reached = each.end

    def _read_from(self, link: Link, each: QueueRange) -> Generator[Array, None, str]:
        """Read from one member, to the end of the range or as far as it sends messages; returns why it sends no more."""
        tags = self.reader.content.tags
        expression = " || ".join(tags) or "*"
        seconds = self.client.servers.call_seconds
        answers = _Answers(each.queue, str(link.address), self._reached, each.end, dense=not tags)
        windows: deque[_Window] = deque()
        span = 0  # how many messages one answer holds
        asked = self._reached
        reason = ""

        def ask(start: int, count: int) -> _Window:
            command = pull_request(self.pulling, each.queue, start, count, expression)
            return _Window(start, count, link.submit(command, seconds))

        try:
            while self._reached < each.end:
                # With tags an answer may go beyond the requested messages, so the next request waits for it.
                while asked < each.end and len(windows) < (WINDOWS_MAX if span and not tags else 1):
                    count = min(span or self.pulling.messages_max, each.end - asked)
                    windows.append(ask(asked, count))
                    asked += count
                window = windows.popleft()
                answer = link.answer(window.opaque, seconds)
                following = self._take(answer, window, each, answers)
                if following is None:
                    reason = (
                        f"{link.address} is busy: code {answer.code}, {answer.remark}"
                        if is_busy(answer)
                        else f"{link.address} {_ENDS} {self._reached}"
                    )
                    break
                self._reached = following
                if answer.code == ResponseCode.SUCCESS and not tags:
                    span = max(span, following - window.start) if span else following - window.start
                if tags:
                    asked = following
                elif following < window.start + window.count:
                    windows.appendleft(ask(following, window.start + window.count - following))
                elif following > window.start + window.count:
                    if windows:
                        link.close()  # this cancels the requests for messages that no longer exist
                        windows.clear()
                    asked = following
                if answers.is_full:
                    yield from answers.batches(self.reader, self._reached)
        except LinkLost:
            yield from answers.batches(self.reader, self._reached)
            raise
        finally:
            if windows:
                link.close()  # the pending answers will not be read
        yield from answers.batches(self.reader, self._reached)
        return reason

    def _take(self, answer: RemotingCommand, window: _Window, each: QueueRange, answers: _Answers) -> int | None:
        """Handle an answer; returns the offset to continue at, or None if this member has no message there now."""
        code = answer.code
        check_group(answer, self.pulling)
        if code == ResponseCode.SUCCESS:
            following = int(answer.ext["nextBeginOffset"])
            if not answer.body or following <= window.start:
                return None
            answers.add(answer.body)
            return following
        if code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            following = int(answer.ext["nextBeginOffset"])
            if following <= window.start:
                return None
            if not self.reader.content.tags:
                self.reader.lose(each.queue, f"offsets {window.start} to {min(following, each.end) - 1} are gone from the log")
                answers.reported += min(following, each.end) - window.start
            return following
        if code == ResponseCode.PULL_OFFSET_MOVED:
            following, least = int(answer.ext["nextBeginOffset"]), int(answer.ext.get("minOffset", 0))
            if window.start < least and following > window.start:
                reached = min(following, each.end)
                self.reader.lose(
                    each.queue, f"offsets {window.start} to {reached - 1} are gone, the oldest message has offset {following}"
                )
                answers.reported += reached - window.start
                return following
            return None  # this replica is shorter; another one has the message, or this one will have it soon
        if code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(GetStatus.MESSAGE_DAMAGED.name):
            place = f"{answers.source}, {each.queue}, queue offset {window.start}"
            answers.damaged.append(self.reader.judge(place, str(answer.remark)))
            answers.reported += 1
            return window.start + 1
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST) or is_busy(answer):
            return None  # a slave copies new topics late; the name server knows whether the topic was deleted
        raise Unavailable(f"{each.queue}: the broker refused offset {window.start}: code {code}, {answer.remark}")
