"""Properties of how the members of consumer groups handle messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from ...broker.tables.locks import OWNER_BELIEVES_SECONDS
from ..history import Commit, End, Handling, History, Queue, Seek

SAME_MOMENT_SECONDS = 1e-6
"""Times that differ by less count as equal."""
PASSED_ON_SECONDS = 60.0
"""For how long a member may still deliver messages of a queue that another member has taken over and committed meanwhile."""


def everything_is_handled_at_least_once(history: History) -> Iterator[str]:
    """Every acknowledged message of a topic is handled to the end by each group that subscribes to it."""
    finished = {(one.group, one.number) for one in history.handlings if one.done}
    for group, topic in sorted(history.subscriptions):
        for put in history.puts:
            if not put.acknowledged or put.queue[0] != topic or not history.survives(put.epoch, len(history.ends)):
                continue
            if (group, put.number) not in finished:
                yield f"message {put.number} at {put.queue}@{put.queue_offset} was never handled by {group}"


def nothing_is_acknowledged_before_it_was_handled(history: History) -> Iterator[str]:
    """A group's offset is never behind a message that no member has handled to the end, sent back or passed by a seek."""
    settled: dict[tuple[str, Queue, int], float] = {}
    for one in history.handlings:
        if one.settled_at is not None:
            key = (one.group, one.queue, one.queue_offset)
            settled[key] = min(settled.get(key, one.settled_at), one.settled_at)
    places: dict[Queue, dict[int, int]] = {}
    for put in history.puts:
        if put.acknowledged:
            places.setdefault(put.queue, {})[put.queue_offset] = put.number
    judged: dict[tuple[str, Queue], int] = {}
    for commit in history.member_commits:
        if not history.consumers_follow(commit.epoch):
            continue  # the group may be ahead of a log that has lost its unsynced tail
        before = judged.get((commit.group, commit.queue), 0)
        for offset in range(before, commit.offset):
            number = places.get(commit.queue, {}).get(offset)
            if number is None:
                continue
            at = settled.get((commit.group, commit.queue, offset))
            if history.passed_to(commit.group, commit.queue, offset, commit.seconds) > offset:
                continue
            if at is None or at > commit.seconds + SAME_MOMENT_SECONDS:
                yield (
                    f"{commit.group} has committed {commit.offset} of {commit.queue} at {commit.seconds:.2f} s, and message "
                    f"{number} at {offset} was {'never handled' if at is None else f'handled at {at:.2f} s'}"
                )
        judged[commit.group, commit.queue] = max(before, commit.offset)


def nothing_committed_is_handed_out_again(history: History) -> Iterator[str]:
    """What a group has committed is delivered to none of its members again, except while a queue changes its owner.

    A crash of the broker may lose the commits of the last `commit_seconds` before it. A commit counts from the moment at which
    all slaves have copied it: a member that cannot reach the master asks a slave, which knows no later one. After a seek,
    commits count that are made when the master has its offset.
    """
    if not history.consumers_follow(len(history.ends)):
        return  # offsets of messages that a power cut lost are assigned to other messages
    commits: dict[tuple[str, Queue], list[Commit]] = {}
    for commit in history.common_commits:
        commits.setdefault((commit.group, commit.queue), []).append(commit)
    moves = {(seek.group, seek.queue): ([seek], list[Commit]()) for seek in history.seeks}
    for seek in history.seeks:
        moves[seek.group, seek.queue][0].append(seek)
    for commit in history.member_commits:
        if (commit.group, commit.queue) in moves:
            moves[commit.group, commit.queue][1].append(commit)
    for one in history.handlings:
        void_until = _void_until(one, *moves.get((one.group, one.queue), ((), ())))
        for commit in commits.get((one.group, one.queue), ()):
            if commit.offset <= one.queue_offset or commit.seconds <= void_until:
                continue
            kept = commit.seconds + PASSED_ON_SECONDS < one.began and not any(
                ended - history.commit_seconds <= commit.seconds <= ended <= one.began for ended in history.ended_at
            )
            if kept:
                yield (
                    f"{one.member} was given {one.queue}@{one.queue_offset} at {one.began:.2f} s, and {one.group} had "
                    f"committed {commit.offset} at {commit.seconds:.2f} s"
                )
                break


