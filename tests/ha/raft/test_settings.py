"""The settings that a node refuses, because its guarantees would not hold with them."""

from __future__ import annotations

import pytest

from ledgermq.ha.raft.settings import Settings


@pytest.mark.parametrize(
    ("heartbeat", "election_min", "election_max"), [(0, 15, 30), (15, 15, 30), (5, 31, 30)], ids=["none", "late", "reversed"]
)
def test_time_outs_that_do_not_grow_are_refused(heartbeat: int, election_min: int, election_max: int) -> None:
    """A follower would campaign although its leader is alive."""
    with pytest.raises(ValueError, match=rf"time-outs must grow.*\(got {heartbeat}, {election_min}, {election_max}\)"):
        Settings(heartbeat_ticks=heartbeat, election_ticks_min=election_min, election_ticks_max=election_max)
