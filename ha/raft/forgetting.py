"""Voters that have lost their disk and come back under their name with nothing.

Such a node may have forgotten a vote, and entries that it had acknowledged. It receives the log like any other follower, and
what it acknowledges from then on counts, but it grants no vote and does not campaign until two things hold:

1. Its log has everything that was committed before: the leader has committed an entry of its own term, and the node has that
   entry on its disk (Raft §5.4.2).
2. No election of the past can be decided by a second vote of this node: every other voter has said, in answer to a query of
   this start, that its term is no higher than the leader's. In that term the node counts as having voted for the leader.

A node cannot tell a lost disk from that of a new group. The group is new if none of its voters has ever been in any term, so
all of them must answer before a group begins. A majority is not enough: the others may never have reached one of its nodes.
"""

from __future__ import annotations

from .messages import TermAnswer, TermQuery
from .progress import Mode
from .state import Leadership, State
from .units import NO_INDEX, PeerId, Term

LIFE_MAX = 1 << 30


def start(state: State) -> None:
    """Ask soon, if the node has forgotten; a node without peers has nobody whom it could have told anything."""
    if state.forgetful:
        state.life = state.draw(1, LIFE_MAX)
        state.timers.election.start(1)
        remember(state)


def ask(state: State) -> None:
    """Ask the other voters for their terms, as far as their answers are still needed.

    The leader is asked too: the query tells it that this node has less than it once acknowledged.
    """
    for peer in sorted({*_other_voters(state), *((state.leader,) if state.leader is not None else ())}):
        if state.heard_terms.get(peer, state.term + 1) > state.term or not state.heard_terms[peer]:
            state.send(TermQuery(state.id, peer, state.term, state.life, state.log.durable_index))


def on_term_query(state: State, query: TermQuery) -> None:
    """Answer; a leader begins anew with a follower that has less than it once acknowledged."""
    state.send(TermAnswer(state.id, query.sender, state.term, query.context))
    if state.leadership is not None:
        _refill(state.leadership, query)


def _refill(led: Leadership, query: TermQuery) -> None:
    replicator = led.group.get(query.sender)
    if replicator is not None and (replicator.mode is Mode.REGRESSED or query.durable_index < replicator.match_index):
        # What it had acknowledged stays committed: the commit index never goes back.
        replicator.match_index = NO_INDEX
        replicator.probe_from(query.durable_index + 1)


def on_term_answer(state: State, answer: TermAnswer) -> None:
    """Note the term of another voter."""
    if state.forgetful and answer.context == state.life:
        state.heard_terms[answer.sender] = answer.term
        remember(state)


def remember(state: State) -> None:
    """Become an ordinary voter, if it is certain that nothing which was forgotten matters any more."""
    if not state.forgetful or not state.configuration.votes(state.id):
        return
    if state.term == 0 and _highest_term(state) == 0:
        state.vote = None
        state.heard_tick = state.now - state.settings.election_ticks_min
        state.timers.election.start(state.draw(1, state.settings.election_ticks_min))
    elif _has_caught_up(state) and all(
        state.heard_terms.get(peer, state.term + 1) <= state.term for peer in _other_voters(state)
    ):
        state.vote = state.leader


def _highest_term(state: State) -> Term:
    """The highest term of the other voters; more than that of this node while one of them has not answered."""
    return max((state.heard_terms.get(peer, state.term + 1) for peer in _other_voters(state)), default=0)


def _has_caught_up(state: State) -> bool:
    commit_index = state.commit_index
    return (
        state.leader is not None
        and state.snapshot is None
        and commit_index <= state.log.durable_index
        and state.log.term_at(commit_index) == state.term
    )


def _other_voters(state: State) -> list[PeerId]:
    configuration = state.configuration
    return sorted(peer for peer in configuration.members if peer != state.id and configuration.votes(peer))
