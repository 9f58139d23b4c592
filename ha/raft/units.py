"""The types of the core's indexes, terms and addresses.

An index and a term are plain integers, because nearly every line of the core does arithmetic with them.
"""

from __future__ import annotations

from typing import NewType, TypeAlias

LogIndex: TypeAlias = int
"""Number of an entry in the log. The first entry of a fresh group has index 0, as in DLedger."""

Term: TypeAlias = int
"""Number of a term. The first elected leader has term 1; DLedger's Java nodes may also lead in term 0."""

PeerId = NewType("PeerId", str)
"""Name of one member of a group, for example `n0` (SOFA-JRaft's `PeerId`). The shell maps it to an address."""

NO_INDEX: LogIndex = -1
"""The index before the first entry of a fresh group."""

NO_TERM: Term = -1
"""The term of `NO_INDEX`; it is lower than the term of any entry."""

TERM_LEAD_MAX = 1 << 32
"""How far the term of another node may be ahead of a node's own; messages of a higher one are refused and change nothing.

Otherwise one forged or damaged message could bring a group to the last number that a term can have, behind which it could elect
nobody. A term is an election, which takes at least 0.3 s, so an honest group would need 40 years of nothing else for this lead.
"""
TERM_MAX = 1 << 62
"""The highest term that a node starts with or accepts, so that those of the next elections fit into the 8 bytes of a term."""

FORGOTTEN = PeerId("?")
"""The vote of a node that does not know for whom it has voted, because it has lost its disk."""


def highest_acceptable(own: Term) -> Term:
    """The highest term that a node in the term `own` accepts from another node; one that was never in any term accepts all."""
    return min(own + TERM_LEAD_MAX, TERM_MAX) if own else TERM_MAX
