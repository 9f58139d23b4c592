"""How puts and gets end, in RocketMQ's words."""

from __future__ import annotations

from enum import Enum, auto


class PutStatus(Enum):
    """How a put ended."""

    PUT_OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    SLAVE_NOT_AVAILABLE = auto()
    FLUSH_SLAVE_TIMEOUT = auto()
    SERVICE_NOT_AVAILABLE = auto()
    CREATE_MAPPED_FILE_FAILED = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    OS_PAGE_CACHE_BUSY = auto()
    IN_SYNC_REPLICAS_NOT_ENOUGH = auto()
    DISK_FULL = auto()
    """The disk has no room; RocketMQ has no such status, and the answer has its SERVICE_NOT_AVAILABLE."""
    UNKNOWN_ERROR = auto()

    @property
    def stored(self) -> bool:
        """Whether the message is in the log and consumers will see it."""
        return self in _STORED


_STORED = frozenset(
    (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT)
)


class GetStatus(Enum):
    """How a get ended."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    MESSAGE_DAMAGED = auto()
    """The message is damaged on the disk and not handed out; RocketMQ has no such status."""
    OFFSET_RESET = auto()
    """An administrator has reset the offset of the group, which this answer reports; the store itself never returns it."""
