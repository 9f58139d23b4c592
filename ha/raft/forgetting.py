"""The recovery of voters that have lost their disk and restart under the same name with an empty one.

Such a node may have forgotten a vote, and entries that it had acknowledged. It receives the log like any other follower, and
its new acknowledgements count, but it grants no vote and does not campaign until two conditions are met:

1. Its log has everything that was committed before: the leader has committed an entry of its own term (Raft §5.4.2), and
   everything up to the leader's commit index is durable on the node. A part of it is not enough, even if the leader's term
   begins in it: the node may have acknowledged the rest too. The commit index comes from a heartbeat that follows the leader's
   answer to a query of this start, because the leader may still commit by acknowledgements from before the start until then.
2. A second vote of this node cannot decide a past election: every other voter has answered a query of this start with a term
   that is not higher than the leader's. In that term the node counts as having voted for the leader.

A node that was started from an older copy of its disk does not know that. A leader that finds it to have less than it
acknowledged tells it so, and from then on it is forgetful too.

A node cannot distinguish a lost disk from the empty one of a new group. The group is new if no voter has ever been in any term,
so all voters must answer before a new group holds an election. A majority is not
enough: the remaining voters may be in a term of which this majority has no record.
"""

from __future__ import annotations

from .messages import Regressed, TermAnswer, TermQuery
from .progress import Mode
from .state import Leadership, State
from .units import FORGOTTEN, NO_INDEX, LogIndex, PeerId, Term

LIFE_MAX = 1 << 30
"""The largest random context of a start's queries."""


def start(state: State) -> None:
    """Ask the other voters soon if this node is forgetful. Without other voters it needs no answers."""
    if state.forgetful:
        state.life = state.draw(1, LIFE_MAX)
        state.timers.election.start(1)
        remember(state)


def on_regressed(state: State, message: Regressed) -> None:
    """Count as forgetful, durably: this node was started from an older copy of its disk, or lost a part of it."""
    if message.sender == state.leader and not state.forgetful and state.configuration.votes(state.id):
        state.vote, state.refill = FORGOTTEN, None
        state.heard_terms.clear()
        state.life = state.draw(1, LIFE_MAX)
        ask(state)


def ask(state: State) -> None:
    """Ask those other voters for their terms whose answers are still needed.

    The leader is asked too, because the query also informs it that this node has less than it once acknowledged.
    """
    for peer in sorted({*other_voters(state), *((state.leader,) if state.leader is not None else ())}):
        if state.heard_terms.get(peer, state.term + 1) > state.term or not state.heard_terms[peer]:
            state.send(TermQuery(state.id, peer, state.term, state.life, state.log.durable_index))


def on_term_query(state: State, query: TermQuery) -> None:
    """Answer the query. A leader restarts the replication to a follower that has less than it once acknowledged."""
    state.send(TermAnswer(state.id, query.sender, state.term, query.context))
    state.acknowledged.pop(query.sender, None)
    if state.leadership is not None:
        _refill(state.leadership, query)


def _refill(led: Leadership, query: TermQuery) -> None:
    replicator = led.group.get(query.sender)
    if replicator is not None and (replicator.mode is Mode.REGRESSED or query.durable_index < replicator.match_index):
        # Entries that the follower helped to commit stay committed: the commit index never decreases.
        replicator.match_index = NO_INDEX
        replicator.probe_from(query.durable_index + 1)


def unanswered(state: State) -> list[PeerId]:
    """The voters whose answers a forgetful node still needs before it may vote; empty for any other node."""
    return [peer for peer in other_voters(state) if peer not in state.heard_terms] if state.forgetful else []


def on_term_answer(state: State, answer: TermAnswer) -> None:
    """Record the term of another voter."""
    if state.forgetful and answer.context == state.life:
        state.heard_terms[answer.sender] = answer.term
        remember(state)


def remember(state: State) -> None:
    """Become an ordinary voter once nothing that was forgotten can matter any more."""
    if not state.forgetful or not state.configuration.votes(state.id):
        return
    if state.term == 0 and _highest_term(state) == 0:
        state.vote = None
        state.heard_tick = state.now - state.settings.election_ticks_min
        state.timers.election.start(state.draw(1, state.settings.election_ticks_min))
    elif _has_caught_up(state) and all(
        state.heard_terms.get(peer, state.term + 1) <= state.term for peer in other_voters(state)
    ):
        state.vote = state.leader


def _highest_term(state: State) -> Term:
    """The highest term of the other voters; higher than that of this node while one of them has not answered."""
    return max((state.heard_terms.get(peer, state.term + 1) for peer in other_voters(state)), default=0)


def note_leader_commit(state: State, commit_index: LogIndex) -> None:
    """Record how far the log has to be filled again, from the first heartbeat that follows the leader's answer."""
    if state.leader in state.heard_terms and (state.refill is None or state.refill[0] != state.term):
        state.refill = state.term, commit_index


def _has_caught_up(state: State) -> bool:
    if state.leader is None or state.snapshot is not None or state.refill is None or state.refill[0] != state.term:
        return False
    commit_index = state.refill[1]
    if commit_index > min(state.log.durable_index, state.verified_index):
        return False
    if state.log.term_at(commit_index) == state.term:
        return True
    state.refill = None  # the leader had not committed an entry of its term yet, so a later heartbeat has to name one
    return False


def other_voters(state: State) -> list[PeerId]:
    """All whose vote counts, without this node."""
    configuration = state.configuration
    return sorted(peer for peer in configuration.members if peer != state.id and configuration.votes(peer))
