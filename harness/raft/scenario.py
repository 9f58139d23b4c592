"""Scenarios as text: commands, a line `----`, and the whole trace of what they cause.

A block ends with an empty line. Lines that begin with `#` are comments. Commands are those of `COMMANDS`; nodes have one letter
each. The trace shows every message as it is delivered, what each node writes, and what it becomes.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ledgermq.ha.raft.errors import RaftError
from ledgermq.ha.raft.messages import (
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
)
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import HardState, Ready
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId

from .explore import describe
from .group import Group, shortest
from .node import Node
from .storage import Entry, MemoryStorage

SETTINGS = Settings(
    heartbeat_ticks=2,
    commit_ticks=0,
    election_ticks_min=6,
    election_ticks_max=12,
    transfer_ticks=12,
)


def shown(message: Message) -> str:
    """A message in words, including fields that `describe` leaves out."""
    text = describe(message)
    if isinstance(message, PreVoteRequest | VoteRequest):
        text += f", last {message.last_index}/{message.last_term}"
    elif isinstance(message, PreVoteResponse):
        text += " granted" if message.granted else " refused"
    elif isinstance(message, Heartbeat):
        text += f" round {message.round}, commit {message.commit_index}"
    elif isinstance(message, HeartbeatResponse):
        text += f" round {message.round}"
    elif isinstance(message, InstallSnapshot):
        text += f" of {message.snapshot.last_index}/{message.snapshot.last_term}"
    return text


def shown_entries(entries: list[Entry]) -> str:
    """A log in text: each entry as value/term, a configuration as its voters, a joint one with an arrow between both sets."""
    return " ".join(f"{_shown_value(value)}/{term}" for term, value in entries) or "(empty)"


def _shown_value(value: object) -> str:
    if not isinstance(value, Configuration):
        return str(value)
    voters = "".join(value.voters) + (f"<-{''.join(value.outgoing)}" if value.joint else "")
    return f"{{{voters}{'+' + ''.join(value.learners) if value.learners else ''}}}"


@attrs.define(eq=False)
class TracedNode(Node):
    """A node that adds what it does to the trace."""

    trace: list[str] = attrs.field(factory=list[str])

    def obey(self, ready: Ready[Message]) -> None:
        soft = ready.soft_state
        if soft is not None:
            self.trace.append(f"{self.id} is {soft.role.value} of term {soft.term}, leader {soft.leader or 'unknown'}")
        if ready.hard_state is not None:
            self.trace.append(f"{self.id} syncs term {ready.hard_state.term}, vote {ready.hard_state.vote or 'none'}")
        if ready.snapshot is not None:
            self.trace.append(f"{self.id} installs a snapshot of {ready.snapshot.last_index}")
        if ready.truncate_from is not None:
            self.trace.append(f"{self.id} removes its entries from {ready.truncate_from} on")
        for piece in ready.appends:
            self.trace.append(f"{self.id} writes {piece.first_index} to {piece.last_index}")
        if ready.committed is not None:
            self.trace.append(f"{self.id} applies {ready.committed.first_index} to {ready.committed.last_index}")
        for read in ready.read_states:
            self.trace.append(f"{self.id} may answer {read.context} at {read.index}")
        super().obey(ready)


@attrs.define(eq=False)
class TracedGroup(Group):
    """A group that adds the messages that arrive to the trace."""

    trace: list[str] = attrs.field(factory=list[str])
    heartbeats: bool = False
    """Whether the trace contains heartbeats and their answers."""

    def deliver(self, message: Message) -> None:
        if self.heartbeats or not isinstance(message, Heartbeat | HeartbeatResponse):
            lost = (message.sender, message.to) in self.cut or message.to not in self.nodes
            self.trace.append(shown(message) + (" (lost)" if lost else ""))
        super().deliver(message)


@attrs.define(eq=False)
class Scenario:
    """Runs the commands of one text."""

    group: TracedGroup = attrs.field(factory=lambda: TracedGroup({}))

    def run(self, text: str) -> str:
        """Carry out a whole text; returns it with the actual traces in place of the written ones."""
        return "\n".join(self._block(block) for block in text.strip().split("\n\n")) + "\n"

    def _block(self, block: str) -> str:
        lines = [line for line in block.partition("\n----")[0].split("\n") if line]
        commands = [line for line in lines if not line.startswith("#")]
        if not commands:
            return "\n".join(lines) + "\n"
        self.group.trace.clear()
        for command in commands:
            word, *arguments = command.split()
            try:
                COMMANDS[word](self, *arguments)
            except RaftError as error:
                self.group.trace.append(f"refused: {error}")
        return "\n".join([*lines, "----", *(self.group.trace or ["(nothing)"])]) + "\n"

    # ---------------------------------------------------------------- commands

    def found(self, voters: str) -> None:
        """`found abc`: start a group with empty logs."""
        for name in map(PeerId, voters):
            storage = MemoryStorage(Configuration(tuple(map(PeerId, voters))))
            self.group.nodes[name] = TracedNode(name, SETTINGS, shortest, storage, trace=self.group.trace)
        self.group.settle()
        self.group.trace.clear()

    def node(self, name: str) -> None:
        """`node d`: start one more node with an empty disk that is in no group yet."""
        self.group.nodes[PeerId(name)] = TracedNode(PeerId(name), SETTINGS, shortest, MemoryStorage(), trace=self.group.trace)

    def log(self, name: str, *terms: str) -> None:
        """`log a 1 1 2`: start a node with entries of these terms on its disk."""
        node = self.group[name]
        node.storage.append(tuple((int(term), f"v{index}") for index, term in enumerate(terms)))
        node.storage.sync()
        node.storage.hard_state = HardState(int(terms[-1]))
        node.start()
        node.process()
        self.group.trace.clear()

    def elect(self, name: str) -> None:
        """`elect a`: the election timer of this node expires before all others."""
        self.group.elect(name)

    def propose(self, name: str, *values: str) -> None:
        """`propose a x y`: a client proposes entries to a node."""
        self.group.propose(name, *values)

    def tick(self, count: str, *names: str) -> None:
        """`tick 3 a b`: time passes, for all nodes or for these."""
        self.group.tick(int(count), *names)

    def isolate(self, *names: str) -> None:
        """`isolate c d`: every message to and from these nodes is lost."""
        for name in names:
            self.group.isolate(name)

    def heal(self) -> None:
        """`heal`: all nodes receive messages again."""
        self.group.heal()

    def silent(self, name: str) -> None:
        """`silent a`: the node proposes no barrier when it becomes leader."""
        self.group[name].opens_terms = False

    def crash(self, name: str) -> None:
        """`crash a`: a node loses what it has not synced, and starts again."""
        self.group[name].storage.crash()
        self.group[name].start()

    def compact(self, name: str, index: str) -> None:
        """`compact a 3`: remove the log of a node up to and including an index."""
        self.group[name].compact(int(index))

    def members(self, name: str, voters: str, learners: str = "") -> None:
        """`members a abd e`: change the voters and learners."""
        configuration = self.group[name].raft.plan_change(tuple(map(PeerId, voters)), tuple(map(PeerId, learners)))
        self.group.propose(name, configuration)

    def transfer(self, name: str, target: str) -> None:
        """`transfer a b`: transfer leadership to another node."""
        self.group[name].raft.transfer_leadership(PeerId(target))
        self.group.settle()

    def read(self, name: str, context: str) -> None:
        """`read a r1`: request a read-index with a context."""
        self.group[name].raft.read_index(context)
        self.group.settle()

    def heartbeats(self) -> None:
        """`heartbeats`: add heartbeats to the trace from now on."""
        self.group.heartbeats = True

    def logs(self) -> None:
        """`logs`: print all logs, and the commit index of each node."""
        for name, node in self.group.nodes.items():
            first = f"from {node.storage.boundary[0] + 1}: " if node.storage.boundary[0] >= 0 else ""
            self.group.trace.append(f"{name}: {first}{shown_entries(node.storage.entries)}, commit {node.raft.commit_index}")


COMMANDS: dict[str, Callable[..., None]] = {
    name: getattr(Scenario, name)
    for name in (
        *("found", "node", "log", "elect", "propose", "tick", "isolate", "heal", "silent", "crash"),
        *("compact", "members", "transfer", "read", "heartbeats", "logs"),
    )
}
