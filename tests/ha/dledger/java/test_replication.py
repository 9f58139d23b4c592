"""Replication of the java dialect: COMPARE, TRUNCATE, APPEND and COMMIT, what a follower refuses, and what is committed."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from ledgermq.ha.dledger.java.core import JavaCore
from ledgermq.ha.dledger.java.election import become_leader
from ledgermq.ha.dledger.java.messages import APPEND, COMMIT, COMPARE, TRUNCATE, Answer, Answered, Code, Push, Reply
from ledgermq.ha.dledger.java.replication import advance_commit, apply_pushes, feed_followers, same_entry
from ledgermq.ha.dledger.ledger.layout import HEADER_SIZE
from ledgermq.ha.raft.units import PeerId

from ..java_nodes import OTHER, OWN, SIZE, THIRD, answer, entry, node, sent


def leader(terms: Sequence[int], *, term: int = 3, begin: int = 0, voters: Sequence[str] = ("n0", "n1", "n2")) -> JavaCore:
    """A leader of `term` whose follower n1 has answered a heartbeat."""
    core = node(terms, term=term, vote=OWN, begin=begin, voters=voters)
    become_leader(core)
    sent(core)
    assert core.leadership is not None
    core.leadership.group.followers[OTHER].follows = True
    return core


def pushes(core: JavaCore) -> list[Push]:
    """What the leader sends next."""
    feed_followers(core)
    return [one for one in sent(core) if isinstance(one, Push)]


def push(kind: str, first: int, terms: Sequence[int], *, commit: int = -1, sender: PeerId = OTHER, body: int = 0) -> Push:
    """A push of the leader n1 of term 3."""
    entries = tuple(entry(first + at, term, body) for at, term in enumerate(terms))
    last = first + len(terms) - 1 if terms else -1
    return Push(
        sender=sender,
        to=OWN,
        term=3,
        kind=kind,
        commit_index=commit,
        first_index=first if terms else -1,
        last_index=last,
        entries=entries,
    )


def replies(core: JavaCore) -> list[Reply]:
    return [one for one in sent(core) if isinstance(one, Reply)]


# ---------------------------------------------------------------------------------------------------------------- the leader


def test_a_committed_index_that_was_lost_is_sent_again() -> None:
    """Else a follower would not serve the last messages until the next one comes."""
    core = leader([1, 3])
    assert core.leadership is not None
    follower = core.leadership.group.followers[OTHER]
    follower.state, follower.write_index, core.commit_index = APPEND, 2, 1
    (lost,) = pushes(core)
    assert (lost.kind, lost.commit_index) == (COMMIT, 1)
    core.step(Answered(lost, None))
    assert pushes(core) == []
    assert core.ticks_until_due * 10 <= core.settings.commit_ms

    core.now_ms += core.settings.commit_ms
    (again,) = pushes(core)
    assert (again.kind, again.commit_index) == (COMMIT, 1)
    core.step(Answered(again, Answer(code=Code.INCONSISTENT_STATE, term=3)))

    assert [one.kind for one in pushes(core)] == [COMPARE]


@pytest.mark.parametrize(
    ("code", "bounds", "kind", "index"),
    [
        (Code.SUCCESS, (0, 9), APPEND, 10),
        (Code.SUCCESS, (0, 12), TRUNCATE, 9),
        (Code.INCONSISTENT_STATE, (-1, -1), TRUNCATE, 4),
        (Code.INCONSISTENT_STATE, (0, 3), TRUNCATE, 4),
        (Code.INCONSISTENT_STATE, (12, 14), TRUNCATE, 4),
        (Code.INCONSISTENT_STATE, (0, 6), COMPARE, 6),
        (Code.INCONSISTENT_STATE, (0, 9), COMPARE, 8),
        (Code.INCONSISTENT_STATE, (0, 12), COMPARE, 8),
    ],
    ids=["equal ends", "has more", "empty", "ends before", "begins behind", "shorter", "differs at the end", "differs"],
)
def test_compare_decides_as_do_compare_does(code: int, bounds: tuple[int, int], kind: str, index: int) -> None:
    """A leader with the entries 4 to 9 has compared its last one; the next push depends on the follower's answer."""
    core = leader([1] * 10, begin=4)
    (compare,) = pushes(core)
    assert (compare.kind, compare.first_index) == (COMPARE, 9)

    core.step(Answered(compare, Answer(code=code, term=3, begin_index=bounds[0], end_index=bounds[1])))

    if kind == APPEND:
        assert core.leadership is not None
        assert core.leadership.group.followers[OTHER].write_index == index
    else:
        (following,) = pushes(core)
        assert (following.kind, following.first_index) == (kind, index)


