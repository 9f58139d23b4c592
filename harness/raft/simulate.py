"""The simulator of the Raft core: groups of real cores under every fault of disks, networks and clocks.

A run has three parts. In the first, faults are injected everywhere: no acknowledged entry may be lost, and every claim of
`Checker` must hold at every moment. Then all faults end, and the group must elect a leader, commit, and converge. Finally one
node is cut off for a long time and returns: it must not disturb the leader.
"""

from __future__ import annotations

import random

import attrs

from ledgermq.ha.raft.errors import Refused
from ledgermq.ha.raft.quorum import Configuration, majority
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.history import History

from ..outcome import Outcome, describe_error
from .world import SimNode, World

FAULT_TICKS = 120
"""How long faults are injected, in ticks."""
HEAL_TICKS = 120
"""A group that has not converged this long after the faults fails the run; this is enough for several elections."""
ABSENCE_TICKS = 40
"""How long a node is cut off in the third part: many election time-outs."""
NODES_MAX = 10
"""The most nodes of a run; members that lost their disks are replaced under new names, until all names are used."""

FAULTS = (
    *("crash", "crash", "crash_leader", "blackout", "rivals"),
    *("isolate", "isolate_leader", "split", "split", "cut", "heal", "slow", "sync_fails", "lose"),
)
"""Kinds of faults; one that is listed twice happens twice as often."""

SETTINGS = Settings(
    heartbeat_ticks=2,
    election_ticks_min=6,
    election_ticks_max=12,
    transfer_ticks=12,
    preferred_check_ticks=10,
    preferred_retry_ticks=10,
    snapshot_retry_ticks=10,
    append_bytes_max=4,
    probe_bytes_max=2,
    inflight_bytes_max=12,
    inflight_batches_max=4,
    caught_up_entries=4,
)
"""Small limits, so that a short run reaches every one."""


@attrs.frozen(kw_only=True)
class RaftDraw:
    """The conditions of one run, drawn from its seed; a failure prints them."""

    seed: int
    nodes: int
    drift: float
    """The largest relative error of a clock's rate, in both directions."""
    loss: float
    duplication: float
    delay_max: float
    late_max: float
    """Duplicates arrive up to this many ticks later, after elections, truncations and changes of members."""
    slow_disks: bool
    crash_voters: float
    transfer_every: float
    fault_every: float
    membership: bool
    compaction: bool
    disk_loss: bool
    preferred: bool
    returns: bool
    """Whether nodes that have lost their disks return under the same names."""
    new: bool
    """Whether the first nodes cannot tell that the group is new."""

    @classmethod
    def of(cls, seed: int) -> RaftDraw:
        rng = random.Random(seed ^ 0x4AF7)  # noqa: S311 - never secrets
        return cls(
            seed=seed,
            nodes=rng.choice((3, 3, 3, 5)),
            drift=rng.choice((0.0, 0.1)),
            loss=rng.choice((0.0, 0.02, 0.2)),
            duplication=rng.choice((0.0, 0.1)),
            delay_max=rng.choice((0.3, 0.9, 3.0)),
            late_max=rng.choice((0.0, 40.0)),
            slow_disks=rng.random() < 0.3,
            crash_voters=rng.choice((0.0, 0.0, 0.5)),
            transfer_every=rng.choice((5.0, 25.0, 80.0)),
            fault_every=rng.choice((5.0, 12.0, 40.0)),
            membership=rng.random() < 0.5,
            compaction=rng.random() < 0.4,
            disk_loss=rng.random() < 0.2,
            preferred=rng.random() < 0.2,
            returns=rng.random() < 0.6,
            new=rng.random() < 0.2,
        )


