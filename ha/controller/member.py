"""One controller: the trio shell between its node of the Raft group, the state, and who asks.

The log of the group holds one entry for each decision, with its events; entries are applied when they are committed, on every
node. Decisions are made one after the other, by the leader, once everything before them in the log has been applied here and a
majority has confirmed that this node still leads. So each is judged from the state that its events will meet.

Now and then the leader appends the whole state. Log files before such a record are deleted, and a node that lacks them begins
with it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import islice

import attrs
import trio

from ...remoting.codes import ResponseCode
from ...remoting.errors import RequestRefused
from ...store.errors import StoreError
from ...world.events import get_logger
from ...world.real import World
from ..dledger.ledger.walk import is_message
from ..dledger.opening import open_replica
from ..dledger.outcomes import Outcome
from ..dledger.replica import Replica
from ..dledger.settings import ReplicaSettings
from ..dledger.status import Leading
from ..errors import LeadershipLost
from ..raft.errors import Refused
from ..raft.roles import Role
from ..raft.units import PeerId
from .decisions import SCAN_EVENTS_MAX, Decision, Situation, heard_from, look_for_dead_masters, new_timeout, next_look
from .liveness import Liveness
from .protocol import BrokerHeartbeat, GetMetadataResponse
from .state import (
    BrokerSet,
    Change,
    ControllerState,
    IdApplied,
    MasterElected,
    ReplicasForgotten,
    SetAltered,
    StatePiece,
    decode_events,
    encode_events,
)

log = get_logger(__name__)

DECISION_SECONDS = 3.0
"""How long a decision may take; brokers wait a second longer for the answer."""
EVENTS_PER_TURN = 128
"""After how many events a turn of the event loop applies no further entry; each of them may write 64 KB of JSON."""
LOG_BYTES_MAX = 1024 * 1024
"""The leader appends a state record when the log since the last one is larger than this and than twice the state."""
LOOK_PAUSE_SECONDS_MIN = 0.001
"""The shortest pause between two looks at dead masters. If the clock of the controller runs slower than that of the event loop,
pauses that end when the next master may be dead would become shorter and shorter."""
RETRY_SECONDS = 1.0
"""The pause after an election of a dead master's successor could not be decided."""

Judge = Callable[[Situation], Decision]


