"""Linearizable reads in a group that speaks DLedger's dialect, which has none: confirmed by a round of heartbeats; pure.

Invariant: a read is answered with an index only if this node led at some moment between the question and the answer, as a
majority has confirmed, and the index covers everything that was committed when the question came. Only the leader answers:
no request of the dialect carries a follower's question.
"""

from __future__ import annotations

from typing import Any

from ..raft.errors import NotLeader
from ..raft.ready import ReadState
from ..raft.state import PendingRead
from .java_state import JavaState

PENDING_READS_MAX = 1000
"""Reads that may wait for a majority; a read beyond them is answered without an index and may be asked again."""


def request_read(state: JavaState, context: Any) -> None:
    """Ask up to which index the log must be applied before a read that begins now may be answered.

    Raises:
        NotLeader: another node may lead. Nothing was asked.
    """
    led = state.leadership
    if led is None:
        raise NotLeader(state.leader)
    if len(led.reads) >= PENDING_READS_MAX:
        state.read_states.append(ReadState(context, None))
        return
    # The next round begins after the read came; what it confirms, it confirms for the read.
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
            # Everything that was committed when the read came is behind the entry of this term that is committed now.
            state.read_states.append(ReadState(read.context, state.commit_index))
        else:
            waiting.append(read)
    led.reads = waiting
