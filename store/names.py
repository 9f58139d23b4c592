"""The one place that checks names and numbers which become paths, sizes and offsets of a store's files.

They come from records of a peer's log, from control records, from directories and from requests. RocketMQ uses topics unescaped
as names of directories, so a topic is checked before any path is made of it: what passes stays below `consumequeue/`.
"""

from __future__ import annotations

TOPIC_PATH_BYTES_MAX = 255
"""The longest name of a directory on the file systems of stores."""
QUEUE_ID_MAX = 0x7FFFFFFF
"""Queue ids are Java ints."""
QUEUE_OFFSET_MAX = (1 << 56) - 1
"""Above this offset, the byte position of a queue unit comes near the end of a Java long. At a million messages a second, a
queue reaches it after two thousand years."""


def queue_fault(topic: str, queue_id: int) -> str | None:
    """Return why a queue cannot have files of its own, or None if it can."""
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        return f"queue ids go from 0 to {QUEUE_ID_MAX} (got {queue_id})"
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return f"the topic {topic[:200]!r} cannot be the name of a directory"
    if len(encoded := topic.encode("utf-8", "replace")) > TOPIC_PATH_BYTES_MAX:
        return f"the topic has {len(encoded)} bytes, and a name of a directory has at most {TOPIC_PATH_BYTES_MAX}"
    return None


def queue_offset_fault(offset: int) -> str | None:
    """Return why no message can have this queue offset, or None if one can."""
    return None if 0 <= offset <= QUEUE_OFFSET_MAX else f"queue offsets go from 0 to {QUEUE_OFFSET_MAX} (got {offset})"


def queue_id_of(name: str) -> int | None:
    """The id of the queue in a directory of this name; None if it is not the name of a queue.

    Only the name that the store itself would give is read: `٣` and `007` are digits too, but no queue's.
    """
    if not (name.isascii() and name.isdecimal()) or len(name) > len(str(QUEUE_ID_MAX)):
        return None
    queue_id = int(name)
    return queue_id if str(queue_id) == name and queue_id <= QUEUE_ID_MAX else None
