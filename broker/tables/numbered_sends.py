"""Repetitions of numbered sends: recognised before the put, and answered as the first request was; and fences of producers.

Invariant: a numbered send is put only if its message is neither in the log of this broker nor in a put that goes on. The log
decides: the derived part is in `SendTable`, and the appended rest in `_appended`, which is empty when a broker begins to take
puts, because it has derived its whole log before. A repetition is answered from the record itself, and waits until that is as
safe as the mode promises. So a wrong table may cause a second copy, but never an answer for a message that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import attrs

from ...message.control import CONTROL_TOPIC, PRODUCER_FENCED, Control, decode_control, fence_of, fenced_producer_of
from ...message.errors import CorruptRecord
from ...message.layout import decode_record
from ...message.message import StoredMessage
from ...message.properties import REAL_QUEUE_ID, SEND_NUMBER, SEND_NUMBER_MARK, find_marked
from ...message.send_number import REPEATED_FIELD, SendNumber, parse_send_number
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY
from ...store.config import SCHEDULE_TOPIC
from ...store.derived.dispatch import Derivable
from ...store.errors import NotWritable
from ...store.message_store import MessageStore
from ...store.put_side import PutBatch
from ...world.clock import Clock
from ...world.events import get_logger
from .persistence import LOG_OFFSET_KEY, UNREADABLE, Persistence, encoded
from .send_table import Place, SendTable, Verdict

log = get_logger(__name__)

NUMBERS_FILE = "sendNumbers.json"
REWRITE_BYTES = 128 << 20
"""The table's file is written again when the log has grown by this much, even if the table has not changed: a start applies the
log from the file's offset on."""

_Key = tuple[str, int, int]
"""Producer id, epoch and sequence."""


