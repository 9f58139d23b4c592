"""Leadership transfer and preferred leaders (thesis §3.10, DLedger's preferred leader)."""

from __future__ import annotations

from .errors import ChangeRefused
from .messages import TimeoutNow
from .progress import Mode, Replicator
from .state import Leadership, State
from .units import PeerId


def start(state: State, led: Leadership, target: PeerId) -> None:
    """Transfer leadership to `target`. New entries are refused until it has the whole log and campaigns, or the time-out."""
    if target == state.id:
        raise ChangeRefused(f"{target} is the leader already; nothing was transferred")
    if target not in state.configuration.voters:
        raise ChangeRefused(f"{target} is not a voter of this group; nothing was transferred")
    if led.transfer_to is not None and led.transfer_to != target:
        raise ChangeRefused(f"leadership is being transferred to {led.transfer_to} already; nothing was transferred")
    replicator = led.group.get(target)
    assert replicator is not None
    lacking = state.log.last_index - replicator.match_index
    if replicator.mode in {Mode.SNAPSHOT, Mode.REGRESSED} or lacking > state.settings.caught_up_entries:
        raise ChangeRefused(f"{target} lacks {lacking} entries; nothing was transferred")
    led.transfer_to = target
    state.timers.transfer.start(state.settings.transfer_ticks)
    on_progress(state, led, replicator)


def on_progress(state: State, led: Leadership, replicator: Replicator) -> None:
    """Ask the target of the transfer to campaign once it has acknowledged all entries."""
    if replicator.peer == led.transfer_to and replicator.match_index == state.log.last_index:
        state.send(TimeoutNow(state.id, replicator.peer, state.term))


def abort(led: Leadership) -> None:
    """Abort a transfer that took too long: this leader accepts entries again."""
    led.transfer_to = None


def nominate_successor(state: State, led: Leadership) -> None:
    """Ask the voter with the highest `match_index` to campaign at once, because this leader leaves the group."""
    candidates = [replicator for replicator in led.group if replicator.peer in state.configuration.voters]
    if candidates:
        best = max(candidates, key=lambda replicator: (replicator.match_index, replicator.peer))
        state.send(TimeoutNow(state.id, best.peer, state.term))


def look_for_preferred(state: State, led: Leadership) -> None:
    """Transfer to the preferred voter with the highest `match_index`, if this node is not preferred itself (DLedger)."""
    preferred = state.settings.preferred
    if state.id in preferred or led.transfer_to is not None or state.commit_index < led.term_start_index:
        return
    if led.preferred_tick is not None and state.now - led.preferred_tick < led.preferred_wait:
        return
    heard_since = state.now - state.settings.election_ticks_max
    ready = [
        replicator
        for replicator in led.group
        if replicator.peer in preferred
        and replicator.peer in state.configuration.voters
        and replicator.mode is Mode.PIPELINE
        and replicator.contact_tick >= heard_since
        and state.log.last_index - replicator.match_index <= state.settings.caught_up_entries
    ]
    if ready:
        led.preferred_tick, settings = state.now, state.settings
        led.preferred_wait = min(
            max(2 * led.preferred_wait, settings.preferred_retry_ticks), settings.preferred_retry_ticks_max
        )
        start(state, led, max(ready, key=lambda replicator: (replicator.match_index, replicator.peer)).peer)
