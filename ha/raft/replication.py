"""The leader's side of replication: send to each follower and handle its answers (Raft §5.3)."""

from __future__ import annotations

from . import ballot_box, transfer
from .messages import Append, AppendResponse, Heartbeat, HeartbeatResponse, InstallSnapshot, Regressed, Rejection
from .progress import Mode, Replicator
from .state import Leadership, State
from .units import NO_INDEX, PeerId

# ---------------------------------------------------------------- sending


def send_entries(state: State, led: Leadership) -> None:
    """Send as many Appends to each follower as its state allows.

    Called once per Ready, so that all entries since the last one are sent in as few batches as possible.
    """
    for replicator in led.group:
        while replicator.may_send(state.settings) and _send_next(state, led, replicator):
            pass
    led.commit_due = False


def _send_next(state: State, led: Leadership, replicator: Replicator) -> bool:
    """Send one Append; return whether another one may follow."""
    log, settings = state.log, state.settings
    prev_index = replicator.next_index - 1
    prev_term = log.term_at(prev_index)
    if prev_term is None:
        _send_snapshot(state, led, replicator)
        return False
    probing = replicator.mode is Mode.PROBE
    batch = None
    if replicator.next_index <= log.written_index:
        bytes_max = settings.probe_bytes_max if probing else settings.append_bytes_max
        batch = state.reader.batch(replicator.next_index, log.written_index, bytes_max)
    elif not probing and (replicator.commit_sent >= state.commit_index or _may_wait(state, led)):
        return False
    state.send(Append(state.id, replicator.peer, state.term, prev_index, prev_term, state.commit_index, batch))
    replicator.commit_sent = state.commit_index
    if probing:
        replicator.probe_sent, replicator.probe_round = True, led.round
        return False
    if batch is not None:
        replicator.sent(batch.last_index, batch.size_bytes)
    return batch is not None


def _may_wait(state: State, led: Leadership) -> bool:
    """Whether the commit index, which the next entries carry anyway, is not sent yet; start the timer that bounds the wait."""
    if led.commit_due or not state.settings.commit_ticks:
        return False
    if not state.timers.commit.running:
        state.timers.commit.start(state.settings.commit_ticks)
    return True


def _send_snapshot(state: State, led: Leadership, replicator: Replicator) -> None:
    """Send a snapshot to a follower that lacks entries which this log no longer has."""
    replicator.probe_from(replicator.next_index)
    snapshot = state.reader.snapshot(replicator.peer)
    if snapshot is None:
        replicator.probe_sent, replicator.probe_round = True, led.round
        return
    replicator.mode = Mode.SNAPSHOT
    replicator.snapshot_index = snapshot.last_index
    replicator.snapshot_ticks_left = state.settings.snapshot_retry_ticks
    state.send(InstallSnapshot(state.id, replicator.peer, state.term, snapshot))


def start_round(state: State, led: Leadership) -> None:
    """Send one round of heartbeats to all other members."""
    led.round += 1
    led.round_due = False
    for replicator in led.group:
        state.send(Heartbeat(state.id, replicator.peer, state.term, state.commit_index, led.round))
    state.timers.heartbeat.start(state.settings.heartbeat_ticks)


# ---------------------------------------------------------------- answers


def on_append_response(state: State, led: Leadership, response: AppendResponse) -> None:
    """Handle a follower's answer that it has stored entries, or rejected them because they do not follow its log."""
    replicator = led.group.get(response.sender)
    if replicator is None or replicator.mode is Mode.REGRESSED:
        return
    replicator.contact_tick = state.now
    if response.rejection is not None:
        _on_rejection(state, replicator, response.rejection)
        return
    # Only a faulty peer claims more than this leader has.
    match_index = min(response.match_index, state.log.last_index)
    if match_index > replicator.match_index:
        replicator.match_index = match_index
        replicator.match_round = led.round
        ballot_box.advance_commit(state, led)
    if state.leadership is not led:
        return  # the commit removed this leader
    received_index = min(response.received_index, state.log.last_index)
    replicator.received(received_index)
    if replicator.mode is Mode.PIPELINE:
        replicator.next_index = max(replicator.next_index, received_index + 1)
    elif replicator.mode is Mode.PROBE or received_index >= replicator.snapshot_index:
        replicator.mode = Mode.PIPELINE
        replicator.next_index = max(received_index, replicator.match_index) + 1
    transfer.on_progress(state, led, replicator)


