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

FORGOTTEN = PeerId("?")
"""The vote of a node that does not know for whom it has voted, because it has lost its disk."""
