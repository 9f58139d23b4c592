"""A group of brokers whose master a controller elects, observed from outside: who leads, who is in sync, what is readable.

The watch sends no requests. It looks at all nodes at short intervals, and whenever a node lets consumers see more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.ha.controller.node import ElectedNode
from ledgermq.ha.controller.server import Controller
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.testing.history import End, Put

from .elections import ElectingScene, ElectionWatch
from .scene import Node, Process

Server = Process[Broker] | Process[Controller]
NAME = "broker-a"
"""The name of all brokers of the group."""
HEAD_BYTES = 200
"""The number of a message is within this many first bytes of its record."""
LOOK_SECONDS = 0.02
"""How often the watch looks at all nodes."""


def elected_node_of(broker: Broker) -> ElectedNode:
    """The node of a broker in its group."""
    node = broker.node
    assert isinstance(node, ElectedNode)
    return node


@attrs.frozen
class KnownSet:
    """The replicas in sync, and the last master, as a controller or a broker knows them."""

    term: int = 0
    """The epoch of the master."""
    epoch: int = 0
    """The epoch of the set."""
    master: str = ""
    """The address of the master."""
    members: frozenset[str] = frozenset()
    """The addresses of the replicas in sync."""


@attrs.define(eq=False)
class SetWatch(ElectionWatch):
    """What has been observed of one group."""

    known: KnownSet = KnownSet()
    """The newest set that any node has known."""
    may_lose: bool = False
    """Whether each failover may lose acknowledged messages, because replicas in sync need not have them."""
    lossy: set[str] = attrs.field(factory=set[str])
    """The addresses of members that may have lost acknowledged messages since they joined, by a power cut with ASYNC_FLUSH or
    because their disk was replaced by an older copy.

    Such a member leaves the set when it registers, if another member lives.
    """
    calm: bool = False
    """Whether nothing may be lost, because one node has failed alone."""
    on_loss: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    """Called when acknowledged messages may be lost: when such a member is elected, because there is no other one, or at each
    failover of a group that may lose them."""
    losses: int = 0
    """How often such a member was elected."""
    ask_controllers: Callable[[], None] = lambda: None
    """Takes note of what the controllers know."""
    _takes: dict[str, int] = attrs.field(factory=dict[str, int])
    """The term of each node that accepts messages."""
    _views: dict[str, _View] = attrs.field(factory=dict[str, "_View"])
    """By host, the view of the last life of each node."""

    def follow(self, node: Node, broker: Broker) -> None:
        """Watch a node that has just started."""
        view = _View(self, node.host, elected_node_of(broker)._local)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

        def compare() -> None:
            self.ask_controllers()  # who was elected since the last look may rightly have lost something
            view.compare()

        view.log.on_readable.append(compare)
        self._views[node.host] = view

    def learn(self, known: KnownSet) -> None:
        """Take note of a set that is newer than the known one."""
        if known.epoch <= self.known.epoch:
            return
        before, self.known = self.known, known
        elected = known.term > before.term
        lossy = elected and known.master in self.lossy
        if lossy:
            if self.calm:
                self.found(f"{known.master} has lost bytes and is elected for epoch {known.term}, and other members live")
            self.losses += 1
            self.lossy.clear()
        for notify in self.on_loss if lossy or (elected and self.may_lose) else ():
            notify()
        self.lossy &= known.members

    def takes(self, node: Node, term: int) -> bool:
        """Whether a node has been seen to accept messages in a term."""
        return self._takes.get(node.host) == term

    def look(self, nodes: list[Node]) -> None:
        """Compare what the nodes let consumers see, and record who accepts messages."""
        changed = False
        for node in nodes:
            broker = node.broker
            term = broker.role.state.term if broker is not None and broker.role.takes_puts else 0
            if self._takes.get(node.host, 0) != term:
                self._takes[node.host] = term
                changed = True
                if term:
                    self.elected(node.host, term)
            if broker is not None:
                self._views[node.host].compare()
        if changed:
            for notify in self.on_change:
                notify()


@attrs.define(eq=False)
class _View:
    """The observation of one life of one node."""

    watch: SetWatch
    host: str
    log: LocalCommitLog
    position: int = 0
    """The position up to which its records have been compared."""

    def compare(self) -> None:
        """Compare what consumers may see since the last time, unless something of it may have been lost rightly.

        These are whole records. The first bytes of another one may be confirmed, too, and the next master drops them.
        """
        if self.watch.losses:
            return
        log, end = self.log, self.log.readable_offset
        start = self.position if log.min_offset <= self.position <= end else log.min_offset
        self.position = max((position for position, _ in log.records(start, end)), default=start)
        for segment in log.segments.files:
            first, last = max(start, segment.start), min(self.position, segment.start + segment.wrote)
            if first < last:
                self.watch.compare(self.host, first, segment.view[first - segment.start : last - segment.start])


@attrs.define(eq=False)
class SetScene(ElectingScene):
    """The machines of one group, of its controllers and of its clients."""

    watch: SetWatch = attrs.field(kw_only=True)
    sync_flush: bool = attrs.field(kw_only=True)
    members_min: int = attrs.field(kw_only=True)
    """While fewer replicas are in sync, nothing may be acknowledged."""
    copies_min: int | None = attrs.field(kw_only=True)
    """How many copies acknowledge a message, as far as there are so many in sync; None if all replicas in sync do."""
    controllers: list[Process[Controller]] = attrs.field(factory=list[Process[Controller]])
    _lost_at: dict[Node, float] = attrs.field(factory=dict[Node, float])
    """When each node last lost what it had not synced, or everything since a copy of its disk was made."""
    _set_since: float = -inf
    """When a controller first knew the newest set."""
    _leads_since: tuple[int, float] = (0, inf)
    """The newest term in which an elected node was seen to lead, and when it was first seen."""

    @property
    def leading_controller(self) -> Process[Controller] | None:
        """The controller that leads in the newest term, None while there is none."""
        leading = [one for one in self.controllers if one.server is not None and one.server.node.replica.is_leader]
        return max(leading, key=lambda one: one.server.node.replica.leading.term, default=None)  # type: ignore[union-attr]

    async def run_watch(self) -> None:
        """Look at all nodes until cancelled."""
        self.watch.ask_controllers = self.ask_controllers
        while True:
            self.look()
            await trio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Look at all nodes."""
        self.ask_controllers()
        self.watch.look(self.nodes)
        if self._leads_since[0] != self.watch.known.term and self.find_leader() is not None:
            self._leads_since = self.watch.known.term, trio.current_time()

    def ask_controllers(self) -> None:
        """Take note of the newest set that a controller knows."""
        before = self.watch.known
        for process in self.controllers:
            if process.server is not None and (one := process.server.node.state.sets.get(NAME)) is not None:
                members = frozenset(one.replicas[member].address for member in one.in_sync)
                self.watch.learn(KnownSet(one.master_epoch, one.in_sync_epoch, one.master_address or "", members))
        if self.watch.known is not before:
            self._set_since = trio.current_time()

    def find_leader(self) -> Node | None:
        term = self.watch.known.term
        for node in self.nodes:
            leads = node.broker is not None and node.broker.role.takes_puts and node.broker.role.state.term == term
            if leads and self.watch.takes(node, term):  # else the life of its predecessor has not ended yet
                return node
        return None

    def whole(self) -> bool:
        """Whether there is a master and all nodes are in sync with it."""
        self.ask_controllers()  # a replica leaves the set when it registers
        return self.leader is not None and len(self.watch.known.members) == len(self.nodes)

    def all_reach_controllers(self) -> bool:
        """Whether the leading controller has heard lately from each broker, and from its present process.

        Until a process has registered, which is before it gets a role, the controllers go by what the last one has said.
        """
        leading = self.leading_controller
        if leading is None or leading.server is None or any(n.broker is None or n.broker.node.is_removed for n in self.nodes):
            return False
        situation = leading.server.node.situation
        one = situation.state.sets.get(NAME)
        return one is not None and all(situation.is_alive(one, broker_id) for broker_id in one.replicas)

    def copies(self, put: Put) -> int | None:
        """Check that the replicas have the message that acknowledge it, with SYNC_FLUSH on their media.

        These are all members of the set, each of which could be elected now, or as many of them as `copies_min`; and at least
        `members_min` nodes. A node that has lost bytes while the answer was in transit may have had it, and a set that has
        changed meanwhile may have had other members.

        Where fewer copies acknowledge than there may be members, a deposed master acknowledges until the replicas that report
        to it have heard of the election, too, which is before its successor leads. What that lacks of it may be lost like what
        was acknowledged before; what it has is waited for like all the rest of its log, before it leads.
        """
        if not put.acknowledged:
            return None
        self.look()
        watch, place = self.watch, f"message {put.number} was acknowledged at {put.physical_offset}"
        members, lacking = watch.known.members, {str(node.address) for node in self.nodes if not self._has(node, put)}
        excused = {str(node.address) for node in self.nodes if self._lost_at.get(node, -inf) >= put.sent_at}
        missing = lacking - excused
        if self.copies_min is None:
            for address in sorted((members & missing) - watch.lossy):
                watch.found(f"{place}, and {address}, in sync, lacks it")
        copies = min(self.copies_min or 1, len(members))
        if len(self.nodes) - len(missing) < max(self.members_min, copies):
            watch.found(
                f"{place}, which needs {max(self.members_min, copies)} copies, and {', '.join(sorted(lacking))} lack it"
            )
        if watch.may_lose and watch.known.master in missing:
            put.acknowledged = False
        elif (
            self._set_since < put.sent_at
            and self._leads_since[0] == watch.known.term
            and self._leads_since[1] < put.sent_at
            and len(members - missing) < copies
        ):
            watch.found(
                f"{place}, which needs {copies} copies in the set, whose {', '.join(sorted(members & missing))} lack it"
            )
        return None

    def _has(self, node: Node, put: Put) -> bool:
        disk, start = node.machine.disk, put.physical_offset - put.physical_offset % self.watch.segment_size
        path = f"{node.config.store_path_root_dir}/commitlog/{start:020d}"
        with disk.no_faults():
            if not disk.exists(path):
                return False
            at = put.physical_offset - start
            head = disk.open(path, read_only=True).read(at, HEAD_BYTES)
            durable = not self.sync_flush or disk.is_durable(path, at, int.from_bytes(head[:4], "big"))
            return b"%d;" % put.number in head and durable

    def ends(self, process: Server, end: End, *, restored: bool = False) -> None:
        """Take note that a process ends, and what a broker may lose by that, or by the copy of its disk that is restored."""
        self.look()
        for node in self.nodes:
            if node.process is process and (restored or (end is End.POWER and not self.sync_flush)):
                self._lost_at[node] = trio.current_time()
                self.watch.lossy |= {str(node.address)} & self.watch.known.members
