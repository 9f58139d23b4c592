"""The offsets of a consumer group, stored by the broker (clustering) or by the client itself (broadcasting).

A local file is written under another name and then renamed, so a crash leaves the old or the new one. Its content is
RocketMQ's `offsets.json`: `{"offsetTable":{MessageQueue:offset}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import Protocol

import attrs
import trio

from ..message.errors import JsonError
from ..message.json import dumps, loads, message_queue_of
from ..message.message import MessageQueue
from ..world.disk import Disk, DiskLock
from ..world.events import get_logger
from .errors import ClientError, OffsetsNotWritten, OffsetsUnreadable, Refused
from .queue_calls import asked_offset, note_offset, only_noted
from .session import CALL_SECONDS, Session
from .subscription import MessageModel

log = get_logger(__name__)


@attrs.frozen
class Position:
    """The committed position of a group in one queue."""

    offset: int | None
    """None if the group never committed one."""
    certain: bool = True
    """Whether the answer comes from where offsets are stored, not from a slave, which may lack the newest ones."""


OnFailure = Callable[[MessageQueue, ClientError], None]
Latest = Callable[[MessageQueue], int | None]
"""What the group has to commit by now: it may have gone on, or a reset may have moved it back, since a commit began. None if
the queue was given away since."""


class Offsets(Protocol):
    """Stores the offsets of one group."""

    async def read(self, queue: MessageQueue, *, young_is_zero: bool = True) -> Position:
        """The stored position; raises a `ClientError` if it cannot be read now.

        With `young_is_zero` it may be 0 for a group without one, if the queue still has its first messages.
        """
        ...

    async def write(
        self,
        offsets: Mapping[MessageQueue, int],
        timeout_seconds: float,
        on_failure: OnFailure | None = None,
        latest: Latest | None = None,
    ) -> dict[MessageQueue, int]:
        """Store offsets; return those that are settled: stored, or refused for good. The others must be written again.

        `on_failure` is called for each queue whose offset could not be stored. A queue that has to wait for its turn is asked
        for its `latest` offset then.
        """
        ...


@attrs.define(eq=False)
class BrokerOffsets:
    """Offsets stored by the brokers."""

    _session: Session
    _group: str

    async def read(self, queue: MessageQueue, *, young_is_zero: bool = True) -> Position:
        return Position(*await asked_offset(self._session, self._group, queue, young_is_zero=young_is_zero))

    async def write(
        self,
        offsets: Mapping[MessageQueue, int],
        timeout_seconds: float,
        on_failure: OnFailure | None = None,
        latest: Latest | None = None,
    ) -> dict[MessageQueue, int]:
        written: dict[MessageQueue, int] = {}

        def failed(queue: MessageQueue, error: ClientError) -> None:
            place, reason, repeated = str(queue), str(error), self._session.repeated
            if repeated.due(("commit", place, offsets[queue], reason), trio.current_time()):  # a closing consumer tries often
                log.warning("offset_not_committed", queue=place, offset=offsets[queue], reason=reason)
            if isinstance(error, Refused) and not error.retriable:
                written[queue] = offsets[queue]  # another attempt would be refused too
            if on_failure is not None:
                on_failure(queue, error)

        kept = await commit_offsets(self._session, self._group, offsets, failed, timeout_seconds, latest)
        return kept | written


async def commit_offsets(
    session: Session,
    group: str,
    offsets: Mapping[MessageQueue, int],
    on_failure: OnFailure,
    timeout_seconds: float = CALL_SECONDS,
    latest: Latest | None = None,
) -> dict[MessageQueue, int]:
    """Commit offsets of several queues concurrently; returns those that their masters have stored.

    One queue of each broker and topic is committed first, then its others: if first commits arrive at the same time, Apache's
    broker forgets all but one. If the first gets no answer, its others are not tried; those of other brokers do not wait.

    Args:
        session: the connections.
        group: the consumer group.
        offsets: the offsets to commit.
        on_failure: called for each queue whose offset was tried and not stored.
        timeout_seconds: the time limit for one queue.
        latest: gives the offset of each queue that is committed after another one; by default the one in `offsets`.
    """
    kept: dict[MessageQueue, int] = {}

    async def commit(queue: MessageQueue, offset: int) -> bool:
        """Commit one offset; returns whether there was an answer."""
        try:
            if await note_offset(session, group, queue, offset, timeout_seconds):
                kept[queue] = offset
            else:
                on_failure(queue, only_noted(queue))
        except ClientError as error:
            on_failure(queue, error)
            return isinstance(error, Refused)
        return True

    async def commit_all(first: MessageQueue, others: list[MessageQueue]) -> None:
        if await commit(first, offsets[first]):
            async with trio.open_nursery() as nursery:
                for queue in others:
                    offset = offsets[queue] if latest is None else latest(queue)
                    if offset is not None:
                        nursery.start_soon(commit, queue, offset)

    by_topic: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in offsets:
        by_topic.setdefault((queue.broker_name, queue.topic), []).append(queue)
    async with trio.open_nursery() as nursery:
        for first, *others in by_topic.values():
            nursery.start_soon(commit_all, first, others)
    return kept


@attrs.define(eq=False)
class LocalOffsets:
    """Offsets stored in a file of this client, or only in memory if there is no path."""

    _disk: Disk
    _path: str | None
    _offsets: dict[MessageQueue, int] = attrs.field(factory=dict[MessageQueue, int])

    @property
    def known(self) -> Mapping[MessageQueue, int]:
        """All stored offsets."""
        return self._offsets

    def load(self) -> None:
        """Read the file, if there is one.

        Raises:
            OffsetsUnreadable: the file cannot be read or understood. It was left as it is.
        """
        if self._path is None or not self._disk.exists(self._path):
            return
        try:
            file = self._disk.open(self._path)
            try:
                content = loads(file.read(0, file.size))
            finally:
                file.close()
            self._offsets = {message_queue_of(key): int(offset) for key, offset in content["offsetTable"].items()}
        except (OSError, JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
            # Continuing without it would skip unseen messages or repeat all, and overwrite a file that could be repaired.
            detail = f"{type(error).__name__}: {error}; repair the file, or remove it to begin as a new consumer"
            raise OffsetsUnreadable(self._path, detail) from error

    async def read(self, queue: MessageQueue, *, young_is_zero: bool = True) -> Position:
        del young_is_zero  # a file has no such positions
        return Position(self._offsets.get(queue))

    async def write(
        self,
        offsets: Mapping[MessageQueue, int],
        timeout_seconds: float,
        on_failure: OnFailure | None = None,
        latest: Latest | None = None,
    ) -> dict[MessageQueue, int]:
        del timeout_seconds, latest  # writing a local file takes no time in which anything could change
        self._offsets.update(offsets)
        if self._path is not None:
            content = dumps({"offsetTable": self._offsets})
            try:
                self._replace(self._path, content)
            except OSError as error:
                log.warning("local_offsets_not_written", path=self._path, reason=str(error))
                if on_failure is not None:
                    for queue in offsets:
                        on_failure(queue, OffsetsNotWritten(self._path, str(error)))
                return {}
        return dict(offsets)

    def _replace(self, path: str, content: bytes) -> None:
        disk, directory = self._disk, _directory_of(path)
        disk.make_directories(directory)
        new = f"{path}.new"
        if disk.exists(new):
            disk.remove(new)
        file = disk.open(new, create_size=len(content))
        try:
            file.write(content, 0)
            file.sync()
        finally:
            file.close()
        disk.replace(new, path)
        disk.sync_directory(directory)


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0] or "."


@contextmanager
def kept_offsets(session: Session, group: str, model: MessageModel, path: str | None) -> Generator[Offsets]:
    """The store for the offsets of a member of `group`; `path` is the file for those that it stores itself.

    Raises:
        OffsetsUnreadable: the file cannot be read or understood, or another consumer uses it.
    """
    if model is not MessageModel.BROADCASTING:
        yield BrokerOffsets(session, group)
        return
    with nullcontext() if path is None else _locked(session.world.disk, path):
        own = LocalOffsets(session.world.disk, path)
        own.load()
        yield own


@contextmanager
def _locked(disk: Disk, path: str) -> Generator[None]:
    """Keep other consumers from a file of offsets: each would replace it whole, and messages of others would be skipped."""
    lock: DiskLock | None = None
    try:
        disk.make_directories(_directory_of(path))
        lock = disk.lock(f"{path}.lock")
    except BlockingIOError as error:
        raise OffsetsUnreadable(path, "another consumer uses the file; each needs one of its own") from error
    except OSError as error:  # macOS and Windows have no such locks, and some network file systems neither
        log.debug("local_offsets_not_locked", path=path, reason=str(error))
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def changed_offsets(assigned: Iterable[tuple[MessageQueue, int, int | None]]) -> dict[MessageQueue, int]:
    """The offsets to write: the committable ones that differ from the committed ones, from (queue, committable, committed)."""
    return {queue: committable for queue, committable, committed in assigned if committable != committed}
