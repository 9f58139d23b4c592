"""The transfer of leadership before a node stops, and when its disk fails."""

from __future__ import annotations

from ...world.events import get_logger
from ..raft.core import Raft
from ..raft.errors import Refused
from ..raft.progress import Replicator
from .java_core import JavaCore
from .java_state import Follower

log = get_logger(__name__)


def hand_over(core: Raft | JavaCore, reason: str) -> bool:
    """Begin to transfer leadership to the voter with the highest `match_index`; return whether a transfer is in progress.

    Args:
        reason: why this node gives up leadership; it is logged.
    """
    led = core.leadership
    if led is None:
        return False
    if led.transfer_to is not None:
        return True
    voters = [one for one in led.group if core.configuration.votes(one.peer)]
    if not voters:
        return False
    best = max(voters, key=_progress).peer
    try:
        core.transfer_leadership(best)
    except Refused as error:
        log.warning("leadership_not_handed_over", peer=best, wanted_because=reason, reason=str(error))
        return False
    log.info("leadership_being_handed_over", peer=best, term=core.term, reason=reason)
    return True


def _progress(replicator: Replicator | Follower) -> tuple[int, int]:
    return replicator.match_index, replicator.contact_tick
