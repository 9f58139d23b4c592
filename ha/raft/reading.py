"""Linearizable reads without an entry in the log: read-index (thesis §6.4).

Invariant: a read is answered with an index only if a majority has confirmed that this node was the leader at some moment
between the request and the answer, and the index covers everything that was committed when the request arrived.
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


def request_read(state: State, context: Any) -> None:
    """Ask for the index up to which the log must be applied before a read that begins now may be answered."""
    led = state.leadership
    if led is not None:
        _enqueue(state, led, PendingRead(context, state.id))
    elif state.leader is not None and state.role is Role.FOLLOWER:
        state.send(ReadIndexRequest(state.id, state.leader, state.term, context))
    else:
        raise NotLeader(state.leader)


def on_read_index_request(state: State, request: ReadIndexRequest) -> None:
    """Handle a read-index request of a follower."""
    if state.leadership is None:
        state.send(ReadIndexResponse(state.id, request.sender, state.term, request.context, None))
    else:
        _enqueue(state, state.leadership, PendingRead(request.context, request.sender))


def on_read_index_response(state: State, response: ReadIndexResponse) -> None:
    """Pass the leader's answer on to the reader at this node."""
    state.read_states.append(ReadState(response.context, response.index))


def _enqueue(state: State, led: Leadership, read: PendingRead) -> None:
    if len(led.reads) >= state.settings.pending_reads_max:
        answer(state, read, None)
        return
    if state.commit_index >= led.term_start_index:
        read.index = state.commit_index
    # The next round begins after the read arrived, so its confirmation is valid for the read.
    read.round = led.round + 1
    led.round_due = True
    led.reads.append(read)
    confirm_reads(state, led)


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
            # All entries committed when the read arrived are before the entry of this term that is committed now.
            read.index = state.commit_index
        if read.round <= confirmed:
            answer(state, read, read.index)
        else:
            waiting.append(read)
    led.reads = waiting


def refuse_all(state: State, led: Leadership) -> None:
    """Answer all waiting reads without an index after leadership was lost; their readers must ask again."""
    for read in led.reads:
        answer(state, read, None)
    led.reads.clear()


def answer(state: State, read: PendingRead, index: LogIndex | None) -> None:
    """Send the reader its index, or None if it must ask again."""
    if read.reader == state.id:
        state.read_states.append(ReadState(read.context, index))
    else:
        state.send(ReadIndexResponse(state.id, read.reader, state.term, read.context, index))
