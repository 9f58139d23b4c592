"""Groups of controllers on simulated machines: their leader dies or is cut off, and their log stays small."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from ledgermq.ha.controller import config as controller_config
from ledgermq.ha.controller import member as controller_member
from ledgermq.ha.controller.decisions import Situation
from ledgermq.ha.controller.errors import CorruptEvents
from ledgermq.ha.controller.liveness import TIMEOUT_SECONDS as LIVES_BY_DEFAULT_SECONDS
from ledgermq.ha.controller.protocol import GetReplicaInfoRequest, Mastership, SyncStateSet
from ledgermq.ha.controller.state import ControllerState, TimeoutChanged, encode_events
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, decode_command
from ledgermq.remoting.frame import FrameReader
from ledgermq.world.address import Address

from ..dledger.test_replica import Steps
from .controllers import NAME, TIMEOUT_SECONDS, CallsInTurns, Group, Replica, scenario, serving

ASK_NAME = GetReplicaInfoRequest(broker_name=NAME)


async def agreed(group: Group) -> None:
    """Wait until all running controllers have applied the same state."""

    def same() -> bool:
        states = [node.up.node.state for node in group.running]
        return all(state.known and state.sets == states[0].sets for state in states)

    await group.until(same)


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_controller_applies_what_was_decided(nodes: int) -> None:
    async def story(group: Group) -> None:
        replicas = await serving(group)

        master, known = await replicas[1].info()

        assert (master.master_broker_id, master.master_address, master.master_epoch) == (1, replicas[0].address, 1)
        assert known == SyncStateSet(sync_state_set=frozenset({1, 2}), sync_state_set_epoch=2)
        await agreed(group)

    scenario(story, nodes=nodes)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("way", ["kill", "power_cut"])
def test_what_was_decided_survives_the_leader(way: str, seed: int) -> None:
    """Another one decides within seconds, and a master that is alive keeps its epoch."""

    async def story(group: Group) -> None:
        replicas = await serving(group)
        for members in ((1,), (1, 2)):
            leader = await group.leader()
            await getattr(leader, way)()
            died = trio.current_time()
            assert (await replicas[0].alter(*members)).code == ResponseCode.SUCCESS
            assert trio.current_time() - died < 3.0
            await leader.start()
        await trio.sleep(3 * TIMEOUT_SECONDS)

        master, known = await replicas[0].info()
        assert (master.master_epoch, known) == (
            1,
            SyncStateSet(sync_state_set=frozenset({1, 2}), sync_state_set_epoch=4),
        )
        await agreed(group)

    scenario(story, seed=seed)


def test_what_was_decided_survives_a_power_cut_of_all() -> None:
    async def story(group: Group) -> None:
        replicas = await serving(group)
        for node in group.nodes:
            await node.power_cut()
        for node in group.nodes:
            await node.start()

        master, known = await replicas[0].info()

        assert (master.master_broker_id, known.sync_state_set) == (1, {1, 2})

    scenario(story)


@pytest.mark.parametrize("leader_too", [False, True], ids=["master", "master and leader"])
def test_a_master_that_dies_has_a_successor_soon(leader_too: bool) -> None:
    """After its time-out; if the leader of the controllers dies with it, after an election and a whole period more."""

    async def story(group: Group) -> None:
        replicas = await serving(group)
        leader = await group.leader()
        replicas[0].die()
        if leader_too:
            await leader.kill()
        died = trio.current_time()
        survivor = next(node for node in group.running if node is not leader)

        await group.until(lambda: survivor.set.master_id == 2)

        assert (survivor.set.master_epoch, survivor.set.in_sync) == (2, {2})
        assert trio.current_time() - died < TIMEOUT_SECONDS + (3.0 if leader_too else 0.3)

    scenario(story)


def test_a_leader_does_not_hold_up_its_machine_while_a_master_is_about_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is slower than that of the event loop, its pauses end too early, and the next ones are ever shorter."""

    def just_ahead(situation: Situation) -> float:
        return math.nextafter(situation.now, math.inf)

    monkeypatch.setattr(controller_member, "next_look", just_ahead)

    async def story(group: Group) -> None:
        await serving(group)
        leader = await group.leader()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(1)
        trio.lowlevel.remove_instrument(steps)

        assert leader.up.node.replica.is_leader
        assert steps.of_task["ledgermq.ha.controller.member.ControllerMember.look_forever"] <= 1100, steps.of_task

    scenario(story)


def test_an_idle_leader_wakes_for_five_heartbeats_a_second() -> None:
    """Each heartbeat wakes the others, too, and their answers wake the leader again."""

    async def story(group: Group) -> None:
        await group.leader()
        await trio.sleep(5)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(10)
        trio.lowlevel.remove_instrument(steps)

        assert 45 <= steps.of_task["ledgermq.ha.dledger.ticking.Ticking.run"] <= 55, steps.of_task

    scenario(story)


