"""Properties of what is stored and read. Each function's docstring is the specification; it returns violations as sentences.

The operations are puts (acknowledged, refused or unknown), reads by consumers, and snapshots of all queues after each start
of the node; the node's lives end by clean stop, kill or power cut. An acknowledgement promises survival of all three under
SYNC_FLUSH and of the first two under ASYNC_FLUSH.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ..history import Commit, End, Held, History, Put, Queue, Snapshot


def nothing_acknowledged_is_lost(history: History) -> Iterator[str]:
    """An acknowledged message is at its queue offset in every later snapshot for which the acknowledgement holds.

    Messages that have expired, or whose topic was deleted, are not checked.
    """
    for snapshot in history.snapshots:
        stored = {
            (queue, message.queue_offset): message.number for queue, messages in snapshot.queues.items() for message in messages
        }
        for put in history.puts:
            if not put.acknowledged or put.epoch >= snapshot.epoch or not history.keeps(put, snapshot.epoch):
                continue
            if put.queue_offset < _gone_below(history, snapshot, put.queue):
                continue
            found = stored.get((put.queue, put.queue_offset))
            if found != put.number:
                yield (
                    f"message {put.number}, acknowledged in life {put.epoch} at {_place(put)}, is not there in life "
                    f"{snapshot.epoch}: {'nothing' if found is None else f'message {found}'} is"
                )


def nothing_expires_early(history: History) -> Iterator[str]:
    """An acknowledged message is below its queue's min offset only if it was kept long enough, or its topic was deleted."""
    if history.reserved_ms == inf:
        return
    for snapshot in history.snapshots:
        for put in history.puts:
            low = snapshot.bounds.get(put.queue, (0, 0))[0]
            if (
                not put.acknowledged
                or put.epoch >= snapshot.epoch
                or not snapshot.deleted_below.get(put.queue, 0) <= put.queue_offset < low
            ):
                continue
            age = snapshot.wall_ms - put.sent_ms
            if age < history.reserved_ms:
                yield f"message {put.number} at {_place(put)} is {age} ms old, and its queue begins at {low}"


def nothing_read_is_lost(history: History) -> Iterator[str]:
    """A message that a consumer has read stays at its offset, as long as an acknowledgement of it would hold.

    Otherwise the consumer is ahead of the log, and the offset is assigned to another message, which it will never read. A slave
    that becomes the master need not have messages that were not acknowledged as replicated.
    """
    acknowledged = {put.number: put for put in history.puts if put.acknowledged}
    for snapshot in history.snapshots:
        stored = {
            (queue, message.queue_offset): message.number for queue, messages in snapshot.queues.items() for message in messages
        }
        for read in history.reads:
            put = acknowledged.get(read.number)
            kept = history.survives(read.epoch, snapshot.epoch) or (put is not None and history.keeps(put, snapshot.epoch))
            if read.epoch >= snapshot.epoch or not kept:
                continue
            if put is None and any(read.epoch <= life < snapshot.epoch for life in history.promotions):
                continue
            if read.queue_offset < _gone_below(history, snapshot, read.queue):
                continue
            found = stored.get((read.queue, read.queue_offset))
            if found != read.number:
                yield (
                    f"message {read.number}, read in life {read.epoch} at {read.queue}@{read.queue_offset}, is not there in "
                    f"life {snapshot.epoch}: {'nothing' if found is None else f'message {found}'} is"
                )


def queue_offsets_are_dense(history: History) -> Iterator[str]:
    """A queue has a message at every offset from its min to its max, and at no other."""
    for snapshot in history.snapshots:
        for queue, messages in snapshot.queues.items():
            low, high = snapshot.bounds[queue]
            if [message.queue_offset for message in messages] != list(range(low, high)):
                yield f"life {snapshot.epoch}: {queue} says [{low}, {high}) and holds {_offsets(snapshot, queue)}"


def queue_offsets_are_given_once(history: History) -> Iterator[str]:
    """No two messages are acknowledged with one queue offset while the acknowledgement of the first holds."""
    given: dict[tuple[tuple[str, int], int], Put] = {}
    for put in history.puts:
        if not put.acknowledged:
            continue
        place = (put.queue, put.queue_offset)
        first = given.setdefault(place, put)
        if first is not put:
            if history.keeps(first, max(put.epoch, put.answered, first.answered)):
                yield f"{_place(put)} was given to message {first.number} and to message {put.number}"
            given[place] = put