@attrs.define(eq=False, repr=False)
class ControllerMember:
    """A controller that takes part in its group; `open_member` creates it."""

    replica: Replica
    unclean: bool
    """Whether replicas outside the SyncStateSet may become masters (enableElectUncleanMaster)."""
    look_seconds: float
    """How often elections that failed are tried again (scanNotActiveBrokerInterval)."""
    state: ControllerState = attrs.field(factory=ControllerState)
    liveness: Liveness = attrs.field(factory=Liveness)
    on_new_set: list[Callable[[BrokerSet], None]] = attrs.field(factory=list[Callable[[BrokerSet], None]])
    """Called on the leader when a decision has changed a master or a set, of which the master does not know yet."""
    applied_index: int = -1
    elections: int = 0
    """How many masters this node has elected as the leader."""
    _led_end: int = -1
    """The last entry of the log when this node began to lead; whatever was decided before is in it."""
    _record_start: int = 0
    """Where the last state record begins in the log, whole or not, as a position."""
    _record_end: int = 0
    """Where the last whole state record ends."""
    _expire_before: int = 0
    """Where the last whole state record begins; what is before it is no longer needed."""
    _deciding: trio.Lock = attrs.field(factory=trio.Lock)
    _committed: trio.Event = attrs.field(factory=trio.Event)
    _applied: trio.Event = attrs.field(factory=trio.Event)
    _timeouts: dict[tuple[str, int], BrokerHeartbeat] = attrs.field(factory=dict[tuple[str, int], BrokerHeartbeat])
    """The newest heartbeats with a time-out that is not in the state yet; only the leader keeps them."""
    _look: trio.Event = attrs.field(factory=trio.Event)
    _look_at: float = 0.0
    """When the leader looks for dead masters next, in monotonic seconds."""

    def __attrs_post_init__(self) -> None:
        self._begin()
        self.replica.on_committed.append(lambda _index, _position: self._committed.set())
        self.replica.on_cleared.append(self._begin)
        self.replica.on_role.append(self._role_changed)
        self._role_changed(self.replica.leading)

    def _begin(self) -> None:
        """Begin with the first entry of the log; if others came before it, the state is not known until a state record."""
        ledger = self.replica.ledger
        self.applied_index = ledger.begin_index - 1
        self._record_start = self._record_end = ledger.begin_position
        self.state = ControllerState()
        if ledger.begin_index > 0:
            self.state.forget()

    def _role_changed(self, leading: Leading) -> None:
        if leading.role is Role.LEADER:
            self.liveness.begin(self._now)
            self._led_end = self.replica.ledger.end_index
        self._look.set()

    @property
    def _now(self) -> float:
        return self.replica.world.clock.monotonic()

    @property
    def knows_all(self) -> bool:
        """Whether this node leads and has applied whatever was decided before, so that it knows all replicas."""
        return self.replica.is_leader and self.state.known and self.applied_index >= self._led_end

    @property
    def situation(self) -> Situation:
        """The state as it is applied here, and what was heard here."""
        return Situation(self.state, self.liveness, self._now, self.unclean)

    # --------------------------------------------------------------------------------------------------------- what others ask

    def metadata(self) -> GetMetadataResponse:
        """Say which controller leads, as far as this one knows."""
        replica, leading = self.replica, self.replica.leading
        served = {peer: self.served_at(peer) or str(address) for peer, address in replica.addresses().items()}
        return GetMetadataResponse(
            group=replica.settings.group,
            controller_leader_id=leading.leader,
            controller_leader_address=self.served_at(leading.leader) if leading.leader is not None else None,
            is_leader=replica.is_leader,
            peers="".join(f"{peer}:{address};" for peer, address in served.items()),
        )

    def served_at(self, peer: PeerId) -> str | None:
        """Where a controller of the group answers requests; None if it has not said so yet."""
        settings = self.replica.settings
        return settings.serves if peer == settings.self_id else self.replica.served_at(peer)

    def hear(self, heartbeat: BrokerHeartbeat) -> None:
        """Take note of a heartbeat, as every controller does, so that the next leader knows who is alive.

        Raises:
            RequestRefused: no such replica is known here. It was not noted.
        """
        situation = self.situation
        name, broker_id = heartbeat.broker_name, heartbeat.broker_id or 0
        was_alive = self.liveness.is_alive(name, broker_id, situation.now)
        heard_from(heartbeat, situation)
        if self.replica.is_leader and new_timeout(heartbeat, situation) is not None:
            self._timeouts[name, broker_id] = heartbeat
            self._look.set()
        elif not was_alive or self.liveness.dies_at(name, broker_id) < self._look_at:
            self._look.set()

    async def decide(self, judge: Judge, *, quietly: bool = False) -> Decision:
        """Make a decision as the leader, and return it once its events are committed and applied.

        Args:
            judge: decides from the situation, which does not change meanwhile.
            quietly: whether the broker that asks knows of the change, so that nobody is notified.

        Raises:
            RequestRefused: what `judge` raises, and then nothing was changed; CONTROLLER_NOT_LEADER if this node does not lead;
                SYSTEM_BUSY if a majority did not confirm in time. The remark says whether the change may still happen.
        Durability: the events are on the disks of a majority.
        Cancellation: the events may be carried out or not.
        """
        proposed = False
        try:
            with trio.fail_after(DECISION_SECONDS):
                async with self._deciding:
                    term = await self._catch_up()
                    decision = judge(self.situation)
                    if decision.events:
                        self._write_state_record(term)
                        index = self._propose([encode_events(decision.events)], term)
                        proposed = True
                        await self._wait_until_committed(index)
        except (Refused, LeadershipLost) as error:
            known = self.replica.leading.leader
            where = (
                f"the leader is {known} at {self.served_at(known) or 'an unknown address'}" if known else "there is no leader"
            )
            raise RequestRefused(
                ResponseCode.CONTROLLER_NOT_LEADER, f"{error}; {where}. {_outcome(proposed=proposed)}"
            ) from error
        except (StoreError, OSError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the controller's log takes no entries: {error}") from error
        except trio.TooSlowError as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"a majority of the controllers did not answer within {DECISION_SECONDS:.0f} s. {_outcome(proposed=proposed)}",
            ) from error
        for event in decision.events:
            _log_event(event)
            self.elections += isinstance(event, MasterElected)
        altered = {event.name for event in decision.events if isinstance(event, MasterElected | SetAltered | ReplicasForgotten)}
        for name in () if quietly else sorted(altered & self.state.sets.keys()):
            for notify in self.on_new_set:
                notify(self.state.sets[name])
        return decision

    async def _catch_up(self) -> int:
        """Wait until everything in the log is applied and a majority has confirmed that this node leads; returns its term."""
        replica = self.replica
        if not replica.is_leader:
            # A follower could ask its leader for an index, too, but could not decide anything.
            raise LeadershipLost
        term = replica.leading.term
        index = await replica.read_index()
        await self._wait_until_applied(max(index, replica.ledger.end_index))
        if not replica.is_leader or replica.leading.term != term:
            raise LeadershipLost
        if not self.state.known:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "the log of this controller has no state record; nothing was changed"
            )
        return term

    def _propose(self, records: list[bytes], term: int) -> int:
        return self.replica.propose(records, expected_term=term, patch=False).last_index

    async def _wait_until_committed(self, index: int) -> None:
        outcomes: list[Outcome] = []
        answered = trio.Event()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        self.replica.when_committed(index, self._now + DECISION_SECONDS, done)
        await answered.wait()
        if outcomes[0] is Outcome.TIMED_OUT:
            raise trio.TooSlowError
        if outcomes[0] is not Outcome.COMMITTED:
            raise LeadershipLost
        await self._wait_until_applied(index)

    async def _wait_until_applied(self, index: int) -> None:
        while self.applied_index < index:
            await self._applied.wait()

    # ----------------------------------------------------------------------------------------------------------------- the log

    def _write_state_record(self, term: int) -> None:
        """Append the state, as it is before the next decision, if the log has grown enough."""
        grown = self.replica.ledger.end_position - self._record_end
        if grown > LOG_BYTES_MAX and grown > 2 * self.state.size_bytes:
            self._propose([encode_events([piece]) for piece in self.state.pieces()], term)

    async def apply_forever(self) -> None:
        """Apply what is committed, until cancelled.

        Raises:
            CorruptEvents: an entry cannot be applied; the state is the one before it.
        """
        while True:
            self._committed = trio.Event()
            while self.applied_index < self.replica.ledger.committed_index:
                self._apply_some()
                self._applied.set()
                self._applied = trio.Event()
                await trio.lowlevel.checkpoint()
            await self._expire()
            await self._committed.wait()

    def _apply_some(self) -> None:
        ledger = self.replica.ledger
        count = 0
        while self.applied_index < ledger.committed_index and count < EVENTS_PER_TURN:
            index = self.applied_index + 1
            body = ledger.body(index)
            if not is_message(body):  # the entries of the group itself are records of messages
                for event in decode_events(body):
                    count += 1
                    self.state.apply(event)
                    if isinstance(event, StatePiece):
                        self._note_record(event, ledger.place_of(index)[0], ledger.end_of(index))
                    elif isinstance(event, ReplicasForgotten):
                        self.liveness.forget(event.name, event.broker_ids)
            self.applied_index = index
            count += 1

    def _note_record(self, piece: StatePiece, start: int, end: int) -> None:
        if piece.number == 0:
            self._record_start = start
        if piece.number == piece.count - 1 and self.state.known:
            self._record_end, self._expire_before = end, self._record_start

    async def _expire(self) -> None:
        ledger = self.replica.ledger
        if self._expire_before <= ledger.begin_position and not ledger.forgotten:
            return
        try:
            await self.replica.expire(self._expire_before)
        except OSError as error:
            log.warning("controller_log_not_expired", reason=error.strerror or str(error))

    # ------------------------------------------------------------------------------------------------------------ dead masters

    async def look_forever(self) -> None:
        """As the leader, elect successors of masters that have died, and note new time-outs, until cancelled."""
        while True:
            self._look = trio.Event()
            if not self.replica.is_leader:
                self._timeouts.clear()
            elif self._what_is_due(self.situation):
                try:
                    await self.decide(lambda situation: Decision(events=self._what_is_due(situation)))
                    self._timeouts.clear()
                except RequestRefused as error:
                    log.warning("election_not_decided", reason=error.remark)
                    await trio.sleep(RETRY_SECONDS)
                continue
            now, pause = self._now, self.look_seconds
            self._look_at = now
            if self.replica.is_leader:
                pause = min(pause, max(next_look(self.situation) - now, LOOK_PAUSE_SECONDS_MIN))
                self._look_at += pause
            with trio.move_on_after(pause):
                await self._look.wait()

    def _what_is_due(self, situation: Situation) -> tuple[Change, ...]:
        """The events that no request asks for."""
        # What does not fit comes again with the next heartbeats.
        some = islice(self._timeouts.values(), SCAN_EVENTS_MAX)
        timeouts = [event for heartbeat in some if (event := new_timeout(heartbeat, situation)) is not None]
        return (*look_for_dead_masters(situation), *timeouts)


