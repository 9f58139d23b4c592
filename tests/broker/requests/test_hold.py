"""Held pulls, without a clock or a socket."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice

import pytest

from ledgermq.broker.requests.hold import Arrival, HeldPull, HeldPulls, common_deadline


def held(
    name: str,
    *,
    topic: str = "T",
    queue_id: int = 0,
    offset: int = 5,
    codes: frozenset[int] | None = None,
    deadline: float = 15.0,
) -> HeldPull[str]:
    return HeldPull(topic, queue_id, offset, codes, deadline, name[0], name)


def names(pulls: Iterable[HeldPull[str] | None]) -> list[str]:
    return [pull.request for pull in pulls if pull is not None]


def woken(holds: HeldPulls[str], *arrivals: Arrival) -> list[str]:
    """Take all pulls that match new messages."""
    return [name for queue, newest in holds.arrived(arrivals).items() for name in names(holds.matching(queue, newest))]


def test_an_arrival_wakes_the_pulls_of_its_queue() -> None:
    """All that wait on the queue are woken, in the order in which they came, and nobody else."""
    holds = HeldPulls[str]()
    for pull in (held("a"), held("b"), held("c", queue_id=1), held("d", topic="U")):
        assert holds.hold(pull)

    assert woken(holds, ("T", 0, 6, 0)) == ["a", "b"]
    assert woken(holds, ("T", 0, 7, 0)) == []
    assert len(holds) == 2


def test_a_pull_sleeps_through_messages_it_does_not_want() -> None:
    """Other tags, and messages before its offset, leave it alone."""
    holds = HeldPulls[str]()
    holds.hold(held("a", codes=frozenset((1, 2))))

    assert woken(holds, ("T", 0, 6, 3), ("T", 0, 5, 1)) == []
    assert woken(holds, ("T", 0, 7, 3), ("T", 0, 8, 2)) == ["a"]


def test_a_pull_is_released_at_its_deadline() -> None:
    """Not before, and the earlier one first."""
    holds = HeldPulls[str]()
    for pull in (held("a", deadline=16), held("b", deadline=15), held("c", deadline=17)):
        holds.hold(pull)

    assert names(holds.due(14.9)) == []
    assert names(holds.due(16)) == ["b", "a"]
    assert names(holds.due(17)) == ["c"]


@pytest.mark.parametrize(
    ("now", "seconds", "deadline"), [(3.2, 15, 20), (5, 15, 20), (5.1, 15, 25), (3.2, 1, 5), (3.2, 0.5, 4), (3.0, 1, 4)]
)
def test_waits_end_together_and_never_early(now: float, seconds: float, deadline: float) -> None:
    """Long ones at multiples of 5 seconds, short ones at whole seconds, as RocketMQ's housekeeping has it."""
    assert common_deadline(now, seconds) == deadline


def test_a_closed_connection_takes_its_pulls_along() -> None:
    """Pulls of others stay."""
    holds = HeldPulls[str]()
    for pull in (held("a1"), held("a2", queue_id=1), held("b1")):
        holds.hold(pull)

    assert holds.drop("a") == 2
    assert holds.drop("a") == 0
    assert woken(holds, ("T", 0, 9, 0), ("T", 1, 9, 0)) == ["b1"]


def test_there_is_room_for_so_many_and_no_more() -> None:
    """One owner, and all together, have a bound; room that is given back is used again."""
    holds = HeldPulls[str](per_owner_max=2, total_max=3)

    assert [holds.hold(held(name)) for name in ("a1", "a2", "a3", "b1", "c1")] == [True, True, False, True, False]
    holds.drop("b")
    assert holds.hold(held("c1"))


def test_a_deleted_topic_lets_its_pulls_go() -> None:
    """They are to be answered, for the topic they wait on is gone."""
    holds = HeldPulls[str]()
    for pull in (held("a"), held("b", queue_id=3), held("c", topic="U")):
        holds.hold(pull)

    assert sorted(names(holds.release(lambda pull: pull.topic == "T"))) == ["a", "b"]
    assert len(holds) == 1


def test_pulls_are_taken_one_by_one_and_none_that_was_taken_otherwise() -> None:
    """Of pulls that are due, some are answered in this turn; until the next one a message comes, or a connection ends."""
    holds = HeldPulls[str]()
    for name in ("a1", "a2", "b1", "c1", "c2"):
        holds.hold(held(name, offset=9 if name == "c1" else 5))

    due = holds.due(20)
    assert names(islice(due, 1)) == ["a1"]
    assert len(holds) == 4, "what was not taken yet is still held"
    assert woken(holds, ("T", 0, 8, 0)) == ["a2", "b1", "c2"]
    holds.hold(held("b2"))
    holds.drop("c")

    assert list(due) == [None] * 4
    assert names(holds.due(20)) == ["b2"]


def test_random_histories_agree_with_a_plain_list() -> None:
    """Whatever comes and goes, the table holds what a list that is searched through would hold."""
    for seed in range(200):
        rng = random.Random(seed)
        holds, plain = HeldPulls[str](per_owner_max=4, total_max=12), list[HeldPull[str]]()
        now = 0.0
        for step in range(60):
            now += rng.random()
            action = rng.randrange(4)
            if action < 2:
                codes = None if rng.random() < 0.5 else frozenset((rng.randrange(3),))
                pull = held(f"{rng.choice('abc')}{step}", queue_id=rng.randrange(2), offset=rng.randrange(4), codes=codes)
                pull.deadline = common_deadline(now, rng.random() * 20)
                room = len(plain) < 12 and sum(other.owner == pull.owner for other in plain) < 4
                assert holds.hold(pull) is room
                plain += [pull] * room
            elif action == 2:
                arrival: Arrival = ("T", rng.randrange(2), rng.randrange(5), rng.randrange(3))
                matching = [
                    pull
                    for pull in plain
                    if pull.queue_id == arrival[1]
                    and arrival[2] > pull.offset
                    and (pull.codes is None or arrival[3] in pull.codes)
                ]
                assert woken(holds, arrival) == names(matching)
                plain = [pull for pull in plain if pull not in matching]
            else:
                over = [pull for pull in plain if pull.deadline <= now]
                assert sorted(names(holds.due(now))) == sorted(names(over))
                plain = [pull for pull in plain if pull not in over]
            assert len(holds) == len(plain)


def test_a_pull_with_many_tags_takes_the_room_of_many() -> None:
    """Otherwise pulls with long filters would fill the memory before there are too many of them."""
    pulls = HeldPulls[str](total_max=10)
    filtered = [HeldPull("T", 0, 0, frozenset(range(32)), 9.0, "owner", f"{n}") for n in range(3)]

    assert [pulls.hold(pull) for pull in filtered] == [True, True, False]
    assert pulls.drop("owner") == 2
    assert all(pulls.hold(HeldPull("T", 0, 0, None, 9.0, "owner", f"{n}")) for n in range(10))
