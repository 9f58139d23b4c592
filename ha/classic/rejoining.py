"""The offset from which a slave continues after its log may have diverged; both nodes compute it from Hello and Welcome."""

from __future__ import annotations

from ..errors import HaRefused
from .epochs import common_point
from .layout import Hello, Welcome


def rejoin_point(slave: Hello, master: Welcome) -> int | None:
    """The offset from which a slave continues: both logs are equal before it, and the master still has what follows.

    None if the master cannot continue the slave's log; the slave then begins with an empty log at `fresh_start`.

    Raises:
        HaRefused: the two logs have no history in common.
    """
    if slave.max_offset == slave.min_offset:
        return None
    point = common_point(slave.epochs, slave.max_offset, master.epochs, master.max_offset)
    if point is None:
        raise HaRefused(
            "the two logs share no epoch, so one does not continue the other: move the store of the node that is to be the "
            "slave away and let it begin empty (or, if both were run with haProtocol = rocketmq so far, do so once more)"
        )
    return point if max(slave.min_offset + 1, master.min_offset) <= point else None
