"""Linearizable reads without an entry in the log: read-index and lease reads (thesis §6.4).

Invariant: a read is answered with an index only if this node led at some moment between the question and the answer, as
confirmed by a majority, and the index covers everything that was committed when the question came.
"""

from __future__ import annotations

from typing import Any

from .errors import NotLeader
from .messages import ReadIndexRequest, ReadIndexResponse
from .quorum import quorum_value
from .ready import ReadState
from .roles import Role
from .state import Leadership, PendingRead, State
from .units import LogIndex


def request_read(state: State, context: Any, *, lease: bool) -> None:
    """Ask up to which index the log must be applied before a read that begins now may be answered."""
    led = state.leadership
    if led is not None:
        _enqueue(state, led, PendingRead(context, state.id), lease=lease)
    elif state.leader is not None and state.role is Role.FOLLOWER:
        state.send(ReadIndexRequest(state.id, state.leader, state.term, context))
    else:
        raise NotLeader(state.leader)


def on_read_index_request(state: State, request: ReadIndexRequest) -> None:
    """A follower asks on behalf of its reader."""
    if state.leadership is None:
        state.send(ReadIndexResponse(state.id, request.sender, state.term, request.context, None))
    else:
        _enqueue(state, state.leadership, PendingRead(request.context, request.sender), lease=False)


def on_read_index_response(state: State, response: ReadIndexResponse) -> None:
    """The leader's answer to a read of this node."""
    state.read_states.append(ReadState(response.context, response.index))


def _enqueue(state: State, led: Leadership, read: PendingRead, *, lease: bool) -> None:
    if len(led.reads) >= state.settings.pending_reads_max:
        answer(state, read, None)
        return
    if state.commit_index >= led.term_start_index:
        read.index = state.commit_index
        if lease and lease_valid(state, led):
            answer(state, read, read.index)
            return
    # The next round begins after the read came; what it confirms, it confirms for the read.
    read.round = led.round + 1
    led.round_due = True
    led.reads.append(read)
    confirm_reads(state, led)


def lease_valid(state: State, led: Leadership) -> bool:
    """Whether a majority is still bound to this leader, counted from when the confirmed heartbeats were sent.

    Whoever answered a heartbeat grants no vote to others for `election_ticks_min` of its own ticks; `lease_ticks` is shorter by
    the drift that clocks may have. A transfer breaks that rule on purpose, so it ends the lease for the rest of the term.
    """
    if led.timeout_now_sent or state.settings.lease_ticks == 0:
        return False
    confirmed = {replicator.peer: replicator.confirmed_tick for replicator in led.group}
    confirmed[state.id] = state.now
    since = quorum_value(confirmed, state.configuration)
    return since >= 0 and state.now - since < state.settings.lease_ticks


def confirm_reads(state: State, led: Leadership) -> None:
    """Answer the reads whose round a majority has confirmed, once an entry of the term is committed."""
    if not led.reads or state.commit_index < led.term_start_index:
        return
    rounds = {replicator.peer: replicator.confirmed_round for replicator in led.group}
    rounds[state.id] = led.round
    confirmed = quorum_value(rounds, state.configuration)
    waiting: list[PendingRead] = []
    for read in led.reads:
        if read.index is None:
            # Everything that was committed when the read came is behind the entry of this term that is committed now.
            read.index = state.commit_index
        if read.round <= confirmed:
            answer(state, read, read.index)
        else:
            waiting.append(read)
    led.reads = waiting


def refuse_all(state: State, led: Leadership) -> None:
    """Leadership is over: whoever waits for it must ask again."""
    for read in led.reads:
        answer(state, read, None)
    led.reads.clear()


def answer(state: State, read: PendingRead, index: LogIndex | None) -> None:
    """Give the reader its index, or None if it must ask again."""
    if read.reader == state.id:
        state.read_states.append(ReadState(read.context, index))
    else:
        state.send(ReadIndexResponse(state.id, read.reader, state.term, read.context, index))
