"""Bounds of what a name server accepts: names, addresses and the sizes of its tables. Pure.

Any peer that reaches the port may register brokers and topics and put values. Input beyond a bound is refused with a remark,
so that no answer to another peer becomes too large to be sent: a broker whose registration cannot be answered disappears from
all routes.
"""

from __future__ import annotations

from ..remoting.bounds import refuse
from ..remoting.command import FRAME_SIZE_MAX
from ..world.network import Address

ADDRESS_CHARACTERS_MAX = 300
"""The longest address: a host name, brackets, a port and spaces around them. A longer one is refused."""
TOPIC_CHARACTERS_MAX = 512
"""The longest name of a topic; retry topics of groups with long names are the longest. A longer one is refused."""
VALUE_CHARACTERS_MAX = 32 * 1024
"""The longest value of the KV configuration, which an answer carries in its header; a longer one is refused."""
KV_CHARACTERS_MAX = 2 * 1024 * 1024
"""The size of the KV configuration (`KvConfig.characters`), of which one namespace is sent to every broker that registers."""
BROKERS_MAX = 4096
"""How many addresses may be registered at a time, because tools get all of them in one answer."""
BROKERS_OF_CONNECTION_MAX = 8
"""How many addresses one connection may register, because one turn of the event loop removes them when it ends."""
QUEUE_ENTRIES_MAX = 2_000_000
"""How many topics all broker names together may have, at some 200 bytes each besides the names. A registration keeps the broker
registered with the topics that fit; the others are left out, as with the two bounds below."""
TOPICS_KNOWN_MAX = 256 * 1024
"""How many different names of topics are kept, because one turn of the event loop lists them in one answer."""
TOPICS_BYTES_MAX = FRAME_SIZE_MAX - 1024 * 1024
"""How many bytes the names of all topics may have as JSON, because one answer lists them."""


def checked_address(kind: str, text: str) -> str:
    """Return an address that clients and brokers can connect to.

    Raises:
        RequestRefused: the text is not an address, or is longer than one.
    """
    if len(text) > ADDRESS_CHARACTERS_MAX:
        raise refuse(f"{kind}: an address has at most {ADDRESS_CHARACTERS_MAX} characters (got {len(text)})")
    try:
        Address.parse(text)
    except ValueError as error:
        raise refuse(f"{kind}: {error}") from error
    return text
