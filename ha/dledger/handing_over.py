"""The transfer of leadership before a node stops, and when its disk fails."""

from __future__ import annotations

from typing import Any

from ...world.events import get_logger
from ..raft.errors import Refused
from .dialect import Core, Progress

log = get_logger(__name__)


def hand_over(core: Core[Any], reason: str) -> bool:
    """Begin to transfer leadership to the voter with the highest `match_index` that can take it; return whether one does.

    Args:
        reason: why this node gives up leadership; it is logged.
    """
    led = core.leadership
    if led is None:
        return False
    if led.transfer_to is not None:
        return True
    for voter in sorted((one for one in led.group if core.configuration.votes(one.peer)), key=_progress, reverse=True):
        try:
            core.transfer_leadership(voter.peer)
        except Refused as error:
            log.warning("leadership_not_handed_over", peer=voter.peer, wanted_because=reason, reason=str(error))
        else:
            log.info("leadership_being_handed_over", peer=voter.peer, term=core.term, reason=reason)
            return True
    return False


def _progress(replicator: Progress) -> tuple[int, int]:
    return replicator.match_index, replicator.contact_tick
