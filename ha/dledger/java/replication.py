"""Replication as in DLedger 0.3.1.2 (DLedgerEntryPusher) by COMPARE, TRUNCATE, APPEND and COMMIT, both sides, without I/O.

The leader finds by COMPARE where the logs agree, has the follower remove later entries by TRUNCATE, then sends APPEND. That
lacks the index and term of the previous entry, so a follower remembers up to where its log was compared with the leader of this
term, and accepts only entries that follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...raft.batch import Batch, Snapshot, TermRun
from ...raft.errors import Diverged
from ...raft.roles import Role
from ...raft.units import NO_INDEX, NO_TERM, LogIndex, PeerId, Term
from ..ledger.layout import ENTRY, HEADER_SIZE
from ..ledger.received import BeginAnew, ReceivedEntries
from ..ledger.walk import body_is_sound, is_message, walk_entries
from .messages import APPEND, COMMIT, COMPARE, TRUNCATE, Answer, Code, Push, Reply
from .reading import confirm_reads
from .state import Follower, FollowerGroup, JavaLeadership, JavaState

_unpack_header = ENTRY.codec.unpack_from
_CRCS = slice(ENTRY.offsets["chain_crc"], ENTRY.offsets["body_size"])


def same_entry(one: memoryview, other: memoryview) -> bool:
    """Whether two entries are equal as DLedger compares them, without the CRC fields."""
    return one[: _CRCS.start] == other[: _CRCS.start] and one[_CRCS.stop :] == other[_CRCS.stop :]


# ---------------------------------------------------------------------------------------------------------------- the leader


def begin_leading(state: JavaState) -> None:
    """Begin a leadership, in which every follower is first sent a COMPARE."""
    followers = {peer: Follower(peer, COMPARE) for peer in state.others}
    state.forget_pushes()
    state.role, state.leader, state.round_until_ms = Role.LEADER, state.id, None
    start, now_ms = state.log.last_index + 1, state.now_ms
    state.leadership = JavaLeadership(start, FollowerGroup(followers), now_ms, now_ms, round=state.rounds)


def feed_followers(state: JavaState) -> None:
    """Send as many pushes to each follower as its state allows."""
    led = state.leadership
    assert led is not None
    for follower in led.group.followers.values():
        if follower.follows and state.now_ms >= follower.resume_at:
            if follower.state == APPEND:
                _append(state, follower)
            elif not follower.control_out:
                _control(state, follower)


def _push(state: JavaState, follower: Follower, kind: str, entries: Sequence[memoryview], first: LogIndex) -> None:
    last = first + len(entries) - 1 if entries else NO_INDEX
    follower.pushed_ms = state.now_ms
    state.send(
        Push(
            sender=state.id,
            to=follower.peer,
            term=state.term,
            kind=kind,
            commit_index=state.commit_index,
            first_index=first,
            last_index=last,
            entries=entries,
            refused_index=follower.refused_index,
            token=follower.session,
        )
    )


def _control(state: JavaState, follower: Follower) -> None:
    log = state.log
    if state.end_index == NO_INDEX:
        return
    if not log.first_index <= follower.compare_index <= log.written_index:
        # Also where the entry of a TRUNCATE has expired: behind this one, the follower would keep none of the entries before.
        follower.state, follower.compare_index = COMPARE, log.written_index
    index = follower.compare_index
    if index < log.first_index:
        return
    follower.control_out = True
    _push(state, follower, follower.state, state.reader.entries(index, index, 0), index)


def _append(state: JavaState, follower: Follower) -> None:
    log, settings = state.log, state.settings
    if follower.write_index < log.first_index:
        follower.state, follower.compare_index = COMPARE, NO_INDEX
        return
    inflight = sum(follower.inflight.values())
    pushes_max = settings.inflight_max if follower.refused_index == NO_INDEX else 1
    while (
        follower.write_index <= log.written_index
        and len(follower.inflight) < pushes_max
        and inflight < settings.inflight_bytes_max
    ):
        bytes_max = settings.push_bytes_max if settings.batches else 0
        entries = state.reader.entries(follower.write_index, log.written_index, bytes_max)
        size = sum(map(len, entries))
        follower.inflight[follower.write_index] = size
        inflight += size
        _push(state, follower, APPEND, entries, follower.write_index)
        follower.write_index += len(entries)
        follower.commit_sent = state.commit_index
    outdated = follower.commit_sent < state.commit_index or state.now_ms - follower.pushed_ms >= settings.commit_ms
    if follower.idle and outdated:
        follower.control_out, follower.commit_sent = True, state.commit_index
        _push(state, follower, COMMIT, (), NO_INDEX)


def on_push_answer(state: JavaState, push: Push, answer: Answer | None) -> None:
    """Handle a follower's answer to a push; None if it did not answer in time."""
    led = state.leadership
    follower = led.group.get(push.to) if led is not None else None
    if led is None or follower is None or push.term != state.term or push.token != follower.session:
        return
    if push.kind != APPEND:
        follower.control_out = False
    if answer is not None:
        follower.contact_tick = state.now_ms
    if push.kind == COMPARE and follower.state == COMPARE:
        _on_compared(state, follower, push, answer)
    elif push.kind == TRUNCATE and follower.state == TRUNCATE:
        if answer is not None and answer.code == Code.SUCCESS:
            _start_appending(state, follower, push.first_index)
        else:
            _compare_again(state, follower, pause=True)
    elif push.kind == APPEND and follower.state == APPEND:
        _on_appended(state, follower, push, answer)
    elif push.kind == COMMIT and answer is not None:
        lost = answer.code == Code.SUCCESS and answer.end_index < follower.match_index
        if lost or answer.code == Code.INCONSISTENT_STATE:
            _compare_again(state, follower, pause=False)


