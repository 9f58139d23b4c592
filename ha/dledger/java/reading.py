"""Linearizable reads in a group that speaks DLedger's dialect, which has none; a round of heartbeats confirms the leader.

Invariant: a read is answered with an index only if a majority has confirmed that this node was the leader at some moment
between the request and the answer, and the index covers everything that was committed when the request arrived. Only the
leader answers, because the dialect has no request by which a follower could ask. This module does no I/O.
"""

from __future__ import annotations

from typing import Any

from ...raft.errors import NotLeader
from ...raft.ready import ReadState
from ...raft.state import PendingRead
from .state import JavaState

PENDING_READS_MAX = 1000
"""How many reads may wait for a majority; a further one is answered without an index and may be tried again."""


def request_read(state: JavaState, context: Any) -> None:
    """Ask for the index up to which the log must be applied before a read that begins now may be answered.

    Raises:
        NotLeader: another node may be the leader. Nothing was requested.
    """
    led = state.leadership
    if led is None:
        raise NotLeader(state.leader)
    if len(led.reads) >= PENDING_READS_MAX:
        state.read_states.append(ReadState(context, None))
        return
    # The next round begins after the read arrived, so its confirmation is valid for the read.
    led.reads.append(PendingRead(context, state.id, round=led.round + 1))
    led.beat_at_ms = state.now_ms


def confirm_reads(state: JavaState) -> None:
    """Answer the reads whose round a majority has confirmed, once an entry of the term is committed."""
    led = state.leadership
    if led is None or not led.reads or state.commit_index < led.term_start_index:
        return
    rounds = [led.round, *(follower.confirmed_round for follower in led.group)]
    confirmed = sorted(rounds, reverse=True)[len(rounds) // 2]
    waiting: list[PendingRead] = []
    for read in led.reads:
        if read.round <= confirmed:
            # All entries committed when the read arrived are before the entry of this term that is committed now.
            state.read_states.append(ReadState(read.context, state.commit_index))
        else:
            waiting.append(read)
    led.reads = waiting
