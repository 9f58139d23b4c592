"""Properties of what administrators change: topics, groups, offsets, settings."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ..history import Change, Deletion, End, History, Put, Snapshot

UNKNOWN_SECONDS = 60.0
"""A request without an answer may still be carried out for this long, because it may be in transit on a path that was cut."""


def answered_changes_hold(history: History) -> Iterator[str]:
    """Each look at a setting finds the value of the last change that was answered, or of one without an answer.

    A change without an answer may have waited at a host that hung, and may so be carried out after later ones.

    A kill loses none, and a power cut those of the last `change_seconds` before it; a node that takes the place of the master
    may lack any. A clean stop loses none, unless the disk failed during it.
    """
    changes: dict[str, list[Change]] = {}
    for change in history.changes:
        changes.setdefault(change.key, []).append(change)
    for look in history.looks:
        allowed, last = list[str | None](), None
        for change in reversed(changes.get(look.key, [])):
            if change.began > max(look.seconds, look.until):
                continue
            if last is None or _may_follow(change, last):
                allowed.append(change.value)
            if last is None and change.answered_at < look.seconds and _is_kept(history, change, look.epoch):
                last = change
        if last is None:
            allowed.append(None)
        if look.value not in allowed:
            yield f"{look.key} is {look.value} on {look.host} at {look.seconds:.2f} s, and may be {allowed}"


def _may_follow(change: Change, last: Change) -> bool:
    """Whether a change that began earlier may have been carried out after `last`, which was answered."""
    return change.answered_at == inf and change.began > last.began - UNKNOWN_SECONDS


def _is_kept(history: History, change: Change, epoch: int) -> bool:
    """Whether an answered change must have survived the end of every life since."""
    if any(life < epoch and change.answered_at < over for life, over in history.failed_stops.items()):
        return False
    for life in range(change.epoch, epoch):
        if life in history.promotions:
            return False
        if history.ends[life] is End.POWER and change.answered_at > history.ended_at[life] - history.change_seconds:
            return False
    return True


def offsets_stay_inside_their_queue(history: History) -> Iterator[str]:
    """The offset of a group is never behind the end of its queue: the group would skip the next messages."""
    for position in history.positions:
        if position.offset > position.queue_end:
            yield (
                f"{position.group} stands at {position.offset} of {position.queue} on {position.host} at "
                f"{position.seconds:.2f} s, and the queue ends at {position.queue_end}"
            )


def acknowledged_after_a_deletion_is_readable(history: History) -> Iterator[str]:
    """A message that was sent to a topic after its last deletion, and acknowledged, is in the last snapshot of every node.

    Unlike in other checks, it must be there even if the queue's min offset is above it.
    """
    for snapshot in _last_snapshots(history):
        stored = {(queue, one.queue_offset): one.number for queue, some in snapshot.queues.items() for one in some}
        for put in _sent_after_all_deletions(history):
            if put.acknowledged and history.keeps(put, snapshot.epoch):
                found = stored.get((put.queue, put.queue_offset))
                if found != put.number:
                    yield (
                        f"message {put.number}, acknowledged after the deletion of its topic at "
                        f"{put.queue}@{put.queue_offset}, is not there on {snapshot.host}: {found} is"
                    )


def deleted_messages_never_return(history: History) -> Iterator[str]:
    """A message answered before the deletion of its topic began is in no last snapshot, if the deletion was answered."""
    for snapshot in _last_snapshots(history):
        here = {one.number for some in snapshot.queues.values() for one in some}
        for put in history.puts:
            deletion = next((one for one in history.deletions if _deletes(one, put)), None)
            if deletion is not None and put.number in here and history.survives(deletion.epoch, snapshot.epoch):
                when = f"{deletion.answered_at:.2f} s"
                yield f"message {put.number} was deleted with its topic at {when} and is on {snapshot.host}"


def _deletes(deletion: Deletion, put: Put) -> bool:
    return put.queue[0] == deletion.topic and put.answered_at < deletion.began and deletion.answered_at < inf


def _sent_after_all_deletions(history: History) -> Iterator[Put]:
    ends: dict[str, float] = {}
    for deletion in history.deletions:
        end = min(deletion.answered_at, deletion.began + UNKNOWN_SECONDS)
        ends[deletion.topic] = max(ends.get(deletion.topic, 0.0), end)
    return (put for put in history.puts if put.sent_at > ends.get(put.queue[0], inf))


def _last_snapshots(history: History) -> list[Snapshot]:
    """The last snapshot of each node."""
    return list({snapshot.host: snapshot for snapshot in history.snapshots}.values())
