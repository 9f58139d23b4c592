"""The queue offsets in the logs of stores, whatever is derived from these logs, and whatever clients were told."""

from __future__ import annotations

from array import array

from ledgermq.ha.dledger.offline import all_log_files
from ledgermq.store.offline import is_in_queue, read_log
from ledgermq.world.disk import Disk


def queue_offset_faults(disk: Disk, root: str) -> list[str]:
    """Where the queue offsets in the log of a store do not rise by one from record to record of a queue, as sentences.

    They do so in every log: after a deletion a queue goes on where it was, and what was refused or cut is not in the log. Two
    records with one offset are two messages of which readers see one, and a queue that is read by its entries has no trace of
    the other.

    Raises:
        OSError: a file of the store cannot be read.
    """
    faults = list[str]()
    stretches: dict[tuple[str, int], tuple[int, array[int]]] = {}
    """For each queue, an offset, and where the records with this and the following offsets lie."""
    for record in read_log(all_log_files(disk, root)):
        if not is_in_queue(record):
            continue
        topic, queue_id, offset = record.topic, record.span.queue_id, record.span.queue_offset
        first, places = stretches.setdefault((topic, queue_id), (offset, array("q")))
        at = offset - first
        if at == len(places):
            places.append(record.offset)
        elif 0 <= at < len(places):
            faults.append(
                f"{topic} queue {queue_id}: the records at {places[at]} and {record.offset} both have offset {offset}"
            )
        else:
            expected = first + len(places)
            faults.append(f"{topic} queue {queue_id}: the record at {record.offset} has offset {offset}, {expected} was next")
            stretches[topic, queue_id] = offset, array("q", (record.offset,))
    return faults
