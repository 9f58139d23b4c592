"""Entries that were damaged at rest: they are not spread, and replaced by a sound copy of another node.

A follower verifies the CRC of each body that it receives, so a leader learns which of its entries are damaged from the first
node that lacks them. It then asks all other nodes for a copy. An entry with the same index and term is the same entry (Raft
§5.3), so a copy with a sound body takes the place of the damaged bytes. While no node has one, followers do not get past it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import trio

from ...world.clock import Clock
from ...world.events import get_logger
from ..errors import HaError
from ..raft.units import LogIndex, PeerId, Term
from .disk_tasks import DiskTasks
from .ledger.ledger import Ledger
from .ledger.walk import walk_entries
from .native.mending_messages import EntryCopy, EntryDamaged, EntryRequest, MendingMessage

log = get_logger(__name__)

ASK_AGAIN_SECONDS = 1.0
"""How long a node waits for copies of an entry before the next report lets it ask again."""
NAMED_AFTER_SECONDS = 10.0
"""After this time without a copy of an entry the log says that no node has one, once."""
COPIES_MAX = 4
"""How many received copies may wait to be written; further ones are dropped, and asked for again."""


@attrs.define(eq=False)
class _Search:
    """The search for one entry."""

    began: float
    asked_at: float
    """When all other nodes were last asked for a copy."""
    fruitless: bool = False
    """Whether it has lasted `NAMED_AFTER_SECONDS`, which was logged."""


@attrs.define(eq=False)
class Mending:
    """The search for sound copies of damaged entries, for one node."""

    own: PeerId
    ledger: Ledger
    disk: DiskTasks
    clock: Clock
    term: Callable[[], Term]
    peers: Callable[[], Iterable[PeerId]]
    send: Callable[[MendingMessage], None]
    _asked: dict[LogIndex, _Search] = attrs.field(factory=dict[LogIndex, _Search])
    """The damaged entries of which a node has asked for copies lately."""
    _reported: tuple[LogIndex, float] = (-1, 0.0)
    """The last entry that this node reported to its leader as damaged, and when."""
    _copies: list[EntryCopy] = attrs.field(factory=list[EntryCopy])
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    def report(self, leader: PeerId, term: Term, index: LogIndex) -> None:
        """Report to a leader that it has sent a damaged entry, of which nothing was appended."""
        now = self.clock.monotonic()
        last, at = self._reported
        if last != index or now - at >= ASK_AGAIN_SECONDS:
            if last != index:
                log.error("damaged_entry_refused", leader=leader, index=index)
            self._reported = index, now
            self.send(EntryDamaged(self.own, leader, term, index))

    def take(self, message: MendingMessage) -> None:
        """Handle a message of another node."""
        if isinstance(message, EntryDamaged):
            self.look_at(message.index)
        elif isinstance(message, EntryRequest):
            if (entry := self._sound(message.index)) is not None:
                self.send(EntryCopy(self.own, message.sender, self.term(), message.index, entry))
        elif message.index in self._asked and len(self._copies) < COPIES_MAX:
            self._copies.append(message)
            self._arrived.set()

    async def run(self) -> None:
        """Write the copies that arrive until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            while self._copies:
                copy = self._copies.pop(0)
                try:
                    await self.disk.change(lambda: self._write(copy))  # noqa: B023 - it is awaited here
                except (OSError, HaError) as error:
                    log.error("damaged_entry_not_mended", index=copy.index, reason=str(error))
                else:
                    if not self._is_there(copy.index) or self._sound(copy.index) is not None:
                        self._asked.pop(copy.index, None)

    @property
    def without_copy(self) -> list[LogIndex]:
        """The entries that other nodes lack, that are damaged here, and of which no node has sent a sound copy."""
        return sorted(index for index, search in self._asked.items() if search.fruitless)

    def look_at(self, index: LogIndex) -> None:
        """Ask the other nodes for a copy if this node's entry is damaged."""
        now = self.clock.monotonic()
        if not self._is_there(index):
            return
        search = self._asked.get(index)
        if (search is not None and now - search.asked_at < ASK_AGAIN_SECONDS) or self._sound(index) is not None:
            return
        peers = list(self.peers())
        if search is None:
            log.error("damaged_entry_found", index=index, directory=self.ledger.data.directory)
            search = _Search(now, now)
        elif now - search.began >= NAMED_AFTER_SECONDS and not search.fruitless:
            search.fruitless = True
            log.error("damaged_entry_without_copy", index=index, asked=peers)
        search.asked_at = now
        recent = {one: other for one, other in self._asked.items() if now - other.asked_at < 10 * ASK_AGAIN_SECONDS}
        self._asked = recent | {index: search}
        for peer in peers:
            self.send(EntryRequest(self.own, peer, self.term(), index))

    def _is_there(self, index: LogIndex) -> bool:
        return self.ledger.begin_index <= index <= self.ledger.end_index

    def _sound(self, index: LogIndex) -> memoryview | None:
        """Return this node's entry, if it has it undamaged."""
        if not self._is_there(index):
            return None
        try:
            position, size = self.ledger.place_of(index)
            segment = self.ledger.data.find(position)
            assert segment is not None
            # Not from the map, in which a sector that the disk does not give is a signal that ends the process.
            entry = memoryview(segment.file.read(position - segment.start, size))
        except (HaError, OSError):
            return None
        return entry if self._fits(index, entry) else None

    def _fits(self, index: LogIndex, entry: memoryview) -> bool:
        """Whether these bytes are the entry that this node must have at an index."""
        term = self.ledger.terms.term_of(index)
        position, size = self.ledger.place_of(index)
        walked = walk_entries(entry, 0, len(entry), position=position, next_index=index, term=term, check_bodies=True)
        return walked.fault is None and len(entry) == size and walked.runs == [(index, term)]

    def _write(self, copy: EntryCopy) -> None:
        """Replace a damaged entry, durably. Blocks."""
        ledger, index = self.ledger, copy.index
        if self._sound(index) is not None or not self._is_there(index):
            return
        if not self._fits(index, copy.entry):
            log.warning("other_entry_refused_as_copy", index=index, copy_of=copy.sender)
            return
        position, size = ledger.place_of(index)
        segment = ledger.data.find(position)
        assert segment is not None
        ledger.data.own(segment)
        segment.file.write(copy.entry, position - segment.start)
        ledger.data.sync(position, position + size)
        log.info("damaged_entry_mended", index=index, copy_of=copy.sender)
