"""The live role: its order of change by itself, and brokers of a pair whose roles are exchanged under load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

import attrs
import pytest
import trio

from ledgermq.broker.role import LiveRole, Role, RoleState
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import ConsumeFrom, open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.message.message import Message
from ledgermq.remoting.codes import ResponseCode
from ledgermq.testing.sim.clock import SimClock

from .desk import Desk, until
from .modes.test_replication import SLAVE, joined, open_group


def starting_role() -> LiveRole:
    return LiveRole(RoleState(Role.READ_ONLY, 0, "it is starting"), SimClock(now=lambda: 0.0))


async def no_work(_new: RoleState) -> None:
    await trio.lowlevel.checkpoint()


@attrs.define
class Recorded:
    """Writes down what the role is while a change goes on."""

    role: LiveRole
    steps: list[str] = attrs.field(factory=list[str])
    preparing: Callable[[RoleState], Awaitable[None]] = no_work

    async def prepare(self, old: RoleState, new: RoleState) -> None:
        self.steps.append(f"prepare {old.role.value} as {self.role.state.role.value}")
        await self.preparing(new)

    def serve(self, new: RoleState) -> None:
        self.steps.append(f"serve {new.role.value} as {self.role.state.role.value}")


async def test_a_master_counts_as_one_only_when_everything_is_prepared() -> None:
    """Until then it refuses puts."""
    role = starting_role()
    change = Recorded(role)
    role.begin(change)

    assert await role.change(Role.MASTER, 0, "test")

    assert change.steps == ["prepare read-only as read-only", "serve master as master"]
    assert role.refusal is None


@pytest.mark.parametrize("fails", [False, True])
async def test_a_future_master_keeps_its_id_and_term_until_it_is_ready(*, fails: bool) -> None:
    """A registration that falls into the change, or comes after it has failed, does not name it as the master."""
    role = LiveRole(RoleState(Role.FOLLOWER, 2, "another leads"), SimClock(now=lambda: 0.0))
    seen: list[tuple[int, int]] = []

    async def preparing(_new: RoleState) -> None:
        seen.append((role.broker_id, role.state.term))
        if fails:
            raise OSError(28, "No space left on device")
        await trio.lowlevel.checkpoint()

    role.begin(Recorded(role, preparing=preparing))

    with pytest.raises(OSError, match="No space") if fails else nullcontext():
        await role.change(Role.MASTER, 0, "elected", term=7)

    assert seen == [(2, 0)]
    assert (role.broker_id, role.state.term) == ((2, 0) if fails else (0, 7))


async def test_a_replica_is_one_from_the_first_step_on() -> None:
    """What it holds may be behind from that moment on."""
    role = starting_role()
    change = Recorded(role)
    role.begin(change)

    await role.change(Role.SLAVE, 1, "test")

    assert change.steps == ["prepare read-only as slave", "serve slave as slave"]
    assert role.refusal == "the broker is a slave; send to its master"


async def test_a_later_change_ends_one_that_waits(autojump_clock: trio.testing.MockClock) -> None:
    """The first is not reached; the second begins with the first step."""
    role = starting_role()
    results: dict[str, bool] = {}

    async def preparing(new: RoleState) -> None:
        if new.role is Role.MASTER:
            await trio.sleep_forever()

    change = Recorded(role, preparing=preparing)
    role.begin(change)

    async def become(name: str, change: Callable[[], Awaitable[bool]]) -> None:
        results[name] = await change()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(become, "master", lambda: role.change(Role.MASTER, 0, "elected"))
        await trio.sleep(1)
        assert role.state.role is Role.READ_ONLY
        nursery.start_soon(become, "slave", lambda: role.change(Role.FOLLOWER, 2, "a leader was elected"))

    assert results == {"master": False, "slave": True}
    assert change.steps == ["prepare read-only as read-only", "prepare read-only as follower", "serve follower as follower"]
    assert role.broker_id == 2


async def test_a_step_that_fails_leaves_the_broker_read_only_and_says_why() -> None:
    """The change may be repeated."""
    role = starting_role()
    failing = [True]

    async def preparing(_new: RoleState) -> None:
        if failing:
            failing.clear()
            raise OSError(28, "No space left on device")

    role.begin(Recorded(role, preparing=preparing))

    with pytest.raises(OSError, match="No space"):
        await role.change(Role.MASTER, 0, "test")
    assert role.refusal is not None
    assert "No space left on device" in role.refusal

    assert await role.change(Role.MASTER, 0, "test")
    assert role.takes_puts


async def test_steps_are_named_once_and_before_the_first_change() -> None:
    """A step that is named later would miss a change, and the order would depend on who comes first."""
    role = starting_role()
    with pytest.raises(AssertionError, match="named its steps"):
        await role.change(Role.MASTER, 0, "test")

    role.begin(Recorded(role))
    with pytest.raises(AssertionError, match="named once"):
        role.begin(Recorded(role))


# ---------------------------------------------------------------- real pairs


async def exchange(old: Desk, new: Desk) -> None:
    """Let the master become the slave, and the slave the master, as an operator would: the slave catches up in between."""
    await old.broker.role.change(Role.READ_ONLY, 0, "exchange")
    end = old.broker.store.log.max_offset
    await until(lambda: new.broker.store.log.max_offset == end)
    await old.broker.role.change(Role.SLAVE, 1, "exchange")
    await new.broker.role.change(Role.MASTER, 0, "exchange", synchronous=True)


async def test_roles_exchanged_under_load_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """A producer, a consumer and a delayed message go on through four exchanges; the queues have no gap."""
    settings = {"default_topic_queue_nums": 2, "broker_role": "SYNC_MASTER", "message_delay_level": "1s 2s"}
    async with (
        open_group(tmp_path) as group,
        group.desk("a", **settings) as first,
        group.desk("b", **{**settings, **SLAVE}) as second,
        open_admin(group.namesrv) as admin,
        open_producer(group.namesrv, "p") as producer,
    ):
        await until(lambda: joined(first))
        await admin.create_topic("T", queues=2)
        sent: list[str] = []
        received: list[str] = []
        exchanges_done = trio.Event()

        async def produce() -> None:
            number = 0
            while not exchanges_done.is_set():
                delay = 1 if number % 50 == 0 else 0
                body = str(number)
                await producer.send(Message("T", body.encode(), delay_level=delay))
                sent.append(body)
                number += 1

        async def consume() -> None:
            async with open_consumer(group.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST) as consumer:
                async for message in consumer:
                    received.append(message.body.decode())  # noqa: PERF401 - others look at it meanwhile

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            nursery.start_soon(produce)
            desks = [first, second]
            for _ in range(4):
                before = len(sent)
                with trio.fail_after(30):
                    await exchange(*desks)
                    while len(sent) < before + 20:  # noqa: ASYNC110 - progress of real brokers has no event
                        await trio.sleep(0.01)
                desks.reverse()
            exchanges_done.set()
            with trio.fail_after(30):
                while not set(received) >= set(sent):  # noqa: ASYNC110 - progress of real brokers has no event
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

        for desk in desks:
            store = desk.broker.store
            for queue_id in range(2):
                count = store.max_offset("T", queue_id)
                assert all(store.unit("T", queue_id, offset) is not None for offset in range(count))


async def test_a_demoted_master_refuses_sends_and_names_its_role(tmp_path: Path) -> None:
    """It registers with its new id, serves what it has, and delivers no delayed message."""
    async with open_group(tmp_path) as group, group.desk("a", message_delay_level="1s") as desk:
        client = desk.peer()
        await client.send_waiting("T1", b"one")
        client.send("T1", b"later", DELAY="1")

        await desk.broker.role.change(Role.SLAVE, 1, "test")

        refused = client.send("T1", b"two")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "slave" in (refused.remark or "")
        assert [message.body for message in client.pulled("T1")] == [b"one"]
        await trio.sleep(1.2)
        assert desk.broker.store.max_offset("T1", 0) == 1

        await desk.broker.role.change(Role.MASTER, 0, "test")
        await until(lambda: desk.broker.store.max_offset("T1", 0) == 2)
