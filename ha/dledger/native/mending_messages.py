"""Messages by which the nodes of a group replace an entry that was damaged at rest; the Raft core has no part in them."""

from __future__ import annotations

import attrs

from ...raft.units import LogIndex, PeerId, Term


@attrs.frozen
class EntryDamaged:
    """Reports to the leader that the entry `index`, as it sent it, does not have its CRC; the follower has not appended it."""

    sender: PeerId
    to: PeerId
    term: Term
    index: LogIndex


@attrs.frozen
class EntryRequest:
    """Asks for a sound copy of the entry `index`."""

    sender: PeerId
    to: PeerId
    term: Term
    index: LogIndex


@attrs.frozen
class EntryCopy:
    """Answers an EntryRequest; a node without a sound copy does not answer."""

    sender: PeerId
    to: PeerId
    term: Term
    index: LogIndex
    entry: memoryview
    """The whole entry, header included."""


MendingMessage = EntryDamaged | EntryRequest | EntryCopy