def test_a_leader_whose_disk_refuses_writes_lets_another_one_decide() -> None:
    """It cannot elect a successor, and its heartbeats would keep the others from leading for ever."""

    async def story(group: Group) -> None:
        replicas = await serving(group)
        leader = await group.leader()
        leader.machine.disk.faults.write_error = 1.0
        replicas[0].die()

        await group.until(lambda: any(node.set.master_id == 2 for node in group.running), seconds=3 * TIMEOUT_SECONDS + 5)

        assert not leader.up.node.replica.is_leader

    scenario(story)


def test_a_fresh_leader_that_has_heard_nobody_waits_before_it_judges() -> None:
    """It was cut off from the brokers, which does not mean that they are dead."""

    async def story(group: Group) -> None:
        replicas = await serving(group)
        leader = await group.leader()
        others = [node for node in group.nodes if node is not leader]
        group.fabric.part([node.machine.host for node in others], [group.outside.host])
        await trio.sleep(3 * TIMEOUT_SECONDS)
        await leader.kill()
        fresh = await group.leader(others)
        await trio.sleep(TIMEOUT_SECONDS / 2)
        assert fresh.set.master_epoch == 1
        group.fabric.heal()

        await trio.sleep(3 * TIMEOUT_SECONDS)

        master, _ = await replicas[0].info()
        assert (master.master_broker_id, master.master_epoch) == (1, 1)

    scenario(story)


def test_a_fresh_leader_knows_the_time_outs_that_others_have_heard() -> None:
    """A master that dies with the leader, which was the only one to hear it, is not waited for as long as by default."""

    async def story(group: Group) -> None:
        replicas = await serving(group)
        leader = await group.leader()
        others = [node for node in group.nodes if node is not leader]
        for one in (others[0], others[1]):
            one.up.node.liveness.forget(NAME, [1, 2])
        group.fabric.part([node.machine.host for node in others], [group.outside.host])
        await trio.sleep(2 * TIMEOUT_SECONDS)
        for one in others:
            assert one.up.node.liveness.dies_at(NAME, 1) == one.up.node.liveness.leads_since + LIVES_BY_DEFAULT_SECONDS
        replicas[0].die()
        await leader.kill()
        group.fabric.heal()
        died = trio.current_time()

        await group.until(lambda: others[0].set.master_id == 2)

        assert trio.current_time() - died < TIMEOUT_SECONDS + 3.0

    scenario(story)


def test_a_leader_that_is_cut_off_decides_nothing() -> None:
    """It would answer from what is no longer so; back in the group, it learns what the others decided."""

    async def story(group: Group) -> None:
        replicas = await serving(group)
        old = await group.leader()
        others = [node for node in group.nodes if node is not old]
        group.fabric.part([old.machine.host], [node.machine.host for node in others])
        refused = await group.ask(old, RequestCode.CONTROLLER_GET_REPLICA_INFO, ASK_NAME)
        assert refused.code in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_BUSY)
        assert refused.remark is not None
        assert "Nothing was changed" in refused.remark

        await group.leader(others)
        assert (await replicas[0].alter(1)).code == ResponseCode.SUCCESS
        assert old.set.in_sync == {1, 2}
        group.fabric.heal()
        await agreed(group)
        assert old.set.in_sync == {1}

    scenario(story)


def test_without_a_majority_nothing_is_decided() -> None:
    async def story(group: Group) -> None:
        await serving(group)
        leader = await group.leader()
        for node in group.nodes:
            if node is not leader:
                await node.kill()

        for _ in range(2):
            answer = await group.ask(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, ASK_NAME)
            assert answer.code in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_BUSY)

    scenario(story)


def test_a_follower_names_the_leader() -> None:
    """In refusals and in the answer to the question for it, with the address at which it answers requests."""

    async def story(group: Group) -> None:
        await serving(group)
        leader = await group.leader()
        follower = next(node for node in group.nodes if node is not leader)

        refused = await group.ask(follower, RequestCode.CONTROLLER_GET_REPLICA_INFO, ASK_NAME)
        assert refused.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert f"the leader is n{leader.number} at {leader.address}" in (refused.remark or "")

        for node in group.nodes:
            metadata = await group.metadata(node)
            assert metadata.controller_leader_id == f"n{leader.number}"
            assert metadata.controller_leader_address == str(leader.address)
            assert metadata.is_leader == (node is leader)
            assert metadata.peers == "".join(f"n{one.number}:{one.address};" for one in group.nodes)

    scenario(story)