@pytest.mark.parametrize("given", [None, Answer(code=Code.PUSH_REQUEST_IS_FULL, term=3)], ids=["none", "another code"])
def test_compare_pauses_after_an_error(given: Answer | None) -> None:
    """For half a second; then it begins at the leader's end again."""
    core = leader([1, 1])
    (compare,) = pushes(core)
    core.step(Answered(compare, given))

    assert pushes(core) == []
    core.now_ms += core.settings.error_pause_ms
    assert [one.kind for one in pushes(core)] == [COMPARE]


def test_append_follows_truncate_and_an_inconsistent_answer_compares_again() -> None:
    """At once, without a pause."""
    core = leader([1, 1])
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=-1, end_index=-1)))
    (truncate,) = pushes(core)
    core.step(Answered(truncate, Answer(code=Code.SUCCESS, term=3)))
    (append,) = pushes(core)
    assert (append.kind, append.first_index, append.last_index) == (APPEND, 1, 1)

    core.step(Answered(append, Answer(code=Code.INCONSISTENT_STATE, term=3)))

    assert [one.kind for one in pushes(core)] == [COMPARE]


@pytest.mark.parametrize("code", [Code.REPEATED_PUSH, Code.PUSH_REQUEST_IS_FULL, Code.NOT_FOLLOWER])
def test_a_push_that_is_not_queued_is_compared_again(code: int) -> None:
    """A push that still waits there was sent before the last comparison, so its answer is ignored."""
    core = leader([1, 1])
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=-1, end_index=-1)))
    (truncate,) = pushes(core)
    core.step(Answered(truncate, Answer(code=Code.SUCCESS, term=3)))
    (append,) = pushes(core)

    core.step(Answered(append, Answer(code=code, term=3)))

    core.now_ms += core.settings.error_pause_ms
    assert [one.kind for one in pushes(core)] == [COMPARE]


def test_a_follower_that_has_lost_entries_is_filled_again_though_no_new_one_comes() -> None:
    """A Java node syncs late, so a power cut takes what it acknowledged; until then it does not count."""
    core = leader([3, 3, 3])
    assert core.leadership is not None
    follower = core.leadership.group.followers[OTHER]
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=2)))
    core.now_ms += core.settings.commit_ms
    (commit,) = pushes(core)
    assert (commit.kind, follower.match_index) == (COMMIT, 2)

    core.step(Answered(commit, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=0)))

    (compare,) = pushes(core)
    assert (compare.kind, compare.first_index) == (COMPARE, 2)
    core.step(Answered(compare, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=0, end_index=0)))
    assert follower.match_index == 0
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=0)))
    (append,) = pushes(core)
    assert (append.kind, append.first_index, append.last_index) == (APPEND, 1, 2)
    core.step(Answered(append, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=2)))
    assert follower.match_index == 2


def test_what_expires_before_a_truncate_is_sent_is_compared_anew() -> None:
    """The follower would keep only the leader's last entry, and count as if it had all before it."""
    core = leader([1] * 10, begin=4)
    core.commit_index = core.applied_index = 8
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=0, end_index=3)))
    core.compact(6)

    (following,) = pushes(core)

    assert (following.kind, following.first_index) == (COMPARE, 9)


def refuse_entries(core: JavaCore) -> Push:
    """Refuse the first entries that the leader sends after a comparison; returns the refused push."""
    (compare,) = pushes(core)
    assert (compare.kind, compare.first_index) == (COMPARE, 4)
    core.step(Answered(compare, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=0, end_index=1)))
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=1)))
    append, *_ = pushes(core)
    core.step(Answered(append, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=0, end_index=1)))
    return append


def test_a_follower_that_refuses_entries_again_and_again_is_sent_them_after_a_pause() -> None:
    """As a Java node does whose disk is full: it still answers each COMPARE, and at once each push. It gets one at a time."""
    core = leader([1] * 5)
    core.settings = type(core.settings)(batches=False)
    assert core.leadership is not None
    follower = core.leadership.group.followers[OTHER]
    assert refuse_entries(core).refused_index == -1
    assert follower.refusal is None

    refuse_entries(core)

    assert pushes(core) == []
    assert "refuses the entries from 2 on" in (follower.refusal or "")
    core.now_ms += core.settings.error_pause_ms
    assert refuse_entries(core).refused_index == 2
    core.now_ms += core.settings.error_pause_ms
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.INCONSISTENT_STATE, term=3, begin_index=0, end_index=1)))
    (compare,) = pushes(core)
    core.step(Answered(compare, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=1)))
    (append,) = pushes(core)
    assert pushes(core) == []
    core.step(Answered(append, Answer(code=Code.SUCCESS, term=3, begin_index=0, end_index=2)))
    assert (follower.refusal, follower.match_index) == (None, 2)
    assert [one.first_index for one in pushes(core)] == [3, 4]