@attrs.define(eq=False, repr=False)
class NumberedSends:
    """The numbered sends of one broker."""

    store: MessageStore
    clock: Clock
    table: SendTable = attrs.field(factory=SendTable)
    putting: dict[_Key, int] = attrs.field(factory=dict[_Key, int])
    """The messages of the put that is being prepared in this turn, and their indices in it."""
    _appended: dict[_Key, Place] = attrs.field(factory=dict[_Key, Place])
    """The messages that this broker has appended, and that are not derived yet."""
    _last_epoch: int = 0
    """The last epoch that was given to any producer."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handler of fences."""
        dispatcher.register_waiting(RequestCode.FENCE_PRODUCER, self.fence)

    # ---------------------------------------------------------------- sends

    def is_being_put(self, number: SendNumber) -> bool:
        """Whether this message is part of the put that is being prepared, so that its place is not known yet."""
        return number[:3] in self.putting

    def find(self, number: SendNumber) -> StoredMessage | None:
        """The stored message of a send that is repeated; None if the message must be put.

        Raises:
            RequestRefused: the producer was replaced, or the send is too old to tell. This request stored nothing.
        """
        if self.store.writability.refusal is not None:
            return None  # the put refuses it; the table may be behind the log now
        place = self._appended.get(number[:3])
        if place is None:
            verdict, place = self.table.look_up(number)
            if verdict is Verdict.FENCED:
                raise RequestRefused(
                    ResponseCode.PRODUCER_FENCED,
                    f"epoch {number.epoch} of producer {number.producer_id} was replaced by epoch "
                    f"{self.table.producers[number.producer_id].epoch}; the message was not stored",
                )
            if verdict is Verdict.FORGOTTEN:
                raise _forgotten(number)
        if place is None:
            return None
        message = self._message_at(number, place)
        if message is None:
            if place[0] < self.store.log.min_offset:
                raise _forgotten(number)
            log.error("repeated_send_not_found", number=str(number), physical_offset=place[0])
            self._appended.pop(number[:3], None)
            self.table.remove(number)
        return message

    def _message_at(self, number: SendNumber, place: Place) -> StoredMessage | None:
        """The message at a place, if it is the one with this number."""
        try:
            message = decode_record(self.store.log.slice_from(*place))
            found = parse_send_number(message.properties.get(SEND_NUMBER, ""))
        except (CorruptRecord, ValueError):
            return None
        return message if found[:3] == number[:3] and message.physical_offset == place[0] else None

    def end_put(self, batch: PutBatch) -> None:
        """Record where the messages of the put have been appended."""
        if self.putting:
            sizes, physical_offsets = batch.sizes, batch.physical_offsets
            for key, at in self.putting.items():
                if sizes[at]:
                    self._appended[key] = (physical_offsets[at], sizes[at])
            self.putting.clear()

    # ---------------------------------------------------------------- fences

    async def fence(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """Begin a new epoch of a producer, and answer with it when no send of an older epoch can be stored any more.

        The answer's `known` says whether the producer may have stored messages before; and `completeSince`, from which time on
        an unknown producer certainly has not. The `topic` of the request, to which the producer is going to send, is for
        access control alone.

        Raises:
            RequestRefused: this broker takes no puts, or the fence may not be stored.
        Durability: the fence is as safe as a message that is stored at the same time.
        """
        producer_id = request.text("producer")
        try:
            number = number_of_sender(f"{producer_id}.0.0.0", request.ext)
        except ValueError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"no producer was fenced: {error}") from error
        before = self.table.producers.get(number.producer_id)
        known = before is not None or any(key[0] == number.producer_id for key in self._appended)
        complete_since_ms = self.table.complete_since_ms
        # Greater than any epoch given before, also by a broker whose fences were lost or forgotten.
        epoch = max(before.epoch + 1 if before is not None else 1, self._last_epoch + 1, self.clock.wall_ms())
        try:
            end = self.store.append_event(fence_of(number.producer_id, epoch, self.clock.wall_ms()))
            self._last_epoch = epoch
            status = await self.store.event_status(end)
        except NotWritable as error:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"the producer was not fenced: {error}") from error
        except OSError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer was not fenced: {error}") from error
        if not status.stored:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"whether the producer was fenced is unknown ({status.name}); the fence may be repeated",
            )
        fields = {"epoch": epoch, "known": str(known).lower(), "completeSince": complete_since_ms}
        return request.response(ResponseCode.SUCCESS, fields)

    # ---------------------------------------------------------------- from the log

    def _derived(self, record: Derivable) -> None:
        self._apply(record[10], record[3], record[4], record[6])

    def _apply(self, text: str, physical_offset: int, size: int, timestamp: int) -> None:
        try:
            number = parse_send_number(text)
        except ValueError:
            return  # other brokers store whatever properties a client sends
        self.table.apply(number, physical_offset, size, timestamp)
        self._appended.pop(number[:3], None)

    def _happened(self, control: Control) -> None:
        if control.kind == PRODUCER_FENCED:
            try:
                self.table.fence(*fenced_producer_of(control))
            except CorruptRecord as error:
                log.error("control_record_unreadable", physical_offset=-1, reason=str(error))

    def _cut(self, physical_offset: int) -> None:
        self._appended.clear()
        if physical_offset:
            self.table.cut(physical_offset)
        else:
            self.table.clear(self.clock.wall_ms())

    def load(self, persistence: Persistence, interval_seconds: float) -> None:
        """Read the table's file, apply the rest of the log, follow it from now on, and write the file at intervals."""
        store, end = self.store, self.store.dispatcher.dispatched_offset
        is_read = persistence.load(NUMBERS_FILE, self._take)
        start = persistence.log_offsets.pop(NUMBERS_FILE, -1)
        is_current = is_read and 0 <= start <= end
        if is_current:
            self._read_log(start, end)
        else:
            # Without a file, or with that of a log whose end a crash has taken back, the last part of the log is read.
            start = store.log.start_below(lambda at, _: at <= end - REWRITE_BYTES)
            self.table.cut(end)
            first_ms = self._read_log(start, end)
            if start:
                since_ms = self.clock.wall_ms() if first_ms is None else first_ms
                self.table.complete_since_ms = max(self.table.complete_since_ms, since_ms)
        store.dispatcher.on_numbered = self._derived
        store.dispatcher.on_cut.append(self._cut)
        store.events.on_event.append(lambda _, control: self._happened(control))
        file = persistence.keep(
            NUMBERS_FILE,
            lambda: encoded(
                {LOG_OFFSET_KEY: min(store.dispatcher.dispatched_offset, persistence.kept_end), **self.table.to_json()}
            ),
            lambda: (self.table.changes, persistence.kept_end, store.dispatcher.dispatched_offset // REWRITE_BYTES),
            interval_seconds,
        )
        if not is_current:
            file.written = None  # once the log has grown, a start could not see that the file is that of another one

    def _take(self, stored: Any) -> bool:
        """Read the content of the table's file; returns whether it was one. The log makes the table again."""
        try:
            self.table.load(stored)
        except UNREADABLE:
            self.table = SendTable()
            return False
        return True

    def _read_log(self, start: int, end: int) -> int | None:
        """Apply the log from `start` to `end`; returns the store timestamp of the first record."""
        commit_log = self.store.log
        first_ms: int | None = None
        for _, parts in commit_log.records(max(start, commit_log.min_offset), end):
            if parts is None:
                continue
            size, _, _, physical_offset, _, timestamp, topic, properties = parts
            first_ms = timestamp if first_ms is None else first_ms
            if topic == CONTROL_TOPIC:
                record = commit_log.record(physical_offset, size)
                try:
                    control = decode_control(record if record is not None else b"")
                    if control.kind == PRODUCER_FENCED:
                        self.table.fence(*fenced_producer_of(control))
                except CorruptRecord as error:
                    log.error("control_record_unreadable", physical_offset=physical_offset, reason=str(error))
            elif SEND_NUMBER_MARK in properties:
                self._apply(find_marked(properties, SEND_NUMBER_MARK), physical_offset, size, timestamp)
        return first_ms


def number_of_sender(text: str, ext: Mapping[str, str]) -> SendNumber:
    """The number in a request; that of a user is the user's own, because everybody who reads a message sees its number.

    Raises:
        ValueError: it is none.
    """
    number = parse_send_number(text)
    user = ext.get(ACCESS_KEY)
    return number if user is None else number._replace(producer_id=_id_of_user(user, number.producer_id))


@lru_cache(1024)
def _id_of_user(user: str, producer_id: str) -> str:
    return sha256(f"{user}\0{producer_id}".encode()).hexdigest()[:32]


def queue_of(message: StoredMessage) -> int:
    """The queue in which a producer finds a message: for a delayed one that in which it will be delivered."""
    if message.topic != SCHEDULE_TOPIC:
        return message.queue_id
    real = message.properties.get(REAL_QUEUE_ID, "")
    return int(real) if real.isdecimal() else message.queue_id


def repeated_fields(message: StoredMessage) -> dict[str, object]:
    """The fields of the answer to a repeated send that say where its message is."""
    return {
        "msgId": message.message_id,
        "queueId": queue_of(message),
        "queueOffset": message.queue_offset,
        REPEATED_FIELD: "true",
    }


def _forgotten(number: SendNumber) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SEND_FORGOTTEN,
        f"send {number} is older than those that the broker keeps of its producer: whether it is stored is unknown; this "
        "request stored nothing",
    )
