"""What a follower receives from its leader, in either dialect: entries, or where its ledger begins anew."""

from __future__ import annotations

import attrs

from ...raft.units import LogIndex
from .walk import Walked


@attrs.frozen(eq=False)
class ReceivedEntries:
    """The payload of a batch received from a leader."""

    walked: Walked
    entries: memoryview


@attrs.frozen
class BeginAnew:
    """The payload of a snapshot: the position where the ledger begins, and the configuration there."""

    position: int
    configuration_index: LogIndex
    configuration_body: bytes