def nothing_is_stored_twice_or_invented(history: History) -> Iterator[str]:
    """A stored message was sent to that queue and is stored once; a refused message is stored nowhere.

    Bytes that were written and withdrawn may return in one case: after a power cut before the next sync.
    """
    sent = {put.number: put for put in history.puts}
    for snapshot in history.snapshots:
        seen = set[int]()
        for queue, messages in snapshot.queues.items():
            for message in messages:
                put = sent.get(message.number)
                if put is None or put.queue[0] != queue[0] or (put.queue != queue and _knows_queue(history, put)):
                    yield f"life {snapshot.epoch}: {queue}@{message.queue_offset} holds {message.number}, not sent there"
                elif put.refused and not (put.withdrawn and End.POWER in history.ends[put.epoch : snapshot.epoch]):
                    yield f"life {snapshot.epoch}: message {message.number} was refused and is stored at {_place(put)}"
                if message.number in seen:
                    yield f"life {snapshot.epoch}: message {message.number} is stored twice"
                seen.add(message.number)


def order_within_a_queue_holds(history: History) -> Iterator[str]:
    """Messages that one producer sent to a queue one after the other are stored in that order, also by physical offset."""
    producers = {put.number: put.producer for put in history.puts}
    for snapshot in history.snapshots:
        for queue, messages in snapshot.queues.items():
            last: dict[int, int] = {}
            physical = timestamp = -1
            for message in messages:
                producer = producers.get(message.number, -1)
                if message.number <= last.get(producer, -2):
                    yield f"life {snapshot.epoch}: {queue} holds {message.number} behind {last[producer]}"
                if message.physical_offset <= physical:
                    yield f"life {snapshot.epoch}: {queue}@{message.queue_offset} lies before its predecessor in the log"
                if message.store_timestamp < timestamp:
                    yield f"life {snapshot.epoch}: {queue}@{message.queue_offset} was stored before its predecessor"
                last[producer] = message.number
                physical, timestamp = message.physical_offset, message.store_timestamp


def batches_are_whole(history: History) -> Iterator[str]:
    """Either all messages of a batch that was sent together are stored, side by side, or none.

    A batch that was not acknowledged may be torn by a power cut, and by the promotion or election of a node with a part of it.
    """
    batches: dict[int, list[Put]] = {}
    for put in history.puts:
        if put.batch and not put.refused:
            batches.setdefault(put.batch, []).append(put)
    for snapshot in history.snapshots:
        stored = {one.number: (queue, one.queue_offset) for queue, some in snapshot.queues.items() for one in some}
        for batch, puts in batches.items():
            if puts[0].epoch < snapshot.epoch and _must_be_whole(history, puts[0], snapshot.epoch):
                places = [stored.get(put.number) for put in puts]
                if _is_torn(puts[0], places, history, snapshot):
                    yield f"life {snapshot.epoch}: batch {batch} lies at {places}"


def _must_be_whole(history: History, put: Put, until: int) -> bool:
    if put.acknowledged:
        return history.keeps(put, until)
    replaced = history.elects or any(put.epoch <= life < until for life in history.promotions)
    return not replaced and End.POWER not in history.ends[put.epoch : until]


def _is_torn(first: Put, places: list[tuple[Queue, int] | None], history: History, snapshot: Snapshot) -> bool:
    """Whether the messages of a batch are not side by side, or only some of those that have not expired are there."""
    begins = ((queue, offset - at) for at, (queue, offset) in ((at, place) for at, place in enumerate(places) if place))
    begin = (first.queue, first.queue_offset) if first.acknowledged else next(begins, None)
    if begin is None:
        return False
    queue, offset = begin
    low = _gone_below(history, snapshot, queue)
    return any(place != (queue, offset + at) and (place is not None or offset + at >= low) for at, place in enumerate(places))


def keys_find_their_messages(history: History) -> Iterator[str]:
    """A query by key finds every stored message with that key."""
    keys = {put.number: put.key for put in history.puts}
    for snapshot in history.snapshots:
        for queue, messages in snapshot.queues.items():
            for message in messages:
                key = keys.get(message.number, "")
                if key and key in snapshot.by_key and message.number not in snapshot.by_key[key]:
                    place = f"{queue}@{message.queue_offset}"
                    yield f"life {snapshot.epoch}: message {message.number} at {place} is not found by {key}"