def test_a_quota_of_pushes_in_flight_lets_the_leader_wait() -> None:
    """An answer gives room for the next one; an answer of an earlier session gives none."""
    core = leader([1] * 2000)
    assert core.leadership is not None
    follower = core.leadership.group.followers[OTHER]
    follower.state, follower.write_index, follower.follows = APPEND, 0, True
    core.settings = type(core.settings)(inflight_max=3, batches=False)
    first, *_ = out = pushes(core)
    assert [one.first_index for one in out] == [0, 1, 2]
    assert pushes(core) == []

    core.step(Answered(first, Answer(code=Code.SUCCESS, term=3)))

    assert [one.first_index for one in pushes(core)] == [3]


@pytest.mark.parametrize(
    ("own", "marks", "committed"),
    [(3, [3, 2, 1, 1], 2), (3, [3, 3, 0, 0], 3), (3, [-1, -1, -1, -1], -1), (3, [3, 2, 2], 2)],
    ids=["five", "three of five", "alone", "four"],
)
def test_committed_index_is_the_water_mark_of_a_majority(own: int, marks: list[int], committed: int) -> None:
    """The element size / 2 of the marks in descending order, the leader's own among them."""
    core = leader([3] * (own + 1), voters=[f"n{number}" for number in range(len(marks) + 1)])
    assert core.leadership is not None
    for follower, mark in zip(core.leadership.group, marks, strict=True):
        follower.match_index = mark

    advance_commit(core)

    assert core.commit_index == committed


def test_entries_of_earlier_terms_are_committed_only_by_one_of_the_leaders_own() -> None:
    """Where DLedger counts them at once (Raft §5.4.2)."""
    core = leader([1, 2])
    assert core.leadership is not None
    for follower in core.leadership.group:
        follower.match_index = 1
    advance_commit(core)
    assert core.commit_index == -1


# -------------------------------------------------------------------------------------------------------------- the follower


def test_a_push_that_is_no_push_of_the_leader_changes_nothing() -> None:
    """The code is not 406, by which the sender would take the logs for different."""
    core = node([1], term=3, leader=THIRD)

    assert answer(core, push(COMPARE, 0, [1])).code == Code.NOT_FOLLOWER
    assert (core.leader, core.controls, core.waiting) == (THIRD, [], {})


def test_what_a_follower_receives_is_queued_or_refused() -> None:
    """411 without an entry, 413 for one that waits already, 421 when too many wait; a COMPARE refuses all that wait."""
    core = node([1], term=3, leader=OTHER)
    core.settings = type(core.settings)(waiting_max=2)
    for kind in (APPEND, COMPARE, TRUNCATE, "SOMETHING"):
        assert answer(core, push(kind, 0, [])).code == Code.UNEXPECTED_ARGUMENT
    core.step(push(APPEND, 5, [3]))
    assert answer(core, push(APPEND, 5, [3])).code == Code.REPEATED_PUSH
    core.step(push(APPEND, 6, [3]))
    assert answer(core, push(APPEND, 7, [3])).code == Code.PUSH_REQUEST_IS_FULL

    core.step(push(COMPARE, 0, [1]))

    assert [reply.code for reply in replies(core)] == [Code.INCONSISTENT_STATE] * 2
    assert not core.waiting


def test_pushes_that_wait_are_bounded_by_their_bytes() -> None:
    """A Java leader sends 1000 pushes ahead, each of which may have 4 MiB; no answer that waits keeps the entries."""
    core = node([1], term=3, leader=OTHER)
    core.settings = type(core.settings)(waiting_bytes_max=4 * SIZE)
    core.step(push(APPEND, 5, [3, 3]))
    core.step(push(APPEND, 7, [3, 3]))
    refusal = answer(core, push(APPEND, 9, [3]))
    assert (refusal.code, refusal.request.entries) == (Code.PUSH_REQUEST_IS_FULL, ())  # type: ignore[union-attr]

    core.now_ms += core.settings.gap_ms + 1
    apply_pushes(core)

    assert [reply.code for reply in replies(core)] == [Code.INCONSISTENT_STATE] * 2
    core.step(push(APPEND, 9, [3]))
    assert replies(core) == []


