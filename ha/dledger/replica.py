"""One node of a DLedger group: the trio shell around the Raft core, the ledger and the connections.

Every input (a tick, a message, a proposal, a finished sync) is passed to the core at once; one task then does the work of each
`Ready`, in the order that `ha/raft/ready.py` prescribes. Entries are written on the event loop and synced by another task, on
the leader while its followers receive them. On evidence of two diverged histories the node leaves the group and logs why.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from ...message.fields import Buffer
from ...store.errors import NotWritable, StoreError
from ...store.log.expiry import Expiry
from ...store.log.older_log import OlderLog
from ...store.log.pending import PendingPuts
from ...world.events import EventLogger, get_logger
from ...world.network import Address
from ...world.real import World
from ..errors import HaError, HaRefused, LeadershipLost, TooManyPending
from ..raft.errors import ChangeRefused, NotLeader, RaftError, Refused, TermTooHigh
from ..raft.quorum import Configuration
from ..raft.ready import Ready
from ..raft.roles import Role
from ..raft.units import LogIndex, PeerId, Term
from .dialect import Core, Dialect, PeerLinks
from .disk_tasks import DiskTasks
from .following import begin_anew, catches_up, truncate, write, write_now
from .handing_over import hand_over
from .ledger.hard_state import HardStateFile
from .ledger.layout import CHANNEL_CONFIGURATION
from .ledger.ledger import Ledger, Placed
from .log_reader import LedgerReader
from .native.group_records import GroupConfiguration, barrier_record, configuration_record, new_group_id, read_configuration
from .outcomes import Done, Outcome
from .settings import ReplicaSettings
from .status import Leading, ReplicaStatus, status_of
from .ticking import Ticking

log = get_logger(__name__)

UNSENT_MAX = 1000
"""How many messages may wait while the disk refuses what must be done before they are sent; a further one drops the oldest."""


@attrs.define(eq=False, repr=False)
class Replica:
    """One node of a group; `open_replica` creates it."""

    world: World
    settings: ReplicaSettings
    ledger: Ledger
    dialect: Dialect[Any]
    connect: Callable[[Replica], PeerLinks[Any]]
    """Makes the connections of the node, in its dialect."""
    reader: LedgerReader
    node: bytes
    """The random identity of the node, stored with its ledger."""
    hard_state_file: HardStateFile
    port: int = 0
    """The port to which peers connect, once `run` has started."""
    on_role: list[Callable[[Leading], None]] = attrs.field(factory=list[Callable[[Leading], None]])
    """Called when role, term or leader have changed."""
    on_committed: list[Callable[[LogIndex, int], None]] = attrs.field(factory=list[Callable[[LogIndex, int], None]])
    """Called with the last committed index, and the position where its entry ends."""
    on_bulk: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    """Called when many entries arrived at once that were committed earlier; most likely more of them follow."""
    before_clearing: list[Callable[[], Awaitable[None]]] = attrs.field(factory=list[Callable[[], Awaitable[None]]])
    """Awaited right before the ledger is cleared, so that no later start requires the removed entries; if one raises OSError,
    they are called again."""
    on_cleared: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    """Called when the ledger was cleared, because the leader no longer had the entries missing here; if one raises OSError,
    they are called again."""
    older: OlderLog | None = None
    """The classic commit log that the ledger continues, if the store has one."""
    stopped: str | None = None
    """Why the node has left the group, so that an operator has to act; None while it takes part."""
    waiters: PendingPuts[Outcome] = attrs.field(factory=lambda: PendingPuts(Outcome.COMMITTED, Outcome.TIMED_OUT))
    """Puts that wait for their entries to be committed, by the index of the last one."""
    disk: DiskTasks = attrs.field(init=False)
    core: Core[Any] = attrs.field(init=False)
    links: PeerLinks[Any] = attrs.field(init=False)
    _ticking: Ticking = attrs.field(init=False)
    _leading: Leading = attrs.field(init=False)
    _work: trio.Event = attrs.field(factory=trio.Event)
    _begun: Ready[Any] | None = None
    """The Ready whose disk operations are in progress or come next."""
    _expiry: Expiry = attrs.field(init=False)
    _reads: dict[int, trio.MemorySendChannel[LogIndex | None]] = attrs.field(
        factory=dict[int, "trio.MemorySendChannel[LogIndex | None]"]
    )
    _read_count: int = 0

    def __attrs_post_init__(self) -> None:
        settings, world = self.settings, self.world
        self.core = self.dialect.core
        self._expiry = Expiry(self.waiters.__len__, self.waiters.expire, world.clock)
        self._ticking = Ticking(self.core, world.clock, self.dialect.tick_seconds, self.work_at_once)
        self.disk = DiskTasks(
            self.ledger,
            self.core,
            self.hard_state_file,
            world.workers,
            settings.sync,
            settings.flush_seconds,
            settings.checkpoint_seconds,
            self.work_at_once,
            self.hand_over,
        )
        self.links = self.connect(self)
        self._follow_members()
        self._leading = Leading(Role.FOLLOWER, self.core.term, None, None)

    @property
    def _log(self) -> EventLogger:
        return log.bind(group=self.settings.group, peer=self.settings.self_id)

    # ---------------------------------------------------------------------------------------------------------------- questions

    @property
    def leading(self) -> Leading:
        """The role of this node, and the leader that it knows."""
        return self._leading

    def served_at(self, peer: PeerId) -> str | None:
        """The address where the broker of a peer serves clients; None if unknown, as it is for nodes of the java dialect."""
        return self.links.serves.get(peer) or None

    @property
    def is_leader(self) -> bool:
        return self._leading.role is Role.LEADER

    def addresses(self) -> dict[PeerId, Address]:
        """The addresses of all members. Those that an operator has changed in `dLegerPeers` override those in the log."""
        group = self.reader.newest()
        known = {**group.addresses, **self.settings.peers}
        return {peer: known[peer] for peer in sorted(group.configuration.members) if peer in known}

    def status(self) -> ReplicaStatus:
        """Return the current status of the node."""
        return status_of(
            self.settings.self_id,
            self.dialect,
            self.ledger,
            self.links,
            leading=self.leading,
            addresses=self.addresses(),
            stopped=self.stopped,
        )

    # ---------------------------------------------------------------------------------------------------------------- proposals

    def propose(self, records: Sequence[Buffer], *, expected_term: Term | None = None, patch: bool = True) -> Placed:
        """Append records as entries, as the leader; they are sent and synced in the background.

        Args:
            records: at least one.
            expected_term: the proposal is refused in any other term.
            patch: whether the records are messages, into each of which its physical offset is written.

        Raises:
            NotLeader, TermChanged, TransferInProgress, LeaderNotReady (Refused): nothing was appended.
            TooManyPending: too many puts wait for a majority. Nothing was appended.
            NotWritable, OSError: as `Ledger.append`. Nothing was appended.
        Durability: see `when_committed`.
        """
        self._check_taking_part()
        assignment = self.core.admit(expected_term)
        if len(self.waiters) >= self.settings.pending_max:
            raise TooManyPending(self.settings.pending_max)
        placed = self.ledger.append(assignment.term, records, patch=patch)
        assert placed.first_index == assignment.first_index
        self.core.propose(len(records))
        self.disk.written()
        self.wake()
        return placed

    def when_committed(self, index: LogIndex, deadline: float, done: Done) -> None:
        """Call `done` once: when the entry is committed, when this node stops leading, or at `deadline`.

        Args:
            index: index of an entry that this node has proposed; calls are in log order.
            deadline: by the monotonic clock, seconds.
            done: called with the outcome; it must not raise.
        """
        self.waiters.add(index, deadline, done)
        self._expiry.wake()

    def propose_own(self, record: bytes, configuration: Configuration | None = None) -> LogIndex:
        """Append a control entry of the group and return its index.

        Raises:
            Refused, StoreError, OSError: nothing was appended.
        """
        self._check_taking_part()
        core = self.core
        assignment = core.admit()
        channel = CHANNEL_CONFIGURATION if configuration is not None else 0
        placed = self.ledger.append(assignment.term, [record], channel=channel)
        core.propose(1, configuration=configuration)
        self.disk.written()
        self.wake()
        if configuration is not None:
            self._follow_members()
        return placed.last_index

    async def read_index(self) -> LogIndex:
        """Return the index up to which the log must be applied before a read that begins now is linearizable.

        Raises:
            NotLeader: no leader is known, or the node has left the group.
            LeadershipLost: leadership was lost in the meantime.
        Cancellation: a follower's request to its leader may get lost, so callers set a deadline.
        """
        self._check_taking_part()
        self._read_count += 1
        context = self._read_count
        send, receive = trio.open_memory_channel[LogIndex | None](1)
        self._reads[context] = send
        try:
            self.core.read_index(context)
            self.wake()
            index = await receive.receive()
        finally:
            del self._reads[context]
        if index is None:
            raise LeadershipLost
        return index

    def _check_taking_part(self) -> None:
        if self.stopped is not None:  # nothing would be sent or answered
            raise NotLeader(None)

    # --------------------------------------------------------------------------------------------------------------- membership

    def transfer(self, target: PeerId) -> None:
        """Begin to transfer leadership to `target`; proposals are refused until that has succeeded or is aborted.

        Raises:
            NotLeader, ChangeRefused (Refused): nothing was changed.
        """
        led = self.core.leadership
        replicator = led.group.get(target) if led is not None else None
        without_copy = self.dialect.copies.without_copy if self.dialect.copies is not None else ()
        lacking = [index for index in without_copy if replicator is not None and replicator.match_index < index]
        if lacking:  # it would never catch up, and proposals would be refused meanwhile
            raise ChangeRefused(
                f"{target} lacks entry {lacking[0]}, which is damaged on the disk of {self.settings.self_id}, and no other "
                "node has sent a sound copy; start a node that has one"
            )
        self.core.transfer_leadership(target)
        self.wake()

    # ------------------------------------------------------------------------------------------------------------------ running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part in the group until cancelled.

        Raises:
            OSError: the port is in use.
        """
        self._ticking.begin()
        async with trio.open_nursery() as nursery:
            self.port = await nursery.start(self.links.run, self.settings.listen_host, self.settings.port)
            nursery.start_soon(self._work_forever)
            nursery.start_soon(self._ticking.run)
            nursery.start_soon(self._expiry.run)
            nursery.start_soon(self.disk.sync_forever)
            nursery.start_soon(self.disk.checkpoint_forever)
            if self.dialect.copies is not None:
                nursery.start_soon(self.dialect.copies.run)
            self._log.info("raft_node_started", port=self.port)
            task_status.started()

    def hand_over(self, reason: str) -> bool:
        """Begin to transfer leadership if this node leads and another voter can; return whether a transfer is in progress."""
        under_way = hand_over(self.core, reason)
        self.wake()
        return under_way

    async def resign(self) -> None:
        """Transfer leadership to another voter before a stop, if one can take it within `transfer_seconds`."""
        with trio.move_on_after(self.settings.transfer_seconds):
            while self.core.leadership is not None and self.hand_over("the node stops"):  # noqa: ASYNC110
                await trio.sleep(self.settings.tick_seconds)

    async def close(self) -> None:
        """Sync the ledger, write its checkpoint and close its files; `run` must have ended."""
        with trio.CancelScope(shield=True):
            await self.world.workers.run(self.close_files)

    def close_files(self) -> None:
        """Do the work of `close`. Blocks."""
        ledger, end = self.ledger, self.ledger.end
        try:
            if ledger.failure is None:
                ledger.force(ledger.synced_position, end.position)
                ledger.reached(end)
                ledger.write_checkpoint()
        except OSError as error:
            self._log.warning("ledger_not_synced_at_stop", reason=error.strerror or str(error))
        ledger.close()

    def wake(self) -> None:
        """Let the task look for work that is due."""
        self._work.set()

    def deliver(self, message: Any) -> None:
        """Give the core a message of a peer; `work_at_once` or `wake` must follow.

        Raises:
            HaRefused: its term is one to which no elections can have led. It was ignored.
        """
        if self.stopped is not None:
            return
        self._ticking.let_time_pass()
        try:
            self.core.step(message)
        except TermTooHigh as error:
            raise HaRefused(str(error)) from error
        except RaftError as error:
            self._stop(str(error))

    def mend(self, position: int) -> bool:
        """Ask the other nodes for a copy of the entry at a position; returns False if none can be asked."""
        copies = self.dialect.copies
        if copies is None or len(self.core.configuration.members) == 1:
            return False
        copies.look_at(self.ledger.index_at(position))
        return True

    def tell(self, change: Callable[[], None]) -> None:
        """Tell the core of something that has happened, and do later what is due then."""
        if self.stopped is None:
            self._ticking.let_time_pass()
            change()
            self.wake()

    async def _work_forever(self) -> None:
        while True:
            await self._work.wait()
            self._work = trio.Event()
            while self.stopped is None:
                try:
                    ready = self._begun or self.core.ready()
                    if ready is None:
                        break
                    self._begun = ready
                    await self._write(ready)
                    self._finish(ready)
                except (HaError, RaftError) as error:
                    self._stop(str(error))
            self._ticking.plan()

    def work_at_once(self) -> None:
        """Do the work that is due in this turn; the task is woken only for a change of role, or for more than one write.

        Waking a task costs more than sending and answering heartbeats does, and delays a put by a turn of the event loop.
        """
        while self.stopped is None and self._begun is None:
            try:
                ready = self.core.ready()
                if ready is None:
                    break
                self._begun = ready
                if ready.soft_state is not None or not write_now(self.ledger, ready):
                    self.wake()
                    return
                self._finish(ready)
            except (HaError, RaftError) as error:
                self._stop(str(error))
        if self.core.messages:
            del self.core.messages[:-UNSENT_MAX]
        self._ticking.plan()

    async def _write(self, ready: Ready[Any]) -> None:
        """Do the disk operations of a Ready."""
        if ready.soft_state is not None and ready.soft_state.role is not Role.LEADER:
            self._lead(ready)  # before the new term is saved, which may take long
        if ready.hard_state is not None:
            await self.disk.save(ready.hard_state)
        if ready.snapshot is not None:
            await begin_anew(
                self.ledger,
                self.disk,
                ready.snapshot,
                before_clearing=self.before_clearing,
                on_cleared=self.on_cleared,
            )
            self._follow_members()
        if ready.truncate_from is not None:
            await truncate(self.ledger, self.disk, ready.truncate_from)
            self._follow_members()
        for piece in ready.appends:
            await write(self.ledger, piece)
        if ready.appends and any(piece.batch.configurations for piece in ready.appends):
            self._follow_members()

    def _finish(self, ready: Ready[Any]) -> None:
        """Do the rest of a Ready after its disk operations: send, apply, report."""
        for notify in self.on_bulk if catches_up(ready) else ():
            notify()
        for message in ready.messages:
            self.links.send(message)
        if ready.committed is not None:
            self._commit(ready.committed.last_index)
        if ready.soft_state is not None:
            self._lead(ready)
        for state in ready.read_states:
            if state.context in self._reads:
                self._reads[state.context].send_nowait(state.index)
        self.core.advance(ready)
        self._begun = None
        if ready.must_sync or ready.snapshot is not None:
            self.disk.written()
        self._propose_what_is_wanted()

    def _follow_members(self) -> None:
        """Connect to the members, and until a change is committed to those who leave, so that they learn of it."""
        addresses, configurations = self.addresses(), self.ledger.configurations
        if len(configurations) > 1 and configurations[-1][0] > self.ledger.committed_index:
            addresses = {**read_configuration(configurations[-2][1]).addresses, **addresses}
        self.links.follow_members(addresses)

    def _commit(self, index: LogIndex) -> None:
        former = self.ledger.committed_index
        self.ledger.commit(index)
        if self.ledger.configurations and former < self.ledger.configurations[-1][0] <= index:
            self._follow_members()
        position = self.ledger.committed_position
        for notify in self.on_committed:
            notify(index, position)
        if self.is_leader:
            self.waiters.reach(index)

    def _lead(self, ready: Ready[Any]) -> None:
        soft = ready.soft_state
        assert soft is not None
        address = self.addresses().get(soft.leader) if soft.leader is not None else None
        former, leading = self._leading, Leading(soft.role, soft.term, soft.leader, address)
        if leading == former:
            return
        self._leading = leading
        if former.role is Role.LEADER and (leading.role is not Role.LEADER or leading.term != former.term):
            self.waiters.fail(Outcome.TERM_CHANGED)
        if leading.role is Role.LEADER and former.role is not Role.LEADER:
            self._log.info("leader_elected", term=leading.term, end_index=self.ledger.end_index)
        elif leading.leader is not None and leading.leader != former.leader:
            self._log.info("leader_followed", leader=leading.leader, term=leading.term)
        for notify in self.on_role:
            notify(leading)

    def _propose_what_is_wanted(self) -> None:
        core = self.core
        if core.leadership is None:
            return
        wanted, wall_ms = core.leadership.configuration_wanted, self.world.clock.wall_ms()
        if wanted is None and self.dialect.names_group and self._may_name_group():
            wanted = core.configuration  # from here on the log says who votes, whatever another node's list of peers says
        try:
            if core.barrier_wanted:
                self.propose_own(barrier_record(wall_ms))
            elif wanted is not None:
                group_id = self.reader.group_id or new_group_id(self.world.secrets)
                group = GroupConfiguration(wanted, {**self.settings.peers, **self.reader.newest().addresses}, group_id)
                self.propose_own(configuration_record(group, wall_ms), wanted)
        except NotWritable:  # why is logged already, and the core asks again with each heartbeat
            pass
        except (Refused, StoreError, OSError) as error:
            self._log.warning("group_entry_not_written", reason=str(error))

    def _may_name_group(self) -> bool:
        """Whether the log lacks the group's members or its id, and the leader may append them."""
        if self.ledger.configurations and self.reader.newest().group_id:
            return False
        core = self.core
        led, index = core.leadership, core.log.configuration_index
        return led is not None and led.term_start_index <= core.commit_index >= index and not core.configuration.joint

    def _stop(self, reason: str) -> None:
        """Leave the group, and answer everything that waits."""
        self.stopped = reason
        self._log.error("raft_node_stopped", term=self.core.term, reason=reason)
        self.links.follow_members({})
        self.waiters.fail(Outcome.TERM_CHANGED)
        for waiting in self._reads.values():
            waiting.send_nowait(None)
        self._leading = Leading(Role.FOLLOWER, self.core.term, None, None)
        for notify in self.on_role:
            notify(self._leading)

    async def expire_oldest(self) -> None:
        """Delete the oldest data file, if it is not the last one and all of it is committed.

        Raises:
            OSError: the file has to stay, or the disk failed; the caller may try again.
        """
        files = self.ledger.data.files
        if not await self.expire(files[1].start if len(files) > 1 else 0):
            raise OSError(errno.EBUSY, "the oldest file of the ledger is its last one, or not committed yet")

    async def expire(self, position: int) -> int:
        """Delete the data files that end at or before `position` and may be deleted; return how many.

        Raises:
            OSError: the disk failed; some of the files may be deleted.
        """
        async with self.disk.lock:
            if self.ledger.forgotten:  # a deletion failed; if it still fails, no other file is taken out of the ledger
                await self.world.workers.run(self.ledger.delete_forgotten)
            begin = self.ledger.begin_after(position)  # while the lock was waited for, more may have become durable
            if begin is None:
                return 0
            self.core.compact(begin - 1)
            forgotten = self.ledger.forget_before(position)
            await self.world.workers.run(self.ledger.delete_forgotten)
        return forgotten
