"""What happened in a simulated run, as the clients saw it: the input of the checkers.

Bodies carry a number that is given once, so a message is recognised wherever it turns up.
"""

from __future__ import annotations

from enum import Enum
from math import inf

import attrs

Queue = tuple[str, int]
"""Topic and queue id."""


class End(Enum):
    """How one life of a node ended."""

    CLEAN = "clean stop"
    KILL = "kill of the process"
    POWER = "power cut"


@attrs.define(eq=False)
class Put:
    """One message sent."""

    number: int
    producer: int
    queue: Queue
    epoch: int
    """Which life of the node it was sent in, counted from 0."""
    key: str = ""
    batch: int = 0
    """Messages of one batch sent together share a number above 0."""
    acknowledged: bool = False
    """The node said that the message is as safe as the mode promises."""
    refused: bool = False
    """The node said that the message was not stored. Neither: nobody knows."""
    withdrawn: bool = False
    """It was refused after the disk had failed to write it: its bytes were taken back, which only a sync makes final."""
    answered: int = 0
    """Which life of the node it was answered in, if that is a later one."""
    queue_offset: int = -1
    physical_offset: int = -1
    copies: int | None = None
    """Nodes that held it when its producer was told, if that was looked at."""
    sent_at: float = 0.0
    answered_at: float = inf
    """When its producer was told what became of it; both where time counts."""


@attrs.define(eq=False)
class Read:
    """One message given to a consumer."""

    queue: Queue
    queue_offset: int
    number: int
    epoch: int
    reader: str = ""
    """Who was given it."""


@attrs.frozen
class Pull:
    """One question for what a queue has at an offset, that a server answered."""

    queue: Queue
    queue_offset: int
    empty: bool
    """The server said that the queue has nothing there yet."""
    began: float
    host: str
    led: bool
    """The server was the leader of its group all the time from the request to the answer."""


@attrs.define(eq=False)
class Commit:
    """One look at how far a group is in a queue, as its broker tells it."""

    seconds: float
    group: str
    queue: Queue
    offset: int
    epoch: int


@attrs.define(eq=False)
class Trial:
    """One message whose consumer fails so many times, and what became of it."""

    number: int
    failures: int
    epoch: int
    acknowledged: bool = False
    """The node said that the message is as safe as the mode promises."""
    attempts: set[int] = attrs.field(factory=set[int])
    """How often it had failed before, at each delivery, those by its own client included."""
    copies: set[int] = attrs.field(factory=set[int])
    """How often it had failed before, by the word of each copy that a broker delivered."""
    done: bool = False
    """Its consumer has taken it."""
    dead: list[int] = attrs.field(factory=list[int])
    """How often each dead letter with this message says that it failed."""


@attrs.define(eq=False)
class Deletion:
    """A request to delete a topic."""

    topic: str
    began: float
    epoch: int
    answered_at: float = inf
    """When its sender was told that it was done; infinite if never."""


@attrs.define(eq=False)
class Change:
    """A request to give a setting a value; None deletes it."""

    key: str
    value: str | None
    began: float
    epoch: int
    answered_at: float = inf
    """When its sender was told that it was done; infinite if never."""


@attrs.frozen
class Look:
    """The value of a setting, as a server held it at one moment."""

    key: str
    value: str | None
    host: str
    seconds: float
    epoch: int
    until: float = 0.0
    """When the look ended, if it took time."""


@attrs.frozen
class Position:
    """Where a group stands in a queue, and where the queue ends, as a server held both at one moment."""

    group: str
    queue: Queue
    offset: int
    queue_end: int
    host: str
    seconds: float
    epoch: int


@attrs.define(eq=False)
class Handling:
    """One delivery of a message to the code of a consumer."""

    group: str
    member: str
    queue: Queue
    queue_offset: int
    number: int
    began: float
    ordered: bool = False
    ended: float = inf
    """When the code let go of it, whatever came of it."""
    done: bool = False
    """It was handled to the end."""
    settled_at: float | None = None
    """When it was handled to the end or sent back for a retry, after which the group may pass it."""