def acknowledged_puts_are_on_slaves(history: History) -> Iterator[str]:
    """When a producer gets SEND_OK, as many nodes have the message as the mode of the master promises."""
    for put in history.puts:
        if put.acknowledged and put.copies is not None and put.copies < history.copies:
            yield f"message {put.number} was acknowledged at {_place(put)} with {put.copies} of {history.copies} copies"


def slaves_keep_what_they_confirmed(history: History) -> Iterator[str]:
    """A slave that has an acknowledged message keeps it until it loses power, or an operator gives up its log by name."""
    if history.copies == 1:  # puts did not wait for slaves
        return
    losses: dict[str, list[float]] = {}
    for loss in history.named_losses:
        losses.setdefault(loss.host, []).append(loss.seconds)
    before: dict[str, Held] = {}
    for look in history.held:
        last, before[look.host] = before.get(look.host), look
        if last is None or look.end >= last.end or any(last.seconds <= at <= look.seconds for at in losses.get(look.host, ())):
            continue
        for put in history.puts:
            if put.acknowledged and put.answered_at <= last.seconds and look.end <= put.physical_offset < last.end:
                yield (
                    f"{look.host} held message {put.number}, acknowledged at physical offset {put.physical_offset}, at "
                    f"{last.seconds:.2f} s, and its log ends at {look.end} at {look.seconds:.2f} s"
                )


def acknowledged_puts_keep_their_order(history: History) -> Iterator[str]:
    """What one producer sends to a queue after an acknowledgement is stored behind the acknowledged message."""
    last: dict[tuple[int, tuple[str, int]], Put] = {}
    for put in history.puts:
        if not put.acknowledged:
            continue
        before = last.get((put.producer, put.queue))
        last[put.producer, put.queue] = put
        if before is None or not history.keeps(before, max(put.answered, put.epoch)):
            continue
        if put.queue_offset <= before.queue_offset:
            yield f"message {put.number} lies at {_place(put)}, message {before.number}, sent before, at {_place(before)}"


def acknowledged_puts_follow_real_time(history: History) -> Iterator[str]:
    """A message sent after another one was acknowledged is stored behind it, in queue and log, whichever producer sent it.

    A power cut that loses a part of the log lets places be given again, which is not checked.
    """
    if not history.survives(0, len(history.ends)):
        return
    timed = [put for put in history.puts if put.acknowledged and put.answered_at < inf and put.physical_offset >= 0]
    answers = sorted(timed, key=lambda put: put.answered_at)
    position, newest, by_queue = 0, -1, dict[tuple[str, int], Put]()
    for put in sorted(timed, key=lambda put: put.sent_at):
        while position < len(answers) and answers[position].answered_at < put.sent_at:
            answered = answers[position]
            newest = max(newest, answered.physical_offset)
            last = by_queue.get(answered.queue)
            if last is None or answered.queue_offset > last.queue_offset:
                by_queue[answered.queue] = answered
            position += 1
        last = by_queue.get(put.queue)
        if last is not None and put.queue_offset <= last.queue_offset:
            before = f"message {last.number} was acknowledged at {_place(last)}"
            yield f"message {put.number} lies at {_place(put)}, and was sent after {before}"
        if put.physical_offset <= newest:
            where = f"at {put.physical_offset} in the log"
            yield f"message {put.number} lies {where}, and was sent after one at {newest} was acknowledged"


def leaders_show_all_that_is_acknowledged(history: History) -> Iterator[str]:
    """A leader that answers a pull after a message was acknowledged does not report that its queue ends before that message.

    A power cut that loses a part of the log shortens queues, which is not checked.
    """
    if not history.survives(0, len(history.ends)):
        return
    timed = sorted((put for put in history.puts if put.acknowledged and put.answered_at < inf), key=lambda put: put.answered_at)
    newest, position = dict[tuple[str, int], int](), 0
    for pull in sorted(history.pulls, key=lambda pull: pull.began):
        while position < len(timed) and timed[position].answered_at < pull.began:
            put = timed[position]
            newest[put.queue] = max(newest.get(put.queue, -1), put.queue_offset)
            position += 1
        if pull.led and pull.empty and pull.queue_offset <= newest.get(pull.queue, -1):
            yield (
                f"{pull.host}, which leads, says at {pull.began:.3f} s that {pull.queue} ends before {pull.queue_offset}, "
                f"and {newest[pull.queue]} had been acknowledged"
            )