def _on_rejection(state: State, replicator: Replicator, rejection: Rejection) -> None:
    """Find an earlier point where the logs may agree, skipping whole terms; ignore the rejection of an older Append."""
    if replicator.mode is Mode.SNAPSHOT:
        return
    if replicator.mode is Mode.PROBE and rejection.prev_index != replicator.next_index - 1:
        return
    if rejection.prev_index <= replicator.match_index:
        return
    index = min(rejection.hint_index, rejection.prev_index - 1)
    if index > state.log.boundary_index:
        index, _ = state.log.last_index_at_most(index, rejection.hint_term)
    replicator.probe_from(index + 1)


def on_heartbeat_response(state: State, led: Leadership, response: HeartbeatResponse) -> None:
    """Handle a follower's confirmation that this node was its leader when it sent the round."""
    replicator = led.group.get(response.sender)
    if replicator is None or response.round > led.round:
        return  # only a faulty peer answers a round that has not begun
    if replicator.mode is Mode.REGRESSED:
        state.send(Regressed(state.id, replicator.peer, state.term))  # until it asks for what it has forgotten
        return
    replicator.contact_tick = state.now
    replicator.confirmed_round = max(replicator.confirmed_round, response.round)
    has_less = response.round > replicator.match_round and response.durable_index < replicator.match_index
    if has_less or response.durable_index < state.acknowledged.get(replicator.peer, NO_INDEX):
        _on_regress(state, replicator, response)
        return
    _probe_if_stalled(state, replicator, response.round)
    transfer.on_progress(state, led, replicator)


def _on_regress(state: State, replicator: Replicator, response: HeartbeatResponse) -> None:
    """Handle a follower that has less than it acknowledged as durable, because it lost its disk or does not sync.

    A learner is sent the rest again in any group: it counts for nothing, and has no votes to forget.
    """
    if state.settings.trust_regressed or not state.configuration.votes(replicator.peer):
        state.acknowledged.pop(replicator.peer, None)
        replicator.match_index = response.durable_index
        replicator.probe_from(response.durable_index + 1)
    else:
        replicator.mode = Mode.REGRESSED
        state.send(Regressed(state.id, replicator.peer, state.term))


def _probe_if_stalled(state: State, replicator: Replicator, answered_round: int) -> None:
    """Probe a follower that made no progress between two heartbeats: a probe or the last Append of the pipeline may be lost.

    An empty Append after everything that was sent detects this: it is rejected if an entry before it is missing.
    """
    if replicator.mode is Mode.PROBE:
        replicator.probe_sent = replicator.probe_sent and answered_round <= replicator.probe_round
    elif replicator.mode is Mode.PIPELINE and replicator.match_index < state.log.last_index:
        prev_index = replicator.next_index - 1
        prev_term = state.log.term_at(prev_index)
        if replicator.stalled_match == replicator.match_index:
            if prev_term is None:
                # The sent entries have been compacted since, so they can neither be checked nor sent again.
                replicator.probe_from(replicator.match_index + 1)
                return
            state.send(Append(state.id, replicator.peer, state.term, prev_index, prev_term, state.commit_index))
        replicator.stalled_match = replicator.match_index


def probe_reconnected(led: Leadership, peer: PeerId) -> None:
    """Probe where the logs agree: a follower that has restarted does not know how far its own log is verified.

    A snapshot in flight may be lost too, so another one is sent at once.
    """
    replicator = led.group.get(peer)
    if replicator is not None and replicator.mode is not Mode.REGRESSED:
        replicator.probe_from(replicator.match_index + 1)


def tick_replicators(led: Leadership, ticks: int = 1) -> None:
    """Send snapshots again that were not answered in time."""
    for replicator in led.group:
        if replicator.mode is Mode.SNAPSHOT:
            replicator.snapshot_ticks_left -= ticks
            if replicator.snapshot_ticks_left <= 0:
                replicator.probe_from(replicator.next_index)