@pytest.mark.parametrize(("body", "code"), [(0, Code.SUCCESS), (1, Code.INCONSISTENT_STATE)])
def test_compare_is_answered_by_whether_the_entries_are_equal(body: int, code: int) -> None:
    """With the bounds of the log, which the leader needs for its decision. What was not compared is not appended to."""
    core = node([1, 1, 1], term=3, leader=OTHER)
    core.step(push(COMPARE, 1, [1], body=body))
    apply_pushes(core)

    (reply,) = replies(core)
    assert (reply.code, reply.begin_index, reply.end_index) == (code, 0, 2)
    assert core.verified_index == (1 if code == Code.SUCCESS else -1)


def test_truncate_removes_what_comes_after_the_entry_and_appends_it_where_it_is_lacking() -> None:
    """Never what is committed."""
    core = node([1, 1, 2, 2], term=3, leader=OTHER, committed=0)
    core.step(push(TRUNCATE, 1, [1]))
    apply_pushes(core)
    assert (core.log.last_index, core.verified_index, core.log.truncate_from) == (1, 1, 2)

    lacking = node([1], term=3, leader=OTHER)
    lacking.step(push(TRUNCATE, 1, [2]))
    apply_pushes(lacking)
    assert (lacking.log.last_index, lacking.log.last_term) == (1, 2)

    committed = node([1, 1, 2, 2], term=3, leader=OTHER, committed=2)
    committed.step(push(TRUNCATE, 1, [1]))
    apply_pushes(committed)
    (refusal,) = replies(committed)
    assert refusal.code == Code.INCONSISTENT_STATE
    assert "n1 would remove entries from index 2 on, but entries up to 2 are committed here" in (refusal.reason or "")
    assert committed.log.last_index == 3


def test_a_truncate_that_comes_late_removes_nothing_that_was_compared_since() -> None:
    """The leader, which got no answer in time, has compared again, and the entries are acknowledged."""
    core = node([1, 1, 3, 3], term=3, leader=OTHER)
    core.step(push(COMPARE, 3, [3]))
    apply_pushes(core)
    sent(core)

    core.step(push(TRUNCATE, 1, [1]))
    apply_pushes(core)

    assert [(reply.code, reply.reason) for reply in replies(core)] == [(Code.INCONSISTENT_STATE, None)]
    assert (core.log.last_index, core.log.truncate_from) == (3, None)


@pytest.mark.parametrize("kind", [COMPARE, TRUNCATE])
@pytest.mark.parametrize("crc", [True, False], ids=["ours", "of a Java node"])
def test_an_entry_whose_body_the_leader_has_lost_is_kept(kind: str, *, crc: bool) -> None:
    """A Java node syncs late: after a power cut its last entry may be a header and zeros, and by its header it leads again."""
    core = node([1, 1, 3], term=3, leader=OTHER, committed=1)
    torn = bytearray(entry(2, 3))
    torn[HEADER_SIZE:] = bytes(SIZE - HEADER_SIZE)
    if not crc:
        torn[36:44] = bytes(8)

    core.step(attrs.evolve(push(kind, 2, [3]), entries=(memoryview(torn),)))
    apply_pushes(core)

    (refusal,) = replies(core)
    assert refusal.code == Code.DISK_ERROR  # 406 would let the leader truncate before the entry
    assert "entry 2 is damaged on the disk of n1" in (refusal.reason or "")
    assert (core.log.last_index, core.log.truncate_from) == (2, None)


def test_an_unequal_entry_ends_what_was_compared() -> None:
    """So that the TRUNCATE which may follow is carried out."""
    core = node([1, 1, 3, 3], term=3, leader=OTHER)
    for kind, index, body in ((COMPARE, 3, 0), (COMPARE, 2, 1), (TRUNCATE, 2, 1)):
        core.step(push(kind, index, [3], body=body))
        apply_pushes(core)

    assert [reply.code for reply in replies(core)] == [Code.SUCCESS, Code.INCONSISTENT_STATE]
    assert core.log.last_index == 2


def test_what_comes_before_the_leaders_first_entry_is_kept_only_as_far_as_it_is_committed() -> None:
    """The entries between were replaced in the group while this node was away, and have expired at the leader."""
    core = node([1] * 8, term=3, leader=OTHER, committed=2)
    core.step(push(TRUNCATE, 5, [2], commit=5))
    apply_pushes(core)
    assert core.snapshot is not None
    assert (core.log.first_index, core.log.last_index, core.commit_index) == (5, 5, 5)

    core = node([1] * 8, term=3, leader=OTHER, committed=2)
    core.step(push(TRUNCATE, 3, [2], commit=3))
    apply_pushes(core)
    assert core.snapshot is None
    assert (core.log.first_index, core.log.last_index, core.log.truncate_from) == (0, 3, 3)


