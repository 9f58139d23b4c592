"""Many questions to many brokers, of which some do not answer."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from ledgermq.cli.dashboard.survey import ANSWER_SECONDS, Survey
from ledgermq.client.admin import Admin
from ledgermq.client.admin.errors import NoSuchGroup
from ledgermq.client.admin.values import Cluster
from ledgermq.client.errors import InvalidArgument, Unreachable
from ledgermq.client.route import BrokerRoute
from ledgermq.world.address import Address


class FakeAdmin:
    async def cluster(self) -> Cluster:
        await trio.lowlevel.checkpoint()
        addresses = [{0: Address("a", 1)}, {0: Address("b", 1), 1: Address("b", 2)}, {1: Address("c", 2)}]
        return Cluster(tuple(BrokerRoute(f"broker-{'abc'[at]}", "C", each) for at, each in enumerate(addresses)))


async def begin() -> Survey:
    return await Survey.begin(cast("Admin", FakeAdmin()))


async def test_masters_are_asked_and_a_name_without_one_is_noted() -> None:
    survey = await begin()

    answers = await survey.ask(survey.everywhere([1, 2]), doubled)

    assert answers == {("a:1", 1): 2, ("a:1", 2): 4, ("b:1", 1): 2, ("b:1", 2): 4}
    assert survey.notes == ["broker-c has no master now, so its answers are missing."]
    assert not survey.complete


async def doubled(_: str, thing: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * thing


async def test_a_broker_that_hangs_is_named_and_not_waited_for_again(autojump_clock: trio.testing.MockClock) -> None:
    """All questions to it wait at the same time, so a page is late by one limit and no more."""
    survey = await begin()

    async def ask(broker: str, thing: int) -> int:
        if broker == "a:1":
            await trio.sleep_forever()
        return await doubled(broker, thing)

    first = await survey.ask(survey.everywhere(range(100)), ask)
    second = await survey.ask(survey.everywhere([7]), ask)

    assert trio.current_time() == pytest.approx(ANSWER_SECONDS)
    assert len(first) == 100
    assert second == {("b:1", 7): 14}
    assert survey.notes[1:] == ["a:1 did not answer within 3 s."]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (Unreachable("a:1", "refused"), "a:1 cannot be reached: refused"),
        (Unreachable("x", "no connection"), "a:1: x cannot be reached: no connection"),
        (NoSuchGroup("g"), None),
    ],
)
async def test_an_error_is_noted_with_its_broker_unless_it_means_that_there_is_nothing(
    error: Exception, note: str | None
) -> None:
    survey = await begin()

    async def ask(broker: str, _: int) -> Any:
        await trio.lowlevel.checkpoint()
        raise error

    assert await survey.ask([("a:1", 1), ("a:1", 2)], ask) == {}
    assert survey.notes[1:] == ([note] if note else [])


async def test_what_cannot_exist_is_an_error() -> None:
    survey = await begin()

    async def ask(*_: object) -> Any:
        await trio.lowlevel.checkpoint()
        raise InvalidArgument("topic: no such characters")

    with pytest.raises(InvalidArgument, match="no such characters"):
        await survey.ask(survey.everywhere(["a b"]), ask)