def _void_until(one: Handling, seeks: Sequence[Seek], commits: Sequence[Commit]) -> float:
    """When the commits that rule a message out begin, if a member has moved its queue back.

    The offset of before the seek is committed until the broker has the new one.

    Args:
        one: the delivery of the message.
        seeks: those of the queue.
        commits: what the master had of the queue.
    """
    moved = max((seek.seconds for seek in seeks if seek.offset <= one.queue_offset and seek.seconds <= one.began), default=None)
    if moved is None:
        return -inf
    back = (commit.seconds for commit in commits if commit.seconds >= moved and commit.offset <= one.queue_offset)
    return min(back, default=inf)


def paused_queues_hand_out_nothing(history: History) -> Iterator[str]:
    """A member begins to handle no message of a queue between `pause` and `resume`."""
    for pause in history.pauses:
        for one in history.handlings[pause.since : pause.until]:
            if (one.member, one.queue) == (pause.member, pause.queue):
                yield f"{one.member} was given {one.queue}@{one.queue_offset} at {one.began:.2f} s, in a pause of the queue"


def seeks_continue_at_their_offset(history: History) -> Iterator[str]:
    """After a seek a member is given the queue from the offset on: none that was prefetched, and none before it or left out."""
    if not history.consumers_follow(len(history.ends)):
        return  # the offset may be behind the end of a log that has lost its tail
    for seek in history.seeks:
        after = history.handlings[seek.since : seek.until] if seek.exact else ()
        expected = seek.offset
        for one in after:
            if (one.member, one.queue) != (seek.member, seek.queue):
                continue
            if not seek.offset <= one.queue_offset <= expected:
                yield (
                    f"{seek.member} sought {seek.offset} of {seek.queue} at {seek.seconds:.2f} s, and was given "
                    f"{one.queue_offset} at {one.began:.2f} s, when {expected} was next"
                )
                break
            expected = max(expected, one.queue_offset + 1)


def ordered_queues_are_handled_in_order(history: History) -> Iterator[str]:
    """A message of an ordered queue is handled only after the one before it was handled to the end, or passed by a seek."""
    ends: dict[tuple[str, Queue], int] = {}
    for one in _ordered(history):
        key = (one.group, one.queue)
        expected = ends.setdefault(key, one.queue_offset)
        if one.queue_offset > history.passed_to(*key, expected, one.began):
            yield (
                f"{one.member} began {one.queue}@{one.queue_offset} at {one.began:.2f} s, when {expected} was "
                "the first that had not been handled"
            )
            ends[key] = one.queue_offset
        if one.done:
            ends[key] = max(ends[key], one.queue_offset + 1)


def ordered_queues_have_one_owner(history: History) -> Iterator[str]:
    """No two members of a group handle messages of one ordered queue at the same time."""
    last: dict[tuple[str, Queue], Handling] = {}
    for one in _ordered(history):
        key = (one.group, one.queue)
        before = last.get(key)
        at_once = before is not None and before.member != one.member and one.began < before.ended - SAME_MOMENT_SECONDS
        if before is not None and at_once and not _leases_lost(history, one.began):
            yield (
                f"{one.member} began {one.queue}@{one.queue_offset} at {one.began:.2f} s, while {before.member} handled "
                f"{before.queue_offset} until {before.ended:.2f} s"
            )
        if before is None or one.ended >= before.ended:
            last[key] = one


def _leases_lost(history: History, seconds: float) -> bool:
    """Whether at that time members may believe in leases that the master does not know of.

    A master that began with an older copy of its store lacks the leases that were given after the copy was made, and the slave
    that takes its place lacks those that this master gave; one that did not sync its log has lost the last ones with the power.
    Each owner continues until it asks for a renewal.
    """
    ends = (*history.ended_at, inf)
    spans = [(ends[life], ends[life + 1]) for life in history.restored]
    if not history.sync_flush:
        spans += [(at, at) for end, at in zip(history.ends, history.ended_at, strict=False) if end is End.POWER]
    return any(since <= seconds <= until + OWNER_BELIEVES_SECONDS for since, until in spans)


def _ordered(history: History) -> list[Handling]:
    return sorted((one for one in history.handlings if one.ordered), key=lambda one: one.began)