@asynccontextmanager
async def open_member(
    world: World, settings: ReplicaSettings, *, unclean: bool, look_seconds: float
) -> AsyncGenerator[ControllerMember]:
    """Take part in the group of controllers for the length of an `async with` block.

    Raises:
        WrongSegmentSize, CorruptLedger, CorruptHardState: see these classes. Nothing was changed.
        CorruptEvents: an entry of the log cannot be applied.
        OSError: the disk failed, or the port of the group is in use.
    """
    async with open_replica(world, settings) as replica, trio.open_nursery() as nursery:
        node = ControllerMember(replica, unclean, look_seconds)
        nursery.start_soon(node.apply_forever)
        nursery.start_soon(node.look_forever)
        yield node
        nursery.cancel_scope.cancel()


def _log_event(event: Change) -> None:
    if isinstance(event, MasterElected):
        log.info(
            "master_elected",
            broker=event.name,
            broker_id=event.master_id,
            epoch=event.master_epoch,
            in_sync=sorted(event.in_sync),
        )
    elif isinstance(event, SetAltered):
        log.info("sync_state_set_altered", broker=event.name, in_sync=sorted(event.in_sync), epoch=event.in_sync_epoch)
    elif isinstance(event, IdApplied):
        log.info("replica_registered", broker=event.name, broker_id=event.broker_id, address=event.address)
    elif isinstance(event, ReplicasForgotten):
        log.info("replicas_forgotten", broker=event.name, broker_ids=sorted(event.broker_ids))


def _outcome(*, proposed: bool) -> str:
    return "It may still be carried out" if proposed else "Nothing was changed"
