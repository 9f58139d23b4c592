"""The follower's side of replication: check, truncate, append, acknowledge durable entries (Raft §5.3)."""

from __future__ import annotations

from . import ballot_box, forgetting
from .errors import Diverged
from .messages import Append, AppendResponse, Heartbeat, HeartbeatResponse, InstallSnapshot, Rejection
from .state import State
from .units import LogIndex


def is_well_formed(message: Append) -> bool:
    """Whether the batch follows `prev_index`, and its terms do not descend and are at most the message's term.

    Only a faulty peer sends anything else. Its Append is ignored, as if it were lost.
    """
    batch = message.batch
    if message.prev_term > message.term:
        return False
    return batch is None or (
        batch.first_index == message.prev_index + 1
        and batch.runs[0].term >= message.prev_term
        and batch.last_term <= message.term
    )


def on_append(state: State, message: Append) -> None:
    """Append the leader's entries if they follow an entry that both logs have; otherwise reject them."""
    log = state.log
    if message.prev_index >= log.boundary_index and not log.matches(message.prev_index, message.prev_term):
        hint_index, hint_term = log.last_index_at_most(message.prev_index, message.prev_term)
        rejection = Rejection(message.prev_index, hint_index, hint_term)
        matched = _durable_match(state)
        state.send(AppendResponse(state.id, message.sender, state.term, matched, state.verified_index, rejection))
        return
    # An Append that begins before the boundary covers snapshotted entries, which are committed and so agree.
    last_index = message.prev_index
    appended = False
    if message.batch is not None:
        last_index = message.batch.last_index
        conflict = log.find_conflict(message.batch)
        if conflict <= last_index:
            if conflict <= log.last_index:
                _remove_from(state, conflict, message)
            log.append_received(message.batch, conflict)
            appended = True
    state.verified_index = max(state.verified_index, last_index)
    commit_index = state.commit_index
    ballot_box.follow_commit(state, message.commit_index)
    if state.forgetful:  # at every chance, because the group cannot elect another leader before
        forgetting.ask(state)
        forgetting.remember(state)
    if message.batch is None and state.commit_index > commit_index and state.acked_index == state.verified_index:
        return  # The Append only carried the commit index, and the leader has all acknowledgements already.
    state.ack_due = True
    state.ack_at_once |= not appended


def _remove_from(state: State, first_index: LogIndex, message: Append) -> None:
    if first_index <= state.commit_index:
        raise Diverged(first_index, state.commit_index, message.sender)
    state.log.truncate(first_index)


def on_heartbeat(state: State, message: Heartbeat) -> None:
    """Confirm the leader and adopt its commit index."""
    ballot_box.follow_commit(state, message.commit_index)
    if state.forgetful:
        forgetting.note_leader_commit(state, message.commit_index)
        forgetting.ask(state)
        forgetting.remember(state)
    state.send(HeartbeatResponse(state.id, message.sender, state.term, message.round, state.log.durable_index))


def on_install_snapshot(state: State, message: InstallSnapshot) -> None:
    """Replace the log by a snapshot, unless the snapshot has nothing new."""
    snapshot = message.snapshot
    if snapshot.last_index > state.commit_index:
        if state.log.matches(snapshot.last_index, snapshot.last_term):
            state.verified_index = max(state.verified_index, snapshot.last_index)
            state.commit_index = snapshot.last_index
        else:
            state.log.restore(snapshot)
            state.snapshot = snapshot
            state.commit_index = state.applied_index = state.verified_index = snapshot.last_index
    state.ack_due = state.ack_at_once = True


def _durable_match(state: State) -> LogIndex:
    """The last entry of the leader's log that is durable here; while a snapshot is installed, the last acknowledged one."""
    if state.snapshot is not None:
        return state.acked_index
    return max(state.acked_index, min(state.verified_index, state.log.durable_index))


def acknowledge(state: State) -> None:
    """Answer the Appends since the last answer: appended entries when they are durable, everything else at once."""
    if not state.ack_due or state.leader is None:
        return
    matched = _durable_match(state)
    if not state.ack_at_once and matched <= state.acked_index:
        return
    state.acked_index = matched
    received = state.verified_index if state.snapshot is None else matched
    state.send(AppendResponse(state.id, state.leader, state.term, matched, max(matched, received)))
    state.ack_at_once = False
    state.ack_due = matched < state.verified_index