@attrs.frozen
class Held:
    """How far the log of a node goes that has been a slave since the last such look."""

    host: str
    seconds: float
    end: int


@attrs.frozen
class NamedLoss:
    """From this moment on the log of a node may be shorter: its machine lost power, or an operator said so by name."""

    host: str
    seconds: float


@attrs.define(eq=False)
class TimedSend:
    """A send while one way to a broker was open all the time."""

    number: int
    began: float
    seconds: float
    """Its total time."""
    ended: float = inf
    stored: bool = False
    """A broker said that the message is stored."""
    said: str = ""
    """The error, if there was one."""


@attrs.define(eq=False)
class Wait:
    """Somebody who waits on a client that is closed meanwhile."""

    what: str
    closed_at: float = inf
    ended_at: float = inf
    said: str = ""
    """How the wait ended: the name of the error."""


@attrs.define(eq=False)
class Stored:
    """One message as a look at the whole queue finds it."""

    queue_offset: int
    physical_offset: int
    number: int
    store_timestamp: int


@attrs.define(eq=False)
class Snapshot:
    """Everything a node holds after it was opened for life number `epoch`, or at the very end."""

    epoch: int
    queues: dict[Queue, list[Stored]]
    bounds: dict[Queue, tuple[int, int]]
    """Min and max offset of each queue, as the node tells them."""
    by_key: dict[str, list[int]]
    """Numbers found by each key that was asked for."""
    host: str = ""
    """Which of several nodes."""


@attrs.define(eq=False)
class History:
    """A whole run."""

    sync_flush: bool
    """Whether an acknowledgement promises that the message survives a power cut."""
    puts: list[Put] = attrs.field(factory=list[Put])
    reads: list[Read] = attrs.field(factory=list[Read])
    pulls: list[Pull] = attrs.field(factory=list[Pull])
    snapshots: list[Snapshot] = attrs.field(factory=list[Snapshot])
    ends: list[End] = attrs.field(factory=list[End])
    """How each life ended, in order."""
    ended_at: list[float] = attrs.field(factory=list[float])
    """When, where that was written down."""
    copies: int = 1
    """Nodes that an acknowledgement promises to hold the message."""
    commits: list[Commit] = attrs.field(factory=list[Commit])
    commit_seconds: float = 0.0
    """A kill and a power cut take no commit that is older."""
    trials: list[Trial] = attrs.field(factory=list[Trial])
    retries_max: int = 0
    """How often a failed message is tried again."""

    changes: list[Change] = attrs.field(factory=list[Change])
    looks: list[Look] = attrs.field(factory=list[Look])
    change_seconds: float = 0.0
    """A kill and a power cut take no answered change of a setting that is older."""
    deletions: list[Deletion] = attrs.field(factory=list[Deletion])
    positions: list[Position] = attrs.field(factory=list[Position])
    handlings: list[Handling] = attrs.field(factory=list[Handling])
    member_commits: list[Commit] = attrs.field(factory=list[Commit])
    """Looks at how far a group is whose handlings are all in the history."""
    subscriptions: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    """Group and topic, of the groups whose handlings are in the history."""

    promotions: list[int] = attrs.field(factory=list[int])
    """Lives after which a slave became the master: what was not answered as replicated may be gone."""
    misled: list[int] = attrs.field(factory=list[int])
    """Lives in which consumers may have read what is not there afterwards, so that they pass over what comes in its place."""
    held: list[Held] = attrs.field(factory=list[Held])
    """Looks at slaves, in order of time."""
    named_losses: list[NamedLoss] = attrs.field(factory=list[NamedLoss])
    timed_sends: list[TimedSend] = attrs.field(factory=list[TimedSend])
    waits: list[Wait] = attrs.field(factory=list[Wait])

    def survives(self, epoch: int, until: int) -> bool:
        """Whether what was promised in life `epoch` holds at the start of life `until`."""
        return self.sync_flush or End.POWER not in self.ends[epoch:until]

    def consumers_follow(self, until: int) -> bool:
        """Whether no consumer can be ahead of the log at the start of life `until`."""
        return self.survives(0, until) and not any(life < until for life in self.misled)
