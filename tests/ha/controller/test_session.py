"""What a broker says to the controller, and what it makes of the answers; the controllers are scripted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from ledgermq.ha.classic.in_sync import InSyncAcknowledgements
from ledgermq.ha.controller.identity import IdentityFiles
from ledgermq.ha.controller.session import ControllerSession, Decision, LogState, SessionSettings
from ledgermq.testing.sim.world import sim_machines
from ledgermq.world.address import Address
from ledgermq.world.real import World

from .scripted import NAME, PORT, ScriptedController, scripted_controller

pytestmark = pytest.mark.usefixtures("autojump_clock")

HOSTS = ("10.0.0.1", "10.0.0.2")


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)


def session_in(world: World, decisions: list[Decision], acks: InSyncAcknowledgements | None = None) -> ControllerSession:
    files = IdentityFiles(world.disk, "store")
    return ControllerSession(
        settings=SessionSettings(
            controllers=[Address(host, PORT) for host in HOSTS],
            cluster="c",
            broker_name=NAME,
            address="10.0.0.9:10911",
            heartbeat_seconds=0.15,
            expiry_millis=600,
            poll_seconds=1.0,
            priority=7,
        ),
        network=world.network,
        clock=world.clock,
        workers=world.workers,
        files=files,
        identity=files.load("c", NAME),
        clean_stop=True,
        log_state=lambda: LogState(1000, 3, 900),
        in_sync=lambda: acks,
        on_decision=decisions.append,
    )


@asynccontextmanager
async def running(session: ControllerSession) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def both() -> AsyncGenerator[tuple[ScriptedController, ScriptedController, World]]:
    """Two controllers, the first of which leads, and the world of a broker."""
    first, second, own = sim_machines(0, 3)
    async with scripted_controller(first.world(), HOSTS[0]) as one, scripted_controller(second.world(), HOSTS[1]) as other:
        other.leads = False
        yield one, other, own.world()


async def test_only_the_controller_that_leads_is_told_anything() -> None:
    async with both() as (one, other, world):
        session = session_in(world, [])
        async with running(session):
            await until(lambda: one.beats)

        assert session.controller == Address(HOSTS[0], PORT)
        assert (other.beats, other.registrations) == ({}, [])
        beat = one.beats[1]
        assert (beat.max_offset, beat.epoch, beat.confirm_offset, beat.election_priority) == (1000, 3, 900, 7)


async def test_the_next_leader_gets_the_heartbeats_and_no_second_registration() -> None:
    """A registration says that the process is a new one, and may have lost something."""
    async with both() as (one, other, world):
        async with running(session_in(world, [])):
            await until(lambda: one.beats)
            one.leads, other.leads = False, True
            await until(lambda: other.beats)

        assert len(one.registrations) == 1
        assert other.registrations == []


async def test_an_id_that_another_broker_has_got_is_not_used() -> None:
    async with both() as (one, _, world):
        one.taken[1] = "another broker's"
        one.offers = [1, 2]
        async with running(session_in(world, [])):
            await until(lambda: one.registrations)

        assert one.registrations[0].broker_id == 2
        identity = IdentityFiles(world.disk, "store").load("c", NAME)
        assert identity is not None
        assert (identity.broker_id, identity.check_code) == (2, "")


async def test_a_broker_that_the_controller_has_forgotten_applies_for_its_id_again() -> None:
    async with both() as (one, _, world):
        async with running(session_in(world, [])):
            await until(lambda: one.registrations)
            one.forgotten = True
            await until(lambda: len(one.registrations) == 2)

        assert [registration.broker_id for registration in one.registrations] == [1, 1]


async def test_an_older_decision_than_the_known_one_is_ignored() -> None:
    """A controller that was cut off may answer late."""
    decisions: list[Decision] = []
    async with both() as (one, _, world):
        one.addresses[4], one.epoch = "10.0.0.8:10911", 6
        one.elect(4)
        async with running(session_in(world, decisions)):
            await until(lambda: decisions)
            one.epoch = 2
            one.elect(4)
            await trio.sleep(3)

        assert {decision.epoch for decision in decisions} == {7}
