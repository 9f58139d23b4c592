"""Dividing queues among members."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.errors import InvalidArgument
from ledgermq.client.rebalance import (
    STRATEGIES,
    allocate,
    average,
    average_by_circle,
    consistent_hash,
    strategy_of,
)
from ledgermq.message.message import MessageQueue

MEMBERS = st.sets(st.text("abc012@#", min_size=1, max_size=6), min_size=1, max_size=8).map(sorted)


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", f"b{number // 4}", number % 4) for number in range(count)]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(members=MEMBERS, count=st.integers(0, 40))
def test_every_queue_has_exactly_one_owner(name: str, members: list[str], count: int) -> None:
    """Whatever the strategy: nothing is read twice, nothing is left out."""
    queues = queues_of(count)

    shares = [allocate(STRATEGIES[name], member, reversed(queues), reversed(members)) for member in members]

    assert sorted(queue for share in shares for queue in share) == sorted(queues)


@pytest.mark.parametrize("strategy", [average, average_by_circle])
@given(members=MEMBERS, count=st.integers(0, 40))
def test_shares_differ_by_one_at_most(strategy: object, members: list[str], count: int) -> None:
    """Both average strategies are fair."""
    assert strategy in (average, average_by_circle)
    chosen = average if strategy is average else average_by_circle
    sizes = [len(allocate(chosen, member, queues_of(count), members)) for member in members]

    assert max(sizes) - min(sizes) <= 1


def test_the_average_is_divided_as_in_java() -> None:
    """Eight queues and three members: three, three and two neighbours; by circle every third."""
    queues, members = queues_of(8), ["a", "b", "c"]

    assert [average(member, queues, members) for member in members] == [queues[0:3], queues[3:6], queues[6:8]]
    assert average_by_circle("b", queues, members) == [queues[1], queues[4], queues[7]]
    assert average("c", queues[:2], members) == [], "more members than queues leave some without"


@given(members=MEMBERS.filter(lambda members: len(members) > 1), count=st.integers(1, 40))
def test_on_a_ring_a_leaving_member_moves_only_its_own_queues(members: list[str], count: int) -> None:
    """The point of consistent hashing."""
    queues = queues_of(count)
    left = members[:-1]

    for member in left:
        assert set(consistent_hash(member, queues, members)) <= set(consistent_hash(member, queues, left))


def test_a_member_that_is_not_listed_gets_nothing() -> None:
    """The others divide everything among themselves."""
    assert allocate(average, "x", queues_of(4), ["a", "b"]) == []


def test_a_strategy_is_asked_for_by_its_name_or_given() -> None:
    """A name that nobody knows is refused, and the error lists those that are known."""
    assert (strategy_of("circle"), strategy_of(average)) == (average_by_circle, average)
    with pytest.raises(InvalidArgument, match="average, circle, consistent_hash or a function"):
        strategy_of("random")


def test_an_async_strategy_is_refused() -> None:
    """Nobody would wait for it."""

    async def later(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return list(queues)

    with pytest.raises(InvalidArgument, match="strategy must not be async"):
        strategy_of(later)  # type: ignore[arg-type]  # what a checker refuses, but no interpreter
