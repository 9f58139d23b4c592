"""What outcomes of puts mean for producers and counters."""

from __future__ import annotations

from ...remoting.codes import ResponseCode
from ...store.put_side import PutBatch
from ...store.statuses import PutStatus
from ..stats import Stats

_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutStatus.DISK_FULL: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}
assert _CODES.keys() == set(PutStatus), "every outcome of a put has an answer"
UNKNOWN_REMARK = "the log was truncated or closed while the message waited; whether it is stored is unknown"


def response_code(status: PutStatus) -> ResponseCode:
    """The response code for a put that ended with `status`."""
    return _CODES[status]


def count_puts(stats: Stats, topics: list[str], batch: PutBatch) -> None:
    """Count the messages of a put; `topics` has the topic of each."""
    statuses, sizes = batch.statuses, batch.sizes
    stored = statuses.count(PutStatus.PUT_OK)
    stats.put_failed(len(topics) - stored)
    if len(different := set(topics)) == 1:
        stats.topic_put(different.pop(), stored, sum(sizes))
        return
    for topic, status, size in zip(topics, statuses, sizes, strict=True):
        stats.topic_put(topic, int(status is PutStatus.PUT_OK), size)
