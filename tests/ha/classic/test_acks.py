"""The master's books of who holds what."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.classic.acks import GAP_MAX, Acknowledgements
from ledgermq.store.statuses import PutStatus


def test_without_a_slave_a_put_is_answered_at_once() -> None:
    """SLAVE_NOT_AVAILABLE does not wait for the deadline."""
    acks, answers = Acknowledgements(), list[PutStatus]()

    acks.wait(100, 3.0, answers.append)

    assert answers == [PutStatus.SLAVE_NOT_AVAILABLE]


def test_one_report_answers_every_put_it_covers_and_no_other() -> None:
    """Many puts wait on one report; those beyond it go on waiting and time out."""
    acks, answers = Acknowledgements(), dict[int, PutStatus]()
    acks.hold("slave", 0)
    for end in (100, 200, 300):
        acks.wait(end, 3.0, partial(answers.__setitem__, end))

    acks.hold("slave", 200)
    assert answers == {100: PutStatus.PUT_OK, 200: PutStatus.PUT_OK}

    acks.expire(2.9)
    assert 300 not in answers
    acks.expire(3.0)
    assert answers[300] is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert acks.waiting == 0


def test_a_put_that_is_already_covered_does_not_wait() -> None:
    """A slave may have reported before the put asks."""
    acks, answers = Acknowledgements(), list[PutStatus]()
    acks.hold("slave", 500)

    acks.wait(500, 3.0, answers.append)

    assert answers == [PutStatus.PUT_OK]


def test_a_slave_counts_as_too_far_behind_at_exactly_256_mib() -> None:
    """RocketMQ's isSlaveOK compares strictly."""
    acks = Acknowledgements()
    acks.hold("slave", 1000)

    assert acks.is_slave_ok(1000 + GAP_MAX - 1)
    assert not acks.is_slave_ok(1000 + GAP_MAX)
    assert acks.in_sync_replicas(1000 + GAP_MAX - 1) == 2
    assert acks.in_sync_replicas(1000 + GAP_MAX) == 1


def test_what_a_slave_only_claims_acknowledges_nothing() -> None:
    """Any peer can claim an offset before anything was sent to it; its next report proves that it receives."""
    acks = Acknowledgements()
    answers: list[PutStatus] = []
    acks.claim("slave", 100)
    acks.wait(100, 5.0, answers.append)
    assert answers == []

    acks.hold("slave", 100)

    assert answers == [PutStatus.PUT_OK]


def test_one_slave_counts_once_however_often_it_reports() -> None:
    """Three copies need two slaves, not two reports."""
    acks, answers = Acknowledgements(replicas=3), list[PutStatus]()
    acks.hold("one", 0)
    acks.hold("two", 0)
    acks.wait(100, 3.0, answers.append)

    acks.hold("one", 100)
    acks.hold("one", 100)
    assert answers == []

    acks.hold("two", 150)
    assert answers == [PutStatus.PUT_OK]
    assert acks.confirmed == 100


def test_with_too_few_slaves_for_the_copies_asked_for_a_put_does_not_wait() -> None:
    """One slave cannot make three copies."""
    acks, answers = Acknowledgements(replicas=3), list[PutStatus]()
    acks.hold("one", 0)

    acks.wait(100, 3.0, answers.append)

    assert answers == [PutStatus.SLAVE_NOT_AVAILABLE]


def test_what_was_confirmed_stays_confirmed_when_the_slave_leaves() -> None:
    """A slave that leaves takes no acknowledgement back, but the next put finds nobody."""
    acks, answers = Acknowledgements(), list[PutStatus]()
    acks.hold("slave", 700)
    acks.leave("slave")

    acks.wait(800, 3.0, answers.append)

    assert acks.confirmed == 700
    assert acks.slave_count == 0
    assert answers == [PutStatus.SLAVE_NOT_AVAILABLE]


def test_a_slave_that_comes_while_puts_wait_must_begin_before_them() -> None:
    """Otherwise its first report would answer puts whose bytes it was never sent."""
    acks = Acknowledgements()
    assert acks.unanswered_from(1000) == 1000
    acks.hold("slave", 1000)
    acks.wait(1000, 3.0, lambda _: None)

    acks.wait(1200, 3.0, lambda _: None)
    acks.wait(1500, 3.0, lambda _: None)
    assert acks.unanswered_from(1500) == 1000

    acks.hold("slave", 1200)
    assert acks.unanswered_from(1500) == 1200
    acks.hold("slave", 1500)
    assert acks.unanswered_from(1500) == 1500


@given(
    replicas=st.integers(2, 4),
    events=st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 4), st.integers(0, 50)),
            st.tuples(st.just("leave"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("put"), st.just(0), st.integers(1, 5)),
            st.tuples(st.just("pass"), st.just(0), st.integers(1, 3)),
        ),
        max_size=60,
    ),
)
def test_every_put_is_answered_once_and_ok_only_if_enough_slaves_held_it(
    replicas: int, events: list[tuple[str, int, int]]
) -> None:
    """Against a naive count: PUT_OK needs replicas - 1 slaves at or beyond the end at one moment; each put is answered once."""
    acks = Acknowledgements(replicas=replicas)
    held: dict[int, int] = {}
    best = 0
    end, now = 0, 0.0
    answers: list[tuple[int, PutStatus, int]] = []
    puts = 0

    def answer(end: int, status: PutStatus) -> None:
        answers.append((end, status, acks.confirmed))

    for kind, who, number in events:
        if kind == "hold":
            held[who] = number
            best = max(best, _copies(held, replicas))
            acks.hold(who, number)
        elif kind == "leave":
            held.pop(who, None)
            acks.leave(who)
        elif kind == "put":
            end += number
            puts += 1
            acks.wait(end, now + 2, partial(answer, end))
        else:
            now += number
            acks.expire(now)
        assert acks.confirmed == best
    acks.fail(PutStatus.FLUSH_SLAVE_TIMEOUT)

    assert len(answers) == puts
    for end, status, best_then in answers:
        assert (status is PutStatus.PUT_OK) <= (best_then >= end)


def _copies(held: dict[int, int], replicas: int) -> int:
    offsets = sorted(held.values(), reverse=True)
    return offsets[replicas - 2] if len(offsets) >= replicas - 1 else 0
