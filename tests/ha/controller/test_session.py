"""What a broker says to the controller, and what it makes of the answers; the controllers are scripted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import attrs
import pytest
import trio

from ledgermq.ha.classic.in_sync import InSyncAcknowledgements
from ledgermq.ha.controller.identity import IdentityFiles
from ledgermq.ha.controller.session import PAUSE_SECONDS_MAX, ControllerSession, ElectedMaster, LogState, SessionSettings
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.testing.sim.world import sim_machines
from ledgermq.world.address import Address
from ledgermq.world.real import World

from .scripted import NAME, PORT, ScriptedController, scripted_controller

pytestmark = pytest.mark.usefixtures("autojump_clock")

HOSTS = ("10.0.0.1", "10.0.0.2")
EXPIRY_SECONDS = 0.6
"""For so long a heartbeat counts."""


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)


def session_in(world: World, elections: list[ElectedMaster], acks: InSyncAcknowledgements | None = None) -> ControllerSession:
    files = IdentityFiles(world.disk, "store")
    return ControllerSession(
        settings=SessionSettings(
            controllers=[Address(host, PORT) for host in HOSTS],
            cluster="c",
            broker_name=NAME,
            address="10.0.0.9:10911",
            heartbeat_seconds=0.15,
            expiry_millis=round(EXPIRY_SECONDS * 1000),
            poll_seconds=1.0,
            priority=7,
        ),
        network=world.network,
        credentials=None,
        clock=world.clock,
        randomness=world.randomness,
        workers=world.workers,
        files=files,
        identity=files.load("c", NAME),
        clean_stop=True,
        log_state=lambda: LogState(1000, 3, 900),
        in_sync=lambda: acks,
        on_elected=elections.append,
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


async def test_why_no_controller_leads_is_said_of_each() -> None:
    """One of a group without a leader, another server at the wrong port, and one that is not there."""
    async with both() as (one, other, world):
        one.leads, other.is_controller = False, False
        session = session_in(world, [])
        controllers = [*session.settings.controllers, Address("10.0.0.7", PORT)]
        session.settings = attrs.evolve(session.settings, controllers=controllers)
        async with running(session):
            await until(lambda: "answered" in session.trouble)

        assert session.trouble == (
            "no controller that leads has answered: 10.0.0.1:9878 does not lead; 10.0.0.2:9878 is no controller; "
            "10.0.0.7:9878 does not answer"
        )


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
        session = session_in(world, [])
        session.clean_stop = False
        async with running(session):
            await until(lambda: one.registrations)
            one.taken.clear()
            one.forgotten = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            await until(lambda: len(one.registrations) == 2)

        assert [registration.broker_id for registration in one.registrations] == [1, 1]
        assert [registration.clean_stop for registration in one.registrations] == [False, True], "no crash is between them"


async def test_a_forgotten_broker_whose_id_is_taken_registers_with_its_new_one() -> None:
    async with both() as (one, _, world):
        async with running(session_in(world, [])):
            await until(lambda: one.registrations)
            one.taken[1] = "another broker's"
            one.forgotten = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            await until(lambda: len(one.registrations) == 2)

        assert [registration.broker_id for registration in one.registrations] == [1, 2]


async def test_a_broker_keeps_its_identity_at_controllers_that_do_not_know_its_name() -> None:
    """They may be other ones than before: there it would be the master of an empty set, beside the master that it left."""
    async with both() as (one, _, world):
        session = session_in(world, [])
        async with running(session):
            await until(lambda: one.registrations)
            one.forgotten = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            await until(lambda: len(one.times_of(RequestCode.CONTROLLER_REGISTER_BROKER)) == 4)
            assert session.controller is None
            assert session.trouble.endswith("the test has forgotten")

        assert len(one.times_of(RequestCode.CONTROLLER_APPLY_BROKER_ID)) == 1
        identity = IdentityFiles(world.disk, "store").load("c", NAME)
        assert identity is not None
        assert (identity.broker_id, identity.check_code) == (1, "")


async def test_an_older_election_than_the_known_one_is_ignored() -> None:
    """A controller that was cut off may answer late."""
    elections: list[ElectedMaster] = []
    async with both() as (one, _, world):
        one.addresses[4], one.epoch = "10.0.0.8:10911", 6
        one.elect(4)
        async with running(session_in(world, elections)):
            await until(lambda: elections)
            one.epoch = 2
            one.elect(4)
            await trio.sleep(3)

        assert {elected.epoch for elected in elections} == {7}


def acknowledgements(*members: int) -> InSyncAcknowledgements:
    """Those of a master with the id 1, in epoch 1 of its set."""
    return InSyncAcknowledgements(own_id=1, members=frozenset(members), set_epoch=1, log_end=lambda: 1000)


async def test_a_decision_that_takes_as_long_as_a_controller_allows_is_waited_for() -> None:
    """Otherwise a repeated registration would begin another mastership, and no broker would get a role."""
    elections: list[ElectedMaster] = []
    async with both() as (one, _, world):
        one.addresses[4] = "10.0.0.8:10911"
        one.elect(4)
        one.decision_seconds = 2.9
        async with running(session_in(world, elections)):
            await until(lambda: elections)

        assert len(one.times_of(RequestCode.CONTROLLER_REGISTER_BROKER)) == 1


@pytest.mark.parametrize("refusal", [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR])
async def test_a_controller_that_decides_nothing_is_asked_less_and_less_often_and_hears_all_heartbeats(
    refusal: ResponseCode,
) -> None:
    """What was too much for it would be more with each try, and a broker that is not heard is dead."""
    async with both() as (one, _, world), running(session_in(world, [])):
        await until(lambda: one.beats)
        one.asked.clear()
        one.refusal = refusal
        await trio.sleep(30)

        tries = one.times_of(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        gaps = [later - earlier for earlier, later in pairwise(tries)]
        assert all(gap > 0.6 * PAUSE_SECONDS_MAX for gap in gaps[5:])
        assert len({*gaps[5:]}) > 1, "brokers that ask together would always do"
        beats = one.times_of(RequestCode.BROKER_HEARTBEAT)
        assert max(later - earlier for earlier, later in pairwise(beats)) < EXPIRY_SECONDS

        one.refusal = None
        known = len(tries)
        await trio.sleep(3 * PAUSE_SECONDS_MAX)
        assert len(one.times_of(RequestCode.CONTROLLER_GET_REPLICA_INFO)) > known + 2


async def test_a_controller_that_answers_heartbeats_only_still_hears_them_all() -> None:
    async with both() as (one, _, world), running(session_in(world, [])):
        await until(lambda: one.beats)
        one.asked.clear()
        one.decision_seconds = 1000
        await trio.sleep(30)

        assert len(one.times_of(RequestCode.CONTROLLER_GET_REPLICA_INFO)) > 3
        beats = one.times_of(RequestCode.BROKER_HEARTBEAT)
        assert max(later - earlier for earlier, later in pairwise(beats)) < EXPIRY_SECONDS


async def test_of_the_members_that_hold_most_the_first_that_may_be_elected_is_handed_over_to() -> None:
    acks = acknowledgements(1, 2, 3, 4)
    acks.hold(2, 900)
    acks.hold(3, 1000)
    async with both() as (one, _, world):
        one.electable = frozenset({2, 4})
        session = session_in(world, [], acks)
        async with running(session):
            await until(lambda: one.beats)
            await session.hand_over()

        assert one.elections == [3, 2]
        assert one.master == 2


async def test_a_replica_whose_proposal_was_refused_is_not_waited_for_once_it_has_gone() -> None:
    acks = acknowledgements(1)
    async with both() as (one, _, world):
        one.addresses[1] = "10.0.0.9:10911"
        one.elect(1)
        one.agrees = False
        async with running(session_in(world, [], acks)):
            acks.hold(2, 1000)
            await until(lambda: frozenset({1, 2}) in one.proposals)
            acks.leave(2)
            await trio.sleep(1)
            assert acks.required == {2}

            one.agrees = True
            await until(lambda: not acks.required)

        assert (one.members, one.set_epoch) == ({1}, 2)


async def test_a_controller_that_gives_an_equal_set_no_new_epoch_is_not_asked_all_the_time() -> None:
    """One of an earlier version does not; the replica that has gone is waited for then."""
    acks = acknowledgements(1)
    async with both() as (one, _, world):
        one.addresses[1], one.keeps_epoch = "10.0.0.9:10911", True
        one.elect(1)
        one.agrees = False
        async with running(session_in(world, [], acks)):
            acks.hold(2, 1000)
            await until(lambda: one.proposals)
            acks.leave(2)
            one.agrees = True
            await trio.sleep(20)

            assert acks.required == {2}
            assert len(one.proposals) < 25

            one.keeps_epoch = False
            await until(lambda: not acks.required)


async def test_a_refused_change_of_the_set_delays_no_other_one() -> None:
    acks = acknowledgements(1, 3)
    acks.hold(3, 1000)
    async with both() as (one, _, world):
        one.addresses[1] = "10.0.0.9:10911"
        one.elect(1)
        one.agrees = False
        async with running(session_in(world, [], acks)):
            acks.hold(2, 1000)
            await trio.sleep(20)
            assert set(one.proposals) == {frozenset({1, 2, 3})}
            one.agrees, one.members = True, frozenset({1, 3})
            acks.leave(3)
            left = trio.current_time()
            await until(lambda: 3 not in one.members)

            assert trio.current_time() - left < 0.6


async def test_a_replica_that_the_controller_does_not_take_in_keeps_no_other_one_in_the_set_or_out_of_it() -> None:
    """It may be connected to the master alone, or have been forgotten. While a dead member stays, nothing is acknowledged."""
    acks = acknowledgements(1, 3)
    acks.hold(3, 1000)
    async with both() as (one, _, world):
        one.addresses[1], one.takes_in = "10.0.0.9:10911", frozenset({4})
        one.elect(1)
        one.members = frozenset({1, 3})
        async with running(session_in(world, [], acks)):
            acks.hold(2, 1000)
            await until(lambda: one.proposals)
            acks.leave(3)
            await until(lambda: acks.members == frozenset({1}))

            acks.hold(4, 1000)
            await until(lambda: acks.members == frozenset({1, 4}))

            one.proposals.clear()
            await trio.sleep(20)
            assert set(one.proposals) == {frozenset({1, 2, 4})}
            assert len(one.proposals) < 15