def _on_compared(state: JavaState, follower: Follower, push: Push, answer: Answer | None) -> None:
    """Choose the next step after a COMPARE by the rules of DLedger's doCompare, of which the first match applies."""
    index, begin, end = push.first_index, state.log.first_index, state.log.last_index
    if answer is None or answer.code not in (Code.SUCCESS, Code.INCONSISTENT_STATE):
        _compare_again(state, follower, pause=True)
        return
    # A Java node may have lost entries that it acknowledged.
    follower.match_index = min(follower.match_index, answer.end_index)
    truncate_at: LogIndex | None = None
    if answer.code == Code.SUCCESS:
        if index == answer.end_index:
            _start_appending(state, follower, index)
            return
        truncate_at = index
    elif answer.end_index < begin or answer.begin_index > end or index < answer.begin_index:
        truncate_at = begin
    elif index > answer.end_index:
        follower.compare_index = answer.end_index
    else:
        follower.compare_index = index - 1
    if truncate_at is None and follower.compare_index < begin:
        truncate_at = begin
    if truncate_at is not None:
        follower.state, follower.compare_index = TRUNCATE, truncate_at


def _start_appending(state: JavaState, follower: Follower, index: LogIndex) -> None:
    follower.state, follower.compare_index = APPEND, NO_INDEX
    follower.match_index = max(follower.match_index, index)
    follower.write_index = index + 1
    follower.inflight.clear()
    advance_commit(state)


def _compare_again(state: JavaState, follower: Follower, *, pause: bool) -> None:
    follower.state, follower.compare_index, follower.control_out = COMPARE, NO_INDEX, False
    follower.commit_sent = NO_INDEX
    follower.inflight.clear()
    follower.session += 1
    if pause:
        follower.resume_at = state.now_ms + state.settings.error_pause_ms


