"""Changing the members of a running group: learners first, then voters through a joint configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import trio

from ...store.errors import StoreError
from ...world.network import Address
from ..errors import LeadershipLost
from ..raft.errors import ChangeRefused
from ..raft.units import PeerId
from .native.group_records import GroupConfiguration, configuration_record
from .replica import Replica

CATCH_UP_SECONDS = 0.1
"""Interval, in seconds, at which a leader that adds a voter checks whether it has caught up."""


async def change_members(
    replica: Replica, voters: Mapping[PeerId, Address], learners: Mapping[PeerId, Address], removed: Collection[PeerId]
) -> None:
    """Let some nodes become voters or learners and others leave, and wait until that is committed; all others stay as they are.

    Raises:
        NotLeader, ChangeRefused (Refused), LeadershipLost: the current step failed; earlier ones remain in effect.
    """
    _check_addresses(replica, {**voters, **learners})
    present = replica.core.configuration
    fresh = {peer: voters[peer] for peer in voters if peer not in present.members}
    if fresh:
        await _change(replica, {}, fresh, ())
    while not _caught_up(replica, voters):  # noqa: ASYNC110 - no event reports it
        await trio.sleep(CATCH_UP_SECONDS)
    await _change(replica, voters, learners, removed)


def _check_addresses(replica: Replica, addresses: Mapping[PeerId, Address]) -> None:
    """Raise ChangeRefused if the group could not reach a node at the address that was given for it."""
    members = replica.addresses()
    for peer, address in addresses.items():
        set_here = replica.settings.peers.get(peer, address)
        if set_here != address:
            raise ChangeRefused(
                f"the leader's dLegerPeers has {peer} at {set_here}, which counts: give that address, or set another one there "
                "and start the leader again; membership was not changed"
            )
        for other, taken in members.items():
            if taken == address and other != peer:
                raise ChangeRefused(f"{address} is the address of {other}; membership was not changed")


def _caught_up(replica: Replica, voters: Iterable[PeerId]) -> bool:
    """Whether the new voters have nearly all entries; also true without leadership, because the next step then raises."""
    core = replica.core
    if core.leadership is None:
        return True
    found = [core.leadership.group.get(peer) for peer in voters if not core.configuration.votes(peer)]
    enough = max(core.log.configuration_index, core.log.last_index - replica.settings.raft.caught_up_entries // 2)
    return all(one is not None and one.match_index >= enough for one in found)


async def _change(
    replica: Replica, voters: Mapping[PeerId, Address], learners: Mapping[PeerId, Address], removed: Collection[PeerId]
) -> None:
    present, moved = replica.core.configuration, {*voters, *learners, *removed}  # others may have changed it while this waited
    staying = [[peer for peer in peers if peer not in moved] for peers in (present.voters, present.learners)]
    configuration = replica.core.plan_change([*staying[0], *voters], [*staying[1], *learners])
    known = {**replica.reader.newest().addresses, **replica.settings.peers, **voters, **learners}
    group = GroupConfiguration(configuration, known, replica.reader.group_id)
    try:
        group.check()
    except ValueError as error:
        raise ChangeRefused(f"{error}; membership was not changed") from error
    try:
        index = replica.propose_own(configuration_record(group, replica.world.clock.wall_ms()), configuration)
    except (StoreError, OSError) as error:
        raise ChangeRefused(f"the leader's log takes no entry: {error}; membership was not changed") from error
    while replica.ledger.committed_index < index or replica.core.configuration.joint:
        if not replica.is_leader and replica.core.configuration.votes(replica.settings.self_id):
            raise LeadershipLost
        await trio.sleep(CATCH_UP_SECONDS / 2)
