"""When and where a failed send goes next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.errors import ClientError, NoAnswer, Unreachable, refusal
from ledgermq.client.retry import PAUSE_SECONDS_MAX, SEARCH_PAUSE_SECONDS_MAX, Attempts, attempt_seconds, choose_queue
from ledgermq.message.message import MessageQueue

QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("a", "b", "c") for queue_id in range(2)]
NOBODY: frozenset[str] = frozenset()


def test_the_first_attempt_leaves_time_for_the_others() -> None:
    """With another broker at hand a third of the time is enough; alone, a broker gets all of it."""
    assert attempt_seconds(3.0, 2, elsewhere=True) == 1.0
    assert attempt_seconds(3.0, 2, elsewhere=False) == 3.0
    assert attempt_seconds(0.8, 0, elsewhere=True) == 0.8
    assert attempt_seconds(0.06, 2, elsewhere=True) == 0.05, "shares do not become so short that none can succeed"


def test_failures_that_may_have_stored_are_counted() -> None:
    """Each retry after one of them may store the message twice."""
    attempts = Attempts(2)

    pauses = [attempts.again(NoAnswer("b", "x"), elsewhere=True, spread=0.5) for _ in range(3)]

    assert pauses == [0.0, 0.0, None]
    assert attempts.may_have_been_stored


def test_failures_that_stored_nothing_are_not_counted() -> None:
    """They are tried until the time is over, ever more slowly."""
    attempts = Attempts(0)

    pauses = [attempts.again(Unreachable("b", "refused"), elsewhere=False, spread=0.5) for _ in range(20)]

    found = [pause for pause in pauses if pause is not None]
    assert len(found) == 20
    assert found == sorted(found)
    assert found[-1] == SEARCH_PAUSE_SECONDS_MAX < PAUSE_SECONDS_MAX, "a group without a master has one again within a moment"
    assert not attempts.may_have_been_stored


@pytest.mark.parametrize(
    ("code", "again"),
    [
        (1, True),
        (2, True),
        (14, True),
        (16, True),
        (17, True),
        (1500, True),
        (13, False),
        (26, True),
        (29, False),
        (999, False),
    ],
)
def test_codes_say_whether_to_try_again(code: int, again: bool) -> None:
    """As RocketMQ's producers do; codes that nobody knows end the send."""
    pause = Attempts(2).again(refusal(code, "x", "b"), elsewhere=True, spread=0.0)

    assert (pause is not None) is again


def test_what_is_not_retriable_ends_at_once() -> None:
    """A plain error of the client is final."""
    assert Attempts(5).again(ClientError(), elsewhere=True, spread=0.0) is None


@given(st.integers(0, 1000), st.sets(st.sampled_from("abc")), st.sampled_from([None, "a", "b", "c"]))
def test_the_last_broker_is_never_chosen_when_there_is_another(counter: int, avoid: set[str], last: str | None) -> None:
    """And a broker to be avoided only if the others are, too."""
    chosen = QUEUES[choose_queue(QUEUES, counter, frozenset(avoid), last)].broker_name

    assert chosen != last
    better = set("abc") - avoid - {last}
    assert not better or chosen in better


@given(st.integers(0, 1000))
def test_without_reasons_it_is_the_plain_next_queue(counter: int) -> None:
    """Round robin is the rule."""
    assert choose_queue(QUEUES, counter, NOBODY) == counter % len(QUEUES)
    assert choose_queue(QUEUES[:2], counter, frozenset("a"), "a") == counter % 2, "a lone broker is tried again"
