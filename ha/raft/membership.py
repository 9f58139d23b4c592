"""Changes of the members: of learners directly, of voters through a joint configuration (Raft §6, thesis §4.3).

Only one change is made at a time: the next is refused until the previous one and an entry of the leader's term are committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import reading, transfer
from .errors import ChangeRefused
from .quorum import Configuration, majority
from .roles import Input
from .state import Leadership, State
from .terms import become_follower
from .units import PeerId


def plan_change(state: State, led: Leadership, voters: Iterable[PeerId], learners: Iterable[PeerId]) -> Configuration:
    """Return the configuration to propose so that the group becomes `voters` and `learners`."""
    present = state.configuration
    target = Configuration(tuple(voters), (), tuple(learners))
    if not target.voters:
        raise ChangeRefused("a group needs at least one voter; membership was not changed")
    planned = target if target.voters == present.voters else Configuration(target.voters, present.voters, target.learners)
    check_change(state, led, planned)
    return planned


def check_change(state: State, led: Leadership, configuration: Configuration) -> None:
    """Raise ChangeRefused if `configuration` may not follow the current one now."""
    present = state.configuration
    if state.commit_index < led.term_start_index:
        raise ChangeRefused(f"no entry of term {state.term} is committed yet; membership was not changed")
    if state.log.configuration_index > state.commit_index:
        raise ChangeRefused(
            f"the change at index {state.log.configuration_index} is not committed yet; membership was not changed"
        )
    if present.joint:
        if configuration != present.left():
            raise ChangeRefused("the joint configuration must be left first; membership was not changed")
        return
    if configuration.joint:
        if configuration.outgoing != present.voters:
            raise ChangeRefused("the old voters of a joint configuration must be the present ones; membership was not changed")
    elif configuration.voters != present.voters:
        raise ChangeRefused("voters change only through a joint configuration; membership was not changed")
    _check_caught_up(state, led, frozenset(configuration.voters) - frozenset(present.voters))
    _check_answered(state, led, configuration)


def _check_caught_up(state: State, led: Leadership, promoted: frozenset[PeerId]) -> None:
    """Refuse a new voter that is not a learner with the current configuration and nearly all entries (thesis §4.2.1)."""
    for peer in sorted(promoted):
        replicator = led.group.get(peer)
        match_index = replicator.match_index if replicator is not None else -1
        lacking = state.log.last_index - match_index
        if replicator is None or match_index < state.log.configuration_index:
            raise ChangeRefused(f"{peer} must be added as a learner and catch up first; membership was not changed")
        if lacking > state.settings.caught_up_entries:
            raise ChangeRefused(f"{peer} lacks {lacking} entries and must catch up first; membership was not changed")


def _check_answered(state: State, led: Leadership, configuration: Configuration) -> None:
    """Refuse new voters of whom no majority has answered within an election time-out: they could neither commit nor elect."""
    for voters in configuration.majorities if configuration.joint else ():
        silent = [peer for peer in voters if peer != state.id and not _has_answered(state, led, peer)]
        if len(voters) - len(silent) < majority(len(voters)):
            raise ChangeRefused(
                f"{', '.join(silent)} did not answer lately, so {', '.join(voters)} would have no majority as voters: start "
                f"{'it' if len(silent) == 1 else 'them'} first, or remove what is down; membership was not changed"
            )


def _has_answered(state: State, led: Leadership, peer: PeerId) -> bool:
    replicator = led.group.get(peer)
    return replicator is not None and state.now - replicator.contact_tick <= state.settings.election_ticks_max


def follow_configuration(state: State, led: Leadership) -> None:
    """Replicate to exactly the members of the newest configuration, which takes effect when it is appended.

    Leaving members receive the log until the change is committed, so that they learn of it and do not campaign.
    """
    leaving = frozenset[PeerId]()
    if state.log.configuration_index > state.commit_index and len(state.log.configurations) > 1:
        leaving = state.log.configurations[-2][1].members
    next_index = state.log.last_index + 1
    led.group.follow(state.configuration.members, state.id, next_index, state.now, leaving)


def on_commit(state: State, led: Leadership) -> None:
    """Act on the current configuration once the advanced commit index covers it, and answer the reads that wait."""
    if state.log.configuration_index <= state.commit_index and state.log.configuration_index != led.settled_index:
        led.settled_index = state.log.configuration_index
        configuration = state.configuration
        led.configuration_wanted = configuration.left() if configuration.joint else None
        if not configuration.votes(state.id):
            # Raft §6: a leader that is not in the new configuration leads until that is committed.
            transfer.nominate_successor(state, led)
            become_follower(state, Input.REMOVED, state.term, None)
            return
        follow_configuration(state, led)
    reading.confirm_reads(state, led)
