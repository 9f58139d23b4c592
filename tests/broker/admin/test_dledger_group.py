"""What the leader of a DLedger group refuses of an administrator, in words that say what to do."""

from __future__ import annotations

import pytest
import trio

from ledgermq.client.admin import open_admin
from ledgermq.client.errors import ClientError
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.testing.embedded import RAFT_PORT
from ledgermq.testing.history import End

from ..modes.test_dledger import Group, Node, scenario
from ..modes.test_dledger_requests import ask


async def change(group: Group, leader: Node, action: str, peer: str, address: str = "") -> str | None:
    """What the leader answers to a change: None if it is done, else why it is not."""
    fields = {"action": action, "peer": peer, "address": address}
    answer = await ask(group, leader, RequestCode.CHANGE_DLEDGER_GROUP, (fields, b""), seconds=90.0)
    return None if answer.code == ResponseCode.SUCCESS else answer.remark


def members(leader: Node) -> set[str]:
    assert leader.broker is not None
    group = leader.broker.replication.status()["dledger"]
    return {*group["voters"], *group["learners"]}


def test_a_change_that_cannot_work_changes_nothing() -> None:
    """No record of it reaches the log, which every node of the group would have to read for ever."""

    async def story(group: Group) -> None:
        leader = await group.master()
        name, here = f"n{group.nodes.index(leader)}", f"{leader.machine.host}:{RAFT_PORT}"
        other = min(members(leader) - {name})
        elsewhere = f"10.0.9.9:{RAFT_PORT}"
        wrong = [
            ("add", "n9", here, f"{here} is the address of {name}"),
            ("learner", other, elsewhere, f"the leader's dLegerPeers has {other} at 10.0.1.{other[1:]}:{RAFT_PORT}"),
            ("learner", "", elsewhere, "a node is a letter and a number, such as n3"),
            ("add", "n;9", elsewhere, "a node is a letter and a number, such as n3"),
            ("add", "n" + "9" * 255, elsewhere, "ids of peers have 1 to 255 bytes"),
            ("add", "n9", "10.0.9.9:0", "no node listens at 10.0.9.9:0"),
            ("add", "n9", "10.0.9.9", "an address is HOST:PORT"),
            ("remove", "n9", "", "n9 is no member: n0, n1, n2 are"),
            ("transfer", "n9", "", "n9 is not a voter"),
            ("join", "n9", "", "action is one of"),
        ]
        assert leader.broker is not None
        end = leader.broker.store.log.max_offset
        for action, peer, address, words in wrong:
            assert words in (await change(group, leader, action, peer, address) or "it was done")
        assert (members(leader), leader.broker.store.log.max_offset) == ({"n0", "n1", "n2"}, end)

    scenario(story)


def test_the_last_voter_stays() -> None:
    """Neither removed nor made a learner, and the group goes on."""

    async def story(group: Group) -> None:
        leader = await group.master()
        name = f"n{group.nodes.index(leader)}"
        for other in sorted(members(leader) - {name}):
            assert await change(group, leader, "remove", other) is None
        for action in ("remove", "learner"):
            refusal = await change(group, leader, action, name, f"{leader.machine.host}:{RAFT_PORT}")
            assert "a group needs at least one voter; membership was not changed" in (refusal or "it was done")
        assert members(leader) == {name}
        assert (await group.master()) is leader

    scenario(story)


def test_a_new_voter_that_never_answers_stays_a_learner_and_the_answer_says_so() -> None:
    """It can be added again once it runs, or removed."""

    async def story(group: Group) -> None:
        leader = await group.master()
        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:
            with pytest.raises(ClientError, match="n9 is a learner now, and becomes no voter before it has caught up"):
                await admin.change_dledger_group(f"{leader.machine.host}:10911", "add", "n9", f"10.0.9.9:{RAFT_PORT}")
        assert members(leader) == {"n0", "n1", "n2", "n9"}
        assert await change(group, leader, "remove", "n9") is None
        assert members(leader) == {"n0", "n1", "n2"}

    scenario(story)


def test_a_voter_that_is_added_while_another_one_catches_up_stays_a_voter() -> None:
    async def story(group: Group) -> None:
        leader = await group.master()
        name = f"n{group.nodes.index(leader)}"
        slow, quick = sorted(members(leader) - {name})
        nodes = {peer: group.nodes[int(peer[1:])] for peer in (slow, quick)}
        assert await change(group, leader, "remove", slow) is None
        assert await change(group, leader, "remove", quick) is None
        await nodes[slow].process.end(End.KILL)

        async def add(peer: str) -> None:
            assert await change(group, leader, "add", peer, f"{nodes[peer].machine.host}:{RAFT_PORT}") is None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, slow)
            await trio.sleep(2)
            await add(quick)
            await group.nursery.start(nodes[slow].process.run)
        assert leader.broker is not None
        assert set(leader.broker.replication.status()["dledger"]["voters"]) == {name, slow, quick}

    scenario(story)


def test_a_living_voter_stays_while_another_is_down() -> None:
    """The two that are left would elect nobody. What is down may be removed, and then the living one."""

    async def story(group: Group) -> None:
        leader = await group.master()
        name = f"n{group.nodes.index(leader)}"
        living, down = sorted(members(leader) - {name})
        await group.nodes[int(down[1:])].process.end(End.KILL)
        await trio.sleep(2)

        refusal = await change(group, leader, "remove", living)

        assert f"{down} did not answer lately, so" in (refusal or "it was done")
        assert members(leader) == {"n0", "n1", "n2"}
        assert await change(group, leader, "remove", down) is None
        assert await change(group, leader, "remove", living) is None
        assert (await group.master()) is leader

    scenario(story)


def test_a_removed_node_is_taken_off_the_routes() -> None:
    """It would be asked for messages that it does not get any more; a node that is added is registered."""

    async def story(group: Group) -> None:
        leader = await group.master()
        name = f"n{group.nodes.index(leader)}"
        gone = min(members(leader) - {name})
        number = int(gone[1:])
        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:

            async def registered() -> set[int]:
                (broker,) = (await admin.cluster()).brokers
                return set(broker.addresses)

            async def lists(*, gone: bool) -> None:
                with trio.fail_after(40):
                    while (number + 1 in await registered()) is gone:  # noqa: ASYNC110 - what a name server knows sets no event
                        await trio.sleep(0.5)

            await lists(gone=False)
            assert await change(group, leader, "remove", gone) is None
            await lists(gone=True)
            await trio.sleep(90)
            assert number + 1 not in await registered()
            assert await change(group, leader, "add", gone, f"{group.nodes[number].machine.host}:{RAFT_PORT}") is None
            await lists(gone=False)

    scenario(story)