@attrs.define(eq=False)
class RaftRun:
    """The run of one seed."""

    draw: RaftDraw
    world: World
    values: int = 0
    contexts: int = 0
    faults_end: float = FAULT_TICKS
    founders: Configuration = attrs.field(factory=Configuration)
    """The configuration that the group began with."""

    @classmethod
    def of(cls, draw: RaftDraw) -> RaftRun:
        rng = random.Random(draw.seed)  # noqa: S311 - never secrets
        names = [PeerId(f"n{number}") for number in range(draw.nodes)]
        preferred = frozenset({names[0]} if draw.preferred else ())
        world = World(rng, attrs.evolve(SETTINGS, preferred=preferred))
        world.loss, world.duplication, world.delay_max = draw.loss, draw.duplication, draw.delay_max
        world.late_max, world.crash_voters = draw.late_max, draw.crash_voters
        run = cls(draw, world, founders=Configuration(tuple(names)))
        for name in names:
            node = world.add_node(name, run.founders, run.drawn_rate(), new=draw.new)
            node.disk_factor = run.disk_factor()
        return run

    def disk_factor(self) -> float:
        return self.world.rng.choice((1.0, 10.0, 30.0)) if self.draw.slow_disks else 1.0

    def drawn_rate(self) -> float:
        return 1.0 + self.world.rng.uniform(-self.draw.drift, self.draw.drift)

    # ---------------------------------------------------------------- workload

    def every(self, ticks: float, what: object) -> None:
        """Repeat an action until the faults end, with `ticks` between repetitions on average."""
        world = self.world

        def happen() -> None:
            if world.now < self.faults_end:
                what()  # type: ignore[operator]
                world.after(world.rng.random() * 2 * ticks, happen)

        world.after(world.rng.random() * 2 * ticks, happen)

    def propose(self) -> None:
        leaders = self.world.leaders()
        if leaders:
            self.propose_to(self.world.rng.choice(leaders))

    def propose_to(self, node: SimNode) -> None:
        values = [self.next_value() for _ in range(self.world.rng.randint(1, 3))]
        try:
            self.world.propose(node, *values)
        except Refused:
            self.world.counts["proposal_refused"] += 1

    def next_value(self) -> int:
        self.values += 1
        return self.values

    def read(self) -> None:
        alive = [node for node in self.world.nodes.values() if node.up]
        leaders = self.world.leaders()
        if alive:
            node = self.world.rng.choice(leaders if leaders and self.world.rng.random() < 0.7 else alive)
            self.contexts += 1
            self.world.read(node, self.contexts)

    def transfer(self) -> None:
        for node in self.world.leaders():
            target = self.world.rng.choice(sorted(self.world.nodes))
            try:
                node.raft.transfer_leadership(target)
            except Refused:
                self.world.counts["transfer_refused"] += 1
            else:
                self.world.counts["transfer"] += 1
                self.world.note(f"{node.id} transfers to {target}")
            self.world.pump(node)

    def compact(self) -> None:
        node = self.world.rng.choice(list(self.world.nodes.values()))
        if node.up and node.obeying is None and node.raft.snapshot is None:
            boundary = min(node.raft.applied_index, node.raft.checkpoint_index) - self.world.rng.randint(0, 6)
            if boundary > node.raft.log.boundary_index:
                self.world.counts["compaction"] += 1
                node.compact(boundary)

    def remember_commit(self) -> None:
        node = self.world.rng.choice(list(self.world.nodes.values()))
        if node.up:
            node.storage.checkpoint = node.raft.checkpoint_index

    # ---------------------------------------------------------------- membership

    def change_members(self) -> None:
        """Add a learner, promote learners, demote or remove voters, as drawn and as far as the core allows it."""
        for node in self.world.leaders():
            present = node.raft.configuration
            voters, learners = set(present.voters), set(present.learners)
            lost = {peer for peer in present.members if self.world.nodes[peer].wiped}
            kind = self.world.rng.choice(("learner", "learner", "promote", "remove", "demote", "swap", "replace"))
            strangers = [peer for peer in self.world.nodes if peer not in present.members and not self.world.nodes[peer].wiped]
            if kind == "learner" and len(present.members) < 6:
                learners |= set(strangers[: 6 - len(present.members)])
                while len(voters | learners) < 6 and len(self.world.nodes) < NODES_MAX and self.world.rng.random() < 0.6:
                    learners.add(self._new_node())
            elif kind == "promote":
                voters |= learners
                learners.clear()
            elif kind in {"remove", "demote", "swap"} and len(voters) > 2:
                gone = self.world.rng.choice(sorted(lost & voters or voters))
                voters.discard(gone)
                if kind == "demote":
                    learners.add(gone)
                elif kind == "swap":
                    voters |= learners
                    learners.clear()
            elif kind == "replace" and len(learners) > 1:
                voters, learners = learners, voters
            if self._too_fragile(frozenset(voters)):
                continue
            try:
                configuration = node.raft.plan_change(sorted(voters), sorted(learners))
                self.world.propose(node, configuration)
            except Refused:
                self.world.counts["change_refused"] += 1
            else:
                self.world.counts["change"] += 1
                self.world.note(f"{node.id} proposes {configuration}")

    def _new_node(self) -> PeerId:
        name = PeerId(f"n{len(self.world.nodes)}")
        self.world.add_node(name, Configuration(), self.drawn_rate())
        return name

    def _too_fragile(self, voters: frozenset[PeerId]) -> bool:
        """Whether fewer than a majority of these voters have intact disks; an operator would not order such a change."""
        nodes = [self.world.nodes[peer] for peer in voters]
        sound = sum(not node.wiped and not node.forgetful for node in nodes)
        return sound < majority(len(voters))

    # ---------------------------------------------------------------- faults

    def fault(self) -> None:
        """Inject one drawn fault."""
        world, rng = self.world, self.world.rng
        node = rng.choice(list(world.nodes.values()))
        kind = rng.choice(FAULTS)
        leaders = world.leaders()
        if kind in {"crash_leader", "isolate_leader", "rivals"} and leaders:
            node = leaders[0]
        if kind.startswith("crash"):
            self._crash_for(node, rng.choice((0.1, 3, 30)))
        elif kind == "blackout":
            for other in world.nodes.values():
                self._crash_for(other, rng.random() * 3)
        elif kind.startswith("isolate"):
            world.counts["isolate"] += 1
            world.note(f"{node.id} is isolated")
            if kind == "isolate_leader" and rng.random() < 0.5:
                # The entries that it still writes are replaced later, perhaps while its sync is running.
                node.disk_factor = 100.0
                world.after(60, lambda: setattr(node, "disk_factor", self.disk_factor()))
            world.isolate(node.id)
            world.after(rng.choice((4, 20, 60)), world.cut.clear)
        elif kind == "split":
            self._split()
        elif kind == "cut":
            world.counts["one_way_cut"] += 1
            for peer in world.nodes:
                if peer != node.id and rng.random() < 0.7:
                    world.cut.add((node.id, peer) if rng.random() < 0.5 else (peer, node.id))
            world.after(rng.choice((4, 20)), world.cut.clear)
        elif kind == "heal":
            world.cut.clear()
            world.reconnect(node.id)
        elif kind == "rivals":
            # The leader crashes, and the election timers of all others expire at the same moment.
            world.counts["rivals"] += 1
            self._crash_for(node, 3)
            followers = [other for other in world.nodes.values() if other.raft.timers.election.running]
            for other in followers:
                other.raft.timers.election.start(SETTINGS.election_ticks_min + 2)
        elif kind == "slow":
            world.counts["slow_disk"] += 1
            node.disk_factor = rng.choice((10.0, 100.0))
            world.after(20, lambda: setattr(node, "disk_factor", self.disk_factor()))
        elif kind == "sync_fails":
            # A node whose sync failed does not know what is on its disk; it stops and starts from what it finds there.
            world.counts["failing_sync"] += node.up
            self._crash_for(node, 1)
        elif kind == "lose" and self.draw.disk_loss:
            self._lose_disk(node)

    def _split(self) -> None:
        """Partition the nodes in two: in a joint configuration the new voters from the others, otherwise at random."""
        world = self.world
        joint = [node for node in world.leaders() if node.raft.configuration.joint]
        side = {peer for peer in world.nodes if world.rng.random() < 0.5}
        if joint:
            side = {joint[0].id, *joint[0].raft.configuration.voters}
        world.counts["split"] += 1
        world.note(f"{sorted(side)} are cut off from the others")
        for one in side:
            for other in world.nodes.keys() - side:
                world.cut |= {(one, other), (other, one)}
        world.after(world.rng.choice((10, 30)), world.cut.clear)

    def _crash_for(self, node: SimNode, ticks: float) -> None:
        self.world.crash(node)
        self.world.after(ticks, lambda: self.world.restart(node))

    def _lose_disk(self, node: SimNode) -> None:
        """Lose the disk of a node, unless this leaves fewer intact disks than a majority; Raft tolerates no more."""
        lost = {peer for peer, other in self.world.nodes.items() if other.wiped or other.forgetful} | {node.id}
        for other in self.world.nodes.values():
            logs = [configuration for _, configuration in other.raft.log.configurations]
            for configuration in logs:
                for voters in configuration.majorities:
                    if len(voters) - len(lost & set(voters)) < majority(len(voters)):
                        return
        if not self.draw.returns:
            self.world.lose_disk(node)
        elif not node.wiped:
            self.world.wipe(node, self.founders if node.id in self.founders.voters else Configuration())
            self.world.after(self.world.rng.choice((1, 10, 40)), lambda: self.world.restart(node))

    # ---------------------------------------------------------------- the three parts of a run

    def run(self) -> None:
        """Run all three parts, one after the other."""
        world = self.world
        self.every(1.0, self.propose)
        self.every(1.0, self.read)
        self.every(self.draw.transfer_every, self.transfer)
        self.every(10.0, self.remember_commit)
        if self.draw.membership or self.draw.disk_loss:
            self.every(5.0, self.change_members)
        if self.draw.compaction:
            self.every(6.0, self.compact)
        self.every(self.draw.fault_every, self.fault)
        if self.draw.disk_loss and self.draw.returns:
            self.every(20.0, lambda: self._lose_disk(world.rng.choice(list(world.nodes.values()))))
        world.run_until(FAULT_TICKS)
        self.faults_end = 0.0
        if not world.checker.violations:
            self.heal()
        if not world.checker.violations:
            self.converge()
        if not world.checker.violations and world.rng.random() < 0.5:
            self.absence()

    def heal(self) -> None:
        world = self.world
        world.note("everything heals")
        world.cut.clear()
        world.loss = world.duplication = world.crash_voters = 0.0
        world.delay_max = min(world.delay_max, 0.9)
        for node in world.nodes.values():
            node.disk_factor = 1.0
            world.restart(node)

    def converge(self) -> None:
        """Check liveness: without faults a group elects a leader that commits, and every member follows."""
        world = self.world
        self._run_until_converged()
        leaders = world.leaders()
        world.checker.expect(bool(leaders), f"nobody leads {HEAL_TICKS} ticks after healing")
        if not leaders or world.checker.violations:
            return
        try:
            world.propose(leaders[0], self.next_value())
        except Refused as refusal:
            world.checker.expect(False, f"{leaders[0].id} refuses a proposal after healing: {refusal}")
            return
        self._run_until_converged()
        leader = world.leaders()[0]
        members = [world.nodes[peer] for peer in leader.raft.configuration.members if not world.nodes[peer].wiped]
        world.checker.expect(
            not leader.raft.configuration.joint, f"the group stays in the joint configuration {leader.raft.configuration}"
        )
        world.checker.nothing_is_lost(members)
        for node in members:
            world.checker.expect(
                node.raft.applied_index == leader.storage.last_index,
                f"{node.id} has applied {node.raft.applied_index} after healing, the leader has {leader.storage.last_index}",
            )

    def _run_until_converged(self) -> None:
        end = self.world.now + HEAL_TICKS
        while self.world.now < end and not self.world.checker.violations and not self._converged():
            self.world.run_until(self.world.now + SETTINGS.election_ticks_max)

    def _converged(self) -> bool:
        """Whether one node leads without a transfer, its configuration is final, and its members have applied its whole log."""
        leaders = self.world.leaders()
        if len(leaders) != 1 or leaders[0].raft.configuration.joint:
            return False
        if leaders[0].raft.timers.transfer.running:
            return False
        last = leaders[0].storage.last_index
        members = [self.world.nodes[peer] for peer in leaders[0].raft.configuration.members]
        return all(node.wiped or node.raft.applied_index == last for node in members)

    def absence(self) -> None:
        """Isolate a member for a long time; when it returns, the leader and its term must not change."""
        world = self.world
        leader = world.leaders()[0]
        if leader.raft.timers.transfer.running or self.draw.preferred:
            return
        term = leader.raft.term
        configuration = leader.raft.configuration
        others = [world.nodes[peer] for peer in sorted(configuration.members - {leader.id})]
        if len(configuration.voters) < 3 or any(node.wiped for node in others):
            return  # without another node the leader would have no majority
        away = world.rng.choice(others)
        world.isolate(away.id)
        world.run_until(world.now + ABSENCE_TICKS)
        world.checker.expect(
            away.raft.term <= term, f"{away.id} has raised its term to {away.raft.term} while it was cut off in term {term}"
        )
        world.cut.clear()
        world.run_until(world.now + 2 * SETTINGS.election_ticks_max)
        found = world.leaders()
        world.checker.expect(
            len(found) == 1 and found[0] is leader and leader.raft.term == term,
            f"{away.id} has come back, and {leader.id} no longer leads term {term}: {[(n.id, n.raft.term) for n in found]}",
        )


def simulate_raft(seed: int) -> Outcome:
    """Run one seed; an exception of the core counts as a violation."""
    draw = RaftDraw.of(seed)
    run = RaftRun.of(draw)
    try:
        run.run()
    except Exception as error:  # noqa: BLE001 - every exception is a finding
        run.world.checker.violations.append(describe_error(error))
    world = run.world
    return Outcome(History(sync_flush=True), world.checker.violations, world.counts, drawn=str(draw), trace=world.trace)