def test_an_emptied_log_begins_where_the_next_leader_begins() -> None:
    """The node was told to begin at 5, got no entry, and the new leader has earlier ones; nothing is removed by that."""
    core = node([1] * 5, term=3, leader=OTHER, committed=4, begin=5)
    assert (core.log.first_index, core.log.last_index) == (5, 4)

    core.step(push(TRUNCATE, 2, [1], commit=2))
    apply_pushes(core)

    assert core.snapshot is not None
    assert (core.log.first_index, core.log.last_index, core.commit_index) == (2, 2, 2)


@pytest.mark.parametrize(("terms", "index"), [([1, 1], 7), ([1, 1, 1], 1)], ids=["begin anew", "cut"])
def test_a_damaged_entry_of_a_truncate_removes_nothing(terms: list[int], index: int) -> None:
    """The node would have nothing, or less, until a leader has a sound one."""
    core = node(terms, term=3, leader=OTHER, committed=0)
    core.verified_index = 0
    damaged = bytearray(entry(index, 2))
    damaged[-1] ^= 1

    core.step(attrs.evolve(push(TRUNCATE, index, [2]), entries=(memoryview(damaged),)))
    apply_pushes(core)

    (refusal,) = replies(core)
    assert "is damaged on the disk of n1" in (refusal.reason or "")
    assert (core.snapshot, core.log.last_index, core.log.truncate_from) == (None, len(terms) - 1, None)


def test_an_append_is_answered_when_it_is_durable() -> None:
    """Java answers before any sync."""
    core = node([1], term=3, leader=OTHER)
    core.verified_index = 0
    core.step(push(APPEND, 1, [3, 3], commit=1))
    ready = core.ready()
    assert ready is not None
    assert replies(core) == []
    core.advance(ready)
    point = core.sync_point()

    core.persisted(point)

    (reply,) = replies(core)
    assert (reply.code, reply.index, reply.count, reply.end_index) == (Code.SUCCESS, 1, 2, 2)
    assert core.commit_index == 1


def test_an_append_to_what_was_not_compared_with_this_leader_is_refused() -> None:
    """The dialect's APPEND names no previous entry, so only the comparison shows that it joins."""
    core = node([1], term=3, leader=OTHER)
    core.step(push(APPEND, 1, [3]))
    apply_pushes(core)

    assert [reply.code for reply in replies(core)] == [Code.INCONSISTENT_STATE]
    assert core.log.last_index == 0


@pytest.mark.parametrize(("body", "code"), [(0, Code.SUCCESS), (1, Code.INCONSISTENT_STATE)])
def test_a_repeated_append_is_answered_by_what_the_log_has(body: int, code: int) -> None:
    """The abnormal check: an answer was lost, or the entries differ."""
    core = node([1, 1], term=3, leader=OTHER)
    core.step(push(APPEND, 1, [1], body=body))
    apply_pushes(core)

    assert [reply.code for reply in replies(core)] == [code]


def test_a_gap_is_refused_after_a_second() -> None:
    """The abnormal check: until then the missing push may still come."""
    core = node([1], term=3, leader=OTHER)
    core.verified_index = 0
    core.step(push(APPEND, 3, [3]))
    core.now_ms += core.settings.gap_ms
    apply_pushes(core)
    assert replies(core) == []

    core.now_ms += 1
    apply_pushes(core)

    assert [reply.code for reply in replies(core)] == [Code.INCONSISTENT_STATE]


def test_commit_goes_no_further_than_what_was_compared_with_this_leader() -> None:
    """Where DLedger goes to its own end, which may hold other entries than the leader's; it says so, to be compared again."""
    core = node([1, 1, 1], term=3, leader=OTHER)
    core.verified_index = 1

    assert answer(core, push(COMMIT, 0, [], commit=1)).code == Code.SUCCESS
    assert answer(core, push(COMMIT, 0, [], commit=2)).code == Code.INCONSISTENT_STATE
    assert core.commit_index == 1


def test_entries_are_compared_without_their_checksums() -> None:
    """A Java node leaves both 0."""
    ours = entry(0, 1)
    theirs = bytearray(ours)
    theirs[36:44] = bytes(8)

    assert same_entry(ours, memoryview(theirs))
    theirs[-1] ^= 1
    assert not same_entry(ours, memoryview(theirs))
