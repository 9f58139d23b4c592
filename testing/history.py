"""The history of a simulated run, as the clients saw it: the input of the checkers.

Bodies contain a number that is used once, so a message is recognised wherever it is found.
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
    """The life of the node in which it was sent, counted from 0."""
    key: str = ""
    batch: int = 0
    """Messages of one batch sent together share a number above 0."""
    acknowledged: bool = False
    """Whether the node answered that the message is as safe as the mode promises."""
    refused: bool = False
    """Whether the node answered that the message was not stored. If neither is set, the outcome is unknown."""
    withdrawn: bool = False
    """Whether it was refused because the disk failed to write it: its bytes were withdrawn, which only a sync makes final."""
    answered: int = 0
    """The life of the node in which it was answered, if that is a later one."""
    queue_offset: int = -1
    physical_offset: int = -1
    copies: int | None = None
    """How many nodes had it when its producer got the answer, if that was recorded."""
    sent_at: float = 0.0
    answered_at: float = inf
    """When its producer got the answer; like `sent_at`, it is set where time matters."""
    sent_ms: int = 0
    """When it was sent, in milliseconds by the wall clock of its broker; set where messages expire."""


@attrs.define(eq=False)
class Read:
    """One message that a consumer has read."""

    queue: Queue
    queue_offset: int
    number: int
    epoch: int
    reader: str = ""
    """The consumer that has read it."""


@attrs.frozen
class Pull:
    """One answered request for what a queue has at an offset."""

    queue: Queue
    queue_offset: int
    empty: bool
    """Whether the server answered that the queue has nothing there yet."""
    began: float
    host: str
    led: bool
    """Whether the server was the leader of its group all the time from the request to the answer."""


@attrs.define(eq=False)
class Commit:
    """The committed offset of a group in a queue, as its broker returned it at one moment."""

    seconds: float
    group: str
    queue: Queue
    offset: int
    epoch: int


@attrs.define(eq=False)
class Trial:
    """One message whose consumer fails `failures` times, and what happened to it."""

    number: int
    failures: int
    epoch: int
    acknowledged: bool = False
    """Whether the node answered that the message is as safe as the mode promises."""
    attempts: set[int] = attrs.field(factory=set[int])
    """For each delivery, how often it had failed before; deliveries by its own client are included."""
    copies: set[int] = attrs.field(factory=set[int])
    """For each copy that a broker delivered, how often it had failed before according to the copy."""
    done: bool = False
    """Whether its consumer has handled it."""
    dead: list[int] = attrs.field(factory=list[int])
    """For each dead letter with this message, how often it had failed according to the letter."""


@attrs.define(eq=False)
class Deletion:
    """A request to delete a topic."""

    topic: str
    began: float
    epoch: int
    answered_at: float = inf
    """When its sender got the answer that it was done; infinite if never."""


@attrs.define(eq=False)
class Change:
    """A request to give a setting a value; None deletes it."""

    key: str
    value: str | None
    began: float
    epoch: int
    answered_at: float = inf
    """When its sender got the answer that it was done; infinite if never."""


@attrs.frozen
class Look:
    """The value of a setting on a server at one moment."""

    key: str
    value: str | None
    host: str
    seconds: float
    epoch: int
    until: float = 0.0
    """When the look ended, if it took time."""


@attrs.frozen
class Position:
    """The offset of a group in a queue, and the end of the queue, on a server at one moment."""

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
    """When the code returned or raised."""
    done: bool = False
    """Whether it was handled to the end."""
    settled_at: float | None = None
    """When it was handled to the end or sent back for a retry, after which the group may commit it."""


@attrs.define(eq=False)
class Pause:
    """A time in which a member hands out nothing of a queue."""

    member: str
    queue: Queue
    since: int
    """How many handlings the history had when the pause began."""
    until: int | None = None
    """How many it had when the pause or the run ended."""


@attrs.define(eq=False)
class Seek:
    """A member has moved a queue that it reads to an offset."""

    group: str
    member: str
    queue: Queue
    offset: int
    """Where it continues; 0 if that is not known."""
    seconds: float
    """When the seek began."""
    since: int
    """How many handlings the history had then."""
    until: int | None = None
    """How many it had when the queue was moved again or given up."""
    exact: bool = False
    """Whether `offset` is known, and no message of the queue was handed out during the seek."""
    passed: tuple[int, int] = (0, 0)
    """From where to where it went forward; the group need not handle what is there."""


@attrs.frozen
class Held:
    """The end of the log of a node that has been a slave since the last such look."""

    host: str
    seconds: float
    end: int


@attrs.frozen
class NamedLoss:
    """From this moment on the log of a node may be shorter: its machine lost power, or an operator gave up its log by name."""

    host: str
    seconds: float


@attrs.define(eq=False)
class TimedSend:
    """A send during which one path to a broker was always open."""

    number: int
    began: float
    seconds: float
    """The total time that the send was allowed to take."""
    ended: float = inf
    stored: bool = False
    """Whether a broker answered that the message is stored."""
    error: str = ""
    """The error, if there was one."""


@attrs.define(eq=False)
class Wait:
    """A wait on a client that is closed meanwhile."""

    what: str
    closed_at: float = inf
    began: float = 0.0
    """When it last began, if the application's own code ran before."""
    ended_at: float = inf
    error: str = ""
    """How the wait ended: the name of the error."""