def readers_see_all_in_order(history: History) -> Iterator[str]:
    """Each reader gets the messages of a queue offset by offset: it may get one again, but skips only what has expired.

    A reader that is ahead of a log which lost its unsynced tail skips what is stored there next, so it is not checked.
    """
    expected: dict[tuple[str, tuple[str, int]], int] = {}
    for read in history.reads:
        if not history.consumers_follow(len(history.ends)):
            return
        key = (read.reader, read.queue)
        if read.queue_offset > max(expected.setdefault(key, read.queue_offset), history.expired.get(read.queue, 0)):
            yield f"{read.reader} was given {read.queue}@{read.queue_offset} after {expected[key] - 1}"
        expected[key] = max(expected[key], read.queue_offset + 1)


def committed_offsets_never_retreat(history: History) -> Iterator[str]:
    """While a broker runs, and over a clean stop, the offset of a group in a queue never decreases.

    A kill or a power cut may lose what was committed in the last `commit_seconds` before it, and any end of a life may lose
    what the disk refused to write (`commit_seconds` is infinite then). A power cut that loses a part of the log rightly moves
    groups back, which is not checked.
    """
    looks: dict[tuple[str, tuple[str, int]], list[Commit]] = {}
    for look in history.commits:
        if not history.consumers_follow(look.epoch):
            continue
        before = looks.setdefault((look.group, look.queue), [])
        least: Commit | None = None
        for earlier in reversed(before):
            if least is None or earlier.offset < least.offset:
                least = earlier
            if _outlives(history, earlier, look.epoch):
                break
        else:
            least = None  # crashes may have lost all of them
        if least is not None and look.offset < least.offset:
            yield (
                f"{look.group} stood at {least.offset} of {look.queue} at {least.seconds:.2f} s, "
                f"and stands at {look.offset} at {look.seconds:.2f} s"
            )
        before.append(look)


def _outlives(history: History, commit: Commit, epoch: int) -> bool:
    """Whether a commit must have survived the end of the life in which it was seen, up to the life `epoch`."""
    life = commit.epoch
    if life == epoch:
        return True
    if history.ends[life] is End.CLEAN:
        return history.commit_seconds < inf
    return commit.seconds <= history.ended_at[life] - history.commit_seconds


def retries_end_in_the_dead_letters(history: History) -> Iterator[str]:
    """A message that fails every time is tried once and `retries_max` times more, and is then a dead letter.

    Delivery is at least once, so there may be several dead letters, but no attempt is left out, no broker delivers a copy more
    often than that, and a message that its consumer has handled is no dead letter. A client delivers a message again itself if
    no broker accepts it as sent back.
    """
    for trial in history.trials:
        hopeless = trial.failures > history.retries_max
        subject = f"message {trial.number}, which fails {'always' if hopeless else f'{trial.failures} times'},"
        if trial.dead and not hopeless:
            yield f"{subject} is a dead letter"
        elif min(trial.dead, default=history.retries_max + 1) <= history.retries_max:
            yield f"{subject} is a dead letter after {min(trial.dead)} failures, with {history.retries_max} retries"
        if max(trial.copies, default=0) > history.retries_max:
            yield f"{subject} was tried again after {max(trial.copies)} failures, with {history.retries_max} retries"
        if not trial.acknowledged or not history.consumers_follow(len(history.ends)):
            continue  # a consumer that is ahead of a log that lost its unsynced tail skips what is stored there next
        missing = set(range(min(trial.failures, history.retries_max) + 1)) - trial.attempts
        if missing:
            yield f"{subject} was never tried after {min(missing)} failures"
        elif hopeless and not trial.dead:
            yield f"{subject} is no dead letter"
        elif not hopeless and not trial.done:
            yield f"{subject} was never taken"


def _gone_below(history: History, snapshot: Snapshot, queue: Queue) -> int:
    """The first offset of a queue that must be there: its min offset, as far as messages expire or topics are deleted."""
    low = snapshot.bounds.get(queue, (0, 0))[0]
    if history.reserved_ms < inf or any(deletion.topic == queue[0] for deletion in history.deletions):
        return low
    return min(low, max(snapshot.deleted_below.get(queue, 0), history.expired.get(queue, 0)))


def _knows_queue(history: History, put: Put) -> bool:
    """Whether the producer knows in which queue its message is, if it is stored."""
    return put.acknowledged or not history.clients_choose_queues


def _place(put: Put) -> str:
    return f"{put.queue}@{put.queue_offset}"


def _offsets(snapshot: Snapshot, queue: tuple[str, int]) -> list[int]:
    return [message.queue_offset for message in snapshot.queues[queue]]
