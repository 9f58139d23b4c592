"""What a name server takes: names that answers can carry, addresses that can be reached, tables that fit its memory. Pure.

Everybody who reaches the port may register brokers and topics and put values. What does not fit is refused with a remark, so
that it never makes an answer to somebody else too large to be sent: a broker whose registration cannot be answered leaves all
routes.
"""

from __future__ import annotations

from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused
from ..world.network import Address

NAME_CHARACTERS_MAX = 255
"""Names of clusters, brokers, zones, namespaces and keys."""
TOPIC_CHARACTERS_MAX = 512
"""Names of topics: retry topics of groups with long names are the longest."""
VALUE_CHARACTERS_MAX = 32 * 1024
"""A value of the KV configuration travels in the header of an answer."""
KV_CHARACTERS_MAX = 2 * 1024 * 1024
"""All of the KV configuration. One namespace of it is sent to every broker that registers."""
BROKERS_MAX = 4096
"""Addresses that are registered at a time; tools ask for all of them in one answer."""
BROKERS_OF_CONNECTION_MAX = 8
"""Addresses that one connection registers. All of them leave when it ends, in one turn of the event loop."""
QUEUE_ENTRIES_MAX = 2_000_000
"""Topics of all broker names together, some 200 bytes each."""
TOPICS_KNOWN_MAX = 256 * 1024
"""Topics with different names. All of them are listed in one answer, in one turn of the event loop."""


def refuse(remark: str) -> RequestRefused:
    """A refusal for something that does not fit."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"{remark}; nothing was changed")


def checked_name(kind: str, name: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """A name that may enter a table.

    Raises:
        RequestRefused: it is empty or too long, or holds what cannot be printed.
    """
    if not 1 <= len(name) <= characters_max:
        raise refuse(f"a {kind} has 1 to {characters_max} characters (got {len(name)})")
    if not name.isprintable():
        raise refuse(f"a {kind} consists of printable characters (got {name!r})")
    return name


def checked_address(kind: str, text: str) -> str:
    """An address that clients and brokers can be given.

    Raises:
        RequestRefused: it is none.
    """
    try:
        Address.parse(text)
    except ValueError as error:
        raise refuse(f"{kind}: {error}") from error
    return text