@attrs.define(eq=False)
class Stored:
    """One message in a snapshot of its queue."""

    queue_offset: int
    physical_offset: int
    number: int
    store_timestamp: int


@attrs.define(eq=False)
class Snapshot:
    """Everything that a node has after it was opened for life number `epoch`, or at the end of the run."""

    epoch: int
    queues: dict[Queue, list[Stored]]
    bounds: dict[Queue, tuple[int, int]]
    """Min and max offset of each queue, as the node returned them."""
    by_key: dict[str, list[int]]
    """The numbers that a query found, for each key that was queried."""
    host: str = ""
    """The node, if there are several."""
    wall_ms: int = 0
    """The latest time that the node's wall clock had shown; set where messages expire."""
    deleted_below: dict[Queue, int] = attrs.field(factory=dict[Queue, int])
    """For queues of deleted topics, the offset at which the last deletion began; set where one store is judged."""


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
    failed_stops: dict[int, float] = attrs.field(factory=dict[int, float])
    """Lives whose clean stop may not have written the tables, because the disk failed during it, and when the stop was over."""
    ended_at: list[float] = attrs.field(factory=list[float])
    """When each life ended, if that was recorded."""
    flushed: dict[int, int] = attrs.field(factory=dict[int, int])
    """For lives that a power cut ended, up to where the log of the master was on the medium, as the master said."""
    flush_seconds: float = inf
    """A power cut loses no message that was acknowledged this long before it, whatever the master said."""
    clients_choose_queues: bool = False
    """Whether a client chooses the queue of each message, so that only an answer tells which one it was."""
    elects: bool = False
    """Whether the nodes elect their master, which may have only a part of a batch that was not answered."""
    copies: int = 1
    """On how many nodes an acknowledged message is promised to be."""
    commits: list[Commit] = attrs.field(factory=list[Commit])
    commit_seconds: float = 0.0
    """Kills and power cuts lose no commit that is older than this."""
    trials: list[Trial] = attrs.field(factory=list[Trial])
    retries_max: int = 0
    """How often a failed message is tried again."""

    changes: list[Change] = attrs.field(factory=list[Change])
    looks: list[Look] = attrs.field(factory=list[Look])
    change_seconds: float = 0.0
    """Power cuts lose no answered change of a setting that is older than this."""
    deletions: list[Deletion] = attrs.field(factory=list[Deletion])
    positions: list[Position] = attrs.field(factory=list[Position])
    handlings: list[Handling] = attrs.field(factory=list[Handling])
    member_commits: list[Commit] = attrs.field(factory=list[Commit])
    """Commits of groups whose handlings are all in the history."""
    pauses: list[Pause] = attrs.field(factory=list[Pause])
    seeks: list[Seek] = attrs.field(factory=list[Seek])
    common_commits: list[Commit] = attrs.field(factory=list[Commit])
    """The same commits as far as the master and all slaves have them: a slave's copy may be old."""
    subscriptions: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    """Group and topic, of the groups whose handlings are in the history."""

    reserved_ms: float = inf
    """How long the nodes keep each message before it may expire, in milliseconds; infinite if this is not checked."""
    expired: dict[Queue, int] = attrs.field(factory=dict[Queue, int])
    """The first offset of each queue that has expired on no node."""
    promotions: list[int] = attrs.field(factory=list[int])
    """The lives after which a slave became the master, so that messages not answered as replicated may be lost."""
    misled: list[int] = attrs.field(factory=list[int])
    """The lives in which consumers may have read messages that were lost later; they skip what is stored in their place."""
    restored: list[int] = attrs.field(factory=list[int])
    """The lives after which the master began with an older copy of its store."""
    held: list[Held] = attrs.field(factory=list[Held])
    """Looks at slaves, in order of time."""
    named_losses: list[NamedLoss] = attrs.field(factory=list[NamedLoss])
    timed_sends: list[TimedSend] = attrs.field(factory=list[TimedSend])
    waits: list[Wait] = attrs.field(factory=list[Wait])

    def passed_to(self, group: str, queue: Queue, offset: int, until: float = inf) -> int:
        """Where a group may continue that has handled all messages below `offset`, by the seeks that began until then."""
        for seek in sorted(
            (seek for seek in self.seeks if (seek.group, seek.queue) == (group, queue)), key=lambda each: each.passed
        ):
            if seek.seconds <= until and seek.passed[0] <= offset:
                offset = max(offset, seek.passed[1])
        return offset

    def survives(self, epoch: int, until: int) -> bool:
        """Whether what was promised in life `epoch` holds at the start of life `until`."""
        return self.sync_flush or End.POWER not in self.ends[epoch:until]

    def keeps(self, put: Put, until: int) -> bool:
        """Whether an acknowledged message is there at the start of life `until`."""
        return self.survives(put.epoch, until) or all(
            end is not End.POWER or self._is_flushed(put, life)
            for life, end in enumerate(self.ends[put.epoch : until], put.epoch)
        )

    def _is_flushed(self, put: Put, life: int) -> bool:
        """Whether a message was on the medium when a power cut ended a life."""
        in_time = self.flush_seconds < inf and put.answered_at < self.ended_at[life] - self.flush_seconds
        return in_time or 0 <= put.physical_offset < self.flushed.get(life, 0)

    def consumers_follow(self, until: int) -> bool:
        """Whether no consumer can be ahead of the log at the start of life `until`."""
        return self.survives(0, until) and not any(life < until for life in self.misled)