def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_member, "LOG_BYTES_MAX", 4096)
    monkeypatch.setattr(controller_config, "DATA_FILE_BYTES", 16 * 1024)


async def alter_often(replica: Replica, times: int) -> None:
    for number in range(times):
        answer = await replica.alter(*((1, 2) if number % 2 else (1,)))
        assert answer.code == ResponseCode.SUCCESS, answer


def test_the_log_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files before the whole state are deleted; restarts, and controllers that missed them, begin with the state."""
    small_files(monkeypatch)

    async def story(group: Group) -> None:
        replicas = await serving(group)
        leader = await group.leader()
        away = next(node for node in group.nodes if node is not leader)
        await away.kill()
        await alter_often(replicas[0], 200)
        await agreed(group)
        for node in group.running:
            ledger = node.up.node.replica.ledger
            assert ledger.begin_index > 100
            assert ledger.end_position - ledger.begin_position < 4 * 16 * 1024

        await away.start()
        await agreed(group)
        assert away.up.node.replica.ledger.begin_index > 100
        for node in group.nodes:
            await node.kill()
        for node in group.nodes:
            await node.start()
        await alter_often(replicas[0], 2)
        await agreed(group)
        assert group.nodes[0].set.in_sync_epoch == 2 + 202

    scenario(story)


def test_an_entry_that_is_no_decision_stops_the_controller() -> None:
    """It would differ from the others from there on."""

    async def story(group: Group) -> None:
        await serving(group)
        group.nodes[0].up.node.replica.propose([b"[]x"], patch=False)
        await trio.sleep(1)

    with pytest.RaisesGroup(CorruptEvents, allow_unwrapped=True, flatten_subgroups=True):
        scenario(story, nodes=1)


def test_a_turn_ends_after_some_events_however_many_an_entry_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry has up to 128 of them, and each may write a set of 64 KB."""
    turns = CallsInTurns(monkeypatch, ControllerState, "apply")

    async def story(group: Group) -> None:
        await serving(group)
        (node,) = group.nodes
        events = [TimeoutChanged(name=NAME, broker_id=2, timeout_millis=1000 + number) for number in range(64)]
        node.up.node.replica.propose([encode_events(events)] * 40, patch=False)
        await group.until(lambda: sum(turns.turns) > 40 * 64)
        await node.kill()

        trio.lowlevel.add_instrument(turns)
        turns.turns = [0]
        await node.start()
        await group.until(lambda: sum(turns.turns) > 40 * 64)
        assert max(turns.turns) < controller_member.EVENTS_PER_TURN + 64
        assert node.set.replicas[2].timeout_millis == 1063

    scenario(story, nodes=1)


async def received(group: Group, address: Address, count: int) -> list[RemotingCommand]:
    """The requests that arrive at a port of the machine of the replicas."""
    found: list[RemotingCommand] = []
    enough = trio.Event()
    network = group.outside.world().network

    async def take(stream: Any) -> None:
        reader = FrameReader()
        async with stream:
            while data := await stream.receive_some():
                found.extend(decode_command(*frame) for frame in reader.feed(data))
                if len(found) >= count:
                    enough.set()

    async with trio.open_nursery() as nursery:
        listeners: Any = await network.open_listeners(address.host, address.port)
        nursery.start_soon(trio.serve_listeners, take, listeners)
        await enough.wait()
        nursery.cancel_scope.cancel()
    return found


def test_replicas_are_notified_of_their_new_master() -> None:
    async def story(group: Group) -> None:
        replicas = await serving(group)
        notices: list[RemotingCommand] = []

        async def listen() -> None:
            notices.extend(await received(group, Address.parse(replicas[1].address), 1))

        group.nursery.start_soon(listen)
        await trio.sleep(0.1)
        replicas[0].die()
        await group.until(lambda: notices)

        (notice,) = notices
        assert (notice.code, notice.is_oneway) == (RequestCode.NOTIFY_BROKER_ROLE_CHANGED, True)
        assert Mastership.of(notice) == Mastership(
            master_broker_id=2, master_address=replicas[1].address, master_epoch=2, sync_state_set_epoch=3
        )
        assert SyncStateSet.of(notice.body) == SyncStateSet(sync_state_set=frozenset({2}), sync_state_set_epoch=3)

    scenario(story)


def test_a_replica_that_crashed_and_was_master_follows() -> None:
    async def story(group: Group) -> None:
        replicas = await serving(group)

        answer = Mastership.of(await replicas[0].register())

        assert (answer.master_broker_id, answer.master_epoch) == (2, 2)
        assert (await replicas[0].info())[1].sync_state_set == {2}

    scenario(story)