def _on_appended(state: JavaState, follower: Follower, push: Push, answer: Answer | None) -> None:
    if answer is not None and answer.code == Code.SUCCESS:
        follower.inflight.pop(push.first_index, None)
        follower.refusals = 0
        # This acknowledges the whole push; the index in the answer is its first one, or before 0.2.6 its last one.
        if push.last_index > follower.match_index:
            follower.match_index = push.last_index
            advance_commit(state)
    elif answer is not None and answer.code == Code.INCONSISTENT_STATE:
        # After a gap, replication goes on at once. A Java node gives this answer for any failure, such as a full disk.
        follower.refusals += 1
        _compare_again(state, follower, pause=follower.refusals > 1)
    else:
        _compare_again(state, follower, pause=True)


def advance_commit(state: JavaState) -> None:
    """Commit what a majority has, but only by an entry of this term (Raft §5.4.2), which DLedger does not check."""
    led = state.leadership
    if led is None:
        return
    held = [state.log.durable_index, *(follower.match_index for follower in led.group.followers.values())]
    index = sorted(held, reverse=True)[len(held) // 2]
    if index > state.commit_index and state.log.term_at(index) == state.term:
        state.commit_index = index
        confirm_reads(state)


# --------------------------------------------------------------------------------------------------------------- the follower


def on_push(state: JavaState, push: Push) -> None:
    """Queue a push of the leader, in any order; refuse one of another node without any change (handlePush)."""
    settings = state.settings
    if push.sender in state.configuration.voters and state.role is not Role.LEADER:
        # Only the leader of a term sends pushes in it, so its push is enough to follow it, before any heartbeat.
        if push.term > state.term:
            state.adopt_term(push.term)
        if push.term == state.term and state.leader is None:
            state.become_follower(push.sender)
    if state.role is not Role.FOLLOWER or state.leader != push.sender or state.term != push.term:
        # The code is not 406, which the sender would read as a difference between the logs.
        state.send(state.reply(push, Code.NOT_FOLLOWER))
    elif push.kind == APPEND:
        if not push.entries:
            state.send(state.reply(push, Code.UNEXPECTED_ARGUMENT))
        elif push.first_index in state.waiting:
            state.send(state.reply(push, Code.REPEATED_PUSH))
        elif len(state.waiting) >= settings.waiting_max or state.waiting_bytes >= settings.waiting_bytes_max:
            state.send(state.reply(push, Code.PUSH_REQUEST_IS_FULL))
        else:
            state.add_waiting(push)
    elif push.kind in (COMPARE, TRUNCATE):
        if len(push.entries) != 1:
            state.send(state.reply(push, Code.UNEXPECTED_ARGUMENT))
            return
        # The leader compares again, so its earlier pushes are obsolete.
        state.forget_pushes()
        state.controls.append(push)
    elif push.kind == COMMIT:
        follow_commit(state, push.commit_index)
        # A leader of ours compares the logs after such a refusal; a Java node does not look at the answer.
        state.send(state.reply(push, Code.SUCCESS if state.commit_index >= push.commit_index else Code.INCONSISTENT_STATE))
    else:
        state.send(state.reply(push, Code.UNEXPECTED_ARGUMENT))


def apply_pushes(state: JavaState) -> None:
    """Apply the leader's pushes one at a time, each only when all earlier changes of the log are written."""
    while state.controls and _is_settled(state):
        push = state.controls.pop(0)
        if _lost_its_body(state, push.entries[0]):
            # By code 406 the leader would find an earlier entry that is equal, and truncate the sound copy.
            state.send(state.reply(push, Code.DISK_ERROR, damaged_entry(push.first_index, push.sender)))
        else:
            (_compare if push.kind == COMPARE else _truncate)(state, push)
    while state.waiting and not state.controls and _is_settled(state):
        following = state.take_waiting(state.log.last_index + 1)
        if following is None:
            _look_at_leftovers(state)
            return
        _take_entries(state, following)


def _is_settled(state: JavaState) -> bool:
    log = state.log
    return log.written_index == log.last_index and log.truncate_from is None and not log.unstable


def _has_equal(state: JavaState, entry: memoryview) -> bool:
    index = _unpack_header(entry)[2]
    return state.log.first_index <= index <= state.log.last_index and same_entry(state.reader.entry(index), entry)


def _lost_its_body(state: JavaState, entry: memoryview) -> bool:
    """Whether an entry is one of this log with a damaged body, or none; a Java node may lose that with its power."""
    index = _unpack_header(entry)[2]
    if not state.log.first_index <= index <= state.log.last_index:
        return False
    own = state.reader.entry(index)
    own_body, body = own[HEADER_SIZE:], entry[HEADER_SIZE:]
    if own[: _CRCS.start] != entry[: _CRCS.start] or own_body == body:
        return False
    is_sound = body_is_sound(body, _unpack_header(entry)[7]) and (is_message(body) or not is_message(own_body))
    return not is_sound and body_is_sound(own_body, _unpack_header(own)[7])


def _compare(state: JavaState, push: Push) -> None:
    equal = _has_equal(state, push.entries[0])
    state.verified_index = push.first_index if equal else min(state.verified_index, push.first_index - 1)
    answer_when_durable(state, push, push.first_index, Code.SUCCESS if equal else Code.INCONSISTENT_STATE)


def _truncate(state: JavaState, push: Push) -> None:
    """Remove all entries after the one in the push, which is appended if the log does not have it."""
    log, entry, index = state.log, push.entries[0], push.first_index
    equal = _has_equal(state, entry)
    first_cut = index + 1 if equal else index
    # An unequal entry is the leader's first one. If what comes before it is not known to be the leader's, none of it is kept.
    joins = log.first_index <= index <= min(log.last_index, state.relied_index) + 1 and not _moves_begin(state, entry)
    begins_anew = not equal and not joins
    if first_cut <= state.relied_index and not (begins_anew and state.end_index == NO_INDEX):
        # Each TRUNCATE comes after a COMPARE with an earlier entry or an unequal one, unless it was delayed.
        diverged = first_cut > state.verified_index
        reason = str(Diverged(first_cut, state.commit_index, push.sender)) if diverged else None
        state.send(state.reply(push, Code.INCONSISTENT_STATE, reason))
        return
    # Before anything is removed, because a damaged entry is refused.
    received = [] if equal else _read_batches(state, push, None if begins_anew else log.term_at(index - 1))
    if isinstance(received, Reply):
        state.send(received)
        return
    if begins_anew:
        position = _unpack_header(entry)[4]
        snapshot = Snapshot(index - 1, -1, state.configuration, BeginAnew(position, NO_INDEX, b""))
        log.restore(snapshot)
        state.commit_index = state.applied_index = index - 1
        state.snapshot = snapshot
    elif first_cut <= log.last_index:
        log.truncate(first_cut)
    for batch in received:
        log.append_received(batch, batch.first_index)
    state.verified_index = index
    follow_commit(state, push.commit_index)
    answer_when_durable(state, push, index, Code.SUCCESS)


def _moves_begin(state: JavaState, entry: memoryview) -> bool:
    _, size, index, _, position, *_ = _unpack_header(entry)
    return state.end_index == NO_INDEX and index == state.log.first_index and not state.reader.fits(position, size)


def _take_entries(state: JavaState, push: Push) -> None:
    _, size, _, _, position, *_ = _unpack_header(push.entries[0])
    if state.verified_index != state.log.last_index:
        received: list[Batch] | Reply = state.reply(push, Code.INCONSISTENT_STATE)
    elif not state.reader.fits(position, size):
        reason = (
            f"entry {push.first_index} of {size} bytes is at position {position} in the log of {push.sender} and would be at "
            "another one here: set the same mappedFileSizeCommitLog on all nodes of the group"
        )
        received = state.reply(push, Code.INCONSISTENT_STATE, reason)
    else:
        received = _read_batches(state, push, state.log.last_term)
    if isinstance(received, Reply):
        state.send(received)
        return
    for batch in received:
        state.log.append_received(batch, batch.first_index)
    state.verified_index = push.last_index
    follow_commit(state, push.commit_index)
    answer_when_durable(state, push, push.last_index, Code.SUCCESS)


def _read_batches(state: JavaState, push: Push, term: Term | None) -> list[Batch] | Reply:
    """Return the entries of a push, or a refusal if they are not valid behind an entry of `term`, or as the first ones."""
    batches, refusal = list[Batch](), state.reply(push, Code.INCONSISTENT_STATE)
    index, term, end = push.first_index, NO_TERM if term is None else term, -1
    for entries in _in_one_file(push.entries):
        _, size, _, _, position, *_ = _unpack_header(entries)
        if batches and not state.reader.fits(position, size, end):
            return refusal
        walked = walk_entries(entries, 0, len(entries), position=position, next_index=index, term=term, check_bodies=True)
        if walked.damaged:
            return attrs.evolve(refusal, reason=damaged_entry(walked.next_index, push.sender))
        if walked.fault is not None or walked.runs[-1][1] > state.term:
            return refusal
        runs = tuple(TermRun(*run) for run in walked.runs)
        batches.append(Batch(index, walked.next_index - 1, runs, len(entries), ReceivedEntries(walked, entries)))
        index, term, end = walked.next_index, walked.runs[-1][1], walked.position
    return batches


def damaged_entry(index: LogIndex, leader: PeerId) -> str:
    """Describe an entry that a leader has sent with a damaged body; it is sent again until another node leads."""
    return (
        f"entry {index} is damaged on the disk of {leader}, and DLedger's protocol has no request for another copy: transfer "
        "leadership to a node that has the entry, and replace the node whose copy is damaged"
    )


def _in_one_file(entries: Sequence[memoryview]) -> list[memoryview]:
    """Join the entries of a push; those of a Java node may have a blank block among them, behind which the next file begins."""
    parts, end = list[list[memoryview]](), -1
    for entry in entries:
        position: int = _unpack_header(entry)[4]
        if position != end:
            parts.append([])
        parts[-1].append(entry)
        end = position + len(entry)
    return [memoryview(b"".join(part)) for part in parts]


def _look_at_leftovers(state: JavaState) -> None:
    """Answer repeated pushes, and refuse those whose preceding entries did not arrive in time (checkAbnormalFuture)."""
    for first, (push, arrived_ms) in list(state.waiting.items()):
        if push.last_index <= state.log.last_index:
            equal = all(_has_equal(state, entry) for entry in push.entries)
            state.take_waiting(first)
            answer_when_durable(state, push, push.last_index, Code.SUCCESS if equal else Code.INCONSISTENT_STATE)
        elif state.now_ms - arrived_ms > state.settings.gap_ms or first <= state.log.last_index:
            state.take_waiting(first)
            state.send(state.reply(push, Code.INCONSISTENT_STATE))


def follow_commit(state: JavaState, commit_index: LogIndex) -> None:
    """Adopt the leader's commit index, but only up to where this log was compared with the leader's."""
    state.commit_index = max(state.commit_index, min(commit_index, state.verified_index))


def answer_when_durable(state: JavaState, push: Push, index: LogIndex, code: int) -> None:
    """Answer a push; an answer of success waits until everything up to `index` is durable."""
    reply = state.reply(push, code)
    if code == Code.SUCCESS and index > state.log.durable_index:
        state.unanswered.append((index, reply))
    else:
        state.send(reply)


def answer_durable(state: JavaState) -> None:
    """Send the answers whose entries have become durable."""
    kept: list[tuple[LogIndex, Reply]] = []
    for index, reply in state.unanswered:
        if index <= state.log.durable_index:
            state.send(attrs.evolve(reply, begin_index=state.begin_index, end_index=state.end_index))
        else:
            kept.append((index, reply))
    state.unanswered = kept
