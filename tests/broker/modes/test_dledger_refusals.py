"""Nodes that do not belong together, and groups without a majority: `ledgermq dledger status` says why and what to do."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.cli.dledger import nodes_of, rows_of
from ledgermq.client.admin import open_admin
from ledgermq.client.producer import open_producer
from ledgermq.ha.dledger.native.layout import TAG
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.embedded import RAFT_PORT
from ledgermq.testing.history import End
from ledgermq.testing.sim.world import Machine
from ledgermq.world.network import Address

from .test_dledger import JAVA, Group, scenario
from .test_dledger_requests import ask


async def notes(group: Group) -> dict[str, str]:
    """The last column of `ledgermq dledger status`, by node."""
    async with open_admin(group.namesrv, world=group.world("10.0.3.3")) as admin:
        return {row["node"]: row["note"] or "" for row in rows_of(await nodes_of(admin))}


async def noted(group: Group, node: str, words: str, seconds: float = 20.0) -> None:
    """Wait until the row of a node has these words."""
    found: dict[str, str] = {}
    with trio.move_on_after(seconds):
        while words not in found.get(node, ""):
            await trio.sleep(0.5)
            found = await notes(group)
    assert words in found.get(node, ""), found


PEERS = [f"n{number}-10.0.1.{number}:{RAFT_PORT}" for number in range(3)]


@pytest.mark.parametrize(
    ("differing", "node", "words"),
    [
        ({2: {"dleger_group": "another"}}, "n0", "correct dLegerGroup"),
        ({2: {"mapped_file_size_commit_log": 131072}}, "n0", "set mappedFileSizeCommitLog to one value on all nodes"),
        ({2: {"ha_secret": "another"}}, "n0", "set the same haSecret on all nodes"),
        ({2: {"raft_dialect": "java", "ha_secret": ""}}, "n0", "set raftDialect to the same value on all nodes"),
        ({2: {"dleger_peers": ";".join([PEERS[2], PEERS[1].replace("n1-", "n0-")])}}, "n2", "the addresses in dLegerPeers"),
        (
            {at: {"dleger_peers": ";".join([PEERS[at], PEERS[(at + 1) % 3]])} for at in range(3)},
            "n0",
            "it votes once n1 answered: start the others, with all nodes in the dLegerPeers of each",
        ),
    ],
    ids=["group", "file size", "secret", "dialect", "address", "peers"],
)
def test_a_new_group_whose_nodes_do_not_fit_elects_nobody_and_says_why(
    differing: dict[int, dict[str, Any]], node: str, words: str
) -> None:
    """Nothing can be acknowledged, so nothing can be lost when it is set right."""

    async def story(group: Group) -> None:
        await noted(group, node, words)
        assert group.masters() == []

    scenario(story, differing=differing)


def test_a_second_node_with_the_id_of_one_is_named_by_those_who_refuse_it() -> None:
    """Whichever of the two the name server knows; the group goes on."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            master = await group.master()
            other = next(node for node in group.nodes if node is not master)
            machine = Machine.of("10.0.1.7", group.fabric, random.Random(7))
            own = other.config.dleger_self_id
            peers = ";".join(peer for peer in PEERS if not peer.startswith(own))
            twin = attrs.evolve(
                other.config,
                broker_ip1=machine.host,
                bind_address=machine.host,
                dleger_peers=f"{peers};{own}-{machine.host}:{RAFT_PORT}",
            )
            second = Node(machine, twin)
            await group.nursery.start(second.process.run)
            await noted(group, master.config.dleger_self_id, f"have the id {own}, the other one at")
            await group.produce(producer, 5)
            await second.process.end(End.CLEAN)

    scenario(story)


def test_voters_without_a_majority_say_how_many_are_there_and_what_to_do() -> None:
    """Two of three, and one of two: nothing is taken until another one is back, and what to do if none comes back."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 3)
            master = await group.master()
            one, other = (node for node in group.nodes if node is not master)
            for node in (one, other):
                await node.process.end(End.KILL)
            await noted(
                group, master.config.dleger_self_id, "1 of 3 voters are no majority, so nothing can be sent. Start the others"
            )
            assert (
                "`ledgermq store reset-peers` lets one node go on alone" in (await notes(group))[master.config.dleger_self_id]
            )
            await group.nursery.start(one.process.run)
            await group.produce(producer, 3)

            leader = await group.master()
            left = one if leader is master else master
            fields = {"action": "remove", "peer": other.config.dleger_self_id}
            await ask(group, leader, RequestCode.CHANGE_DLEDGER_GROUP, (fields, b""))
            await left.process.end(End.KILL)
            await noted(group, leader.config.dleger_self_id, "1 of 2 voters are no majority")
            assert group.masters() == []
            await group.nursery.start(left.process.run)
            await group.produce(producer, 3)

    scenario(story)


@pytest.mark.parametrize("settings", [{}, JAVA], ids=["native", "java"])
def test_garbage_on_the_raft_port_disturbs_nobody(settings: dict[str, str]) -> None:
    """Absurd lengths too, and the greeting of the other dialect."""
    greetings = [
        b"\xff" * 70_000,
        b"\x7f\xff\xff\xff\x00\x00\x00\x10",
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x80\x00\x00\x00",
        TAG + b"\x7f\xff\xff\xff" * 9,
        TAG,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x01\x20\x00\x00\x00\x60{}",
    ]

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 3)
            master = await group.master()
            stranger = group.world("10.0.3.4")
            for greeting in greetings:
                stream = await stranger.network.open_stream(Address(master.machine.host, RAFT_PORT))
                with trio.move_on_after(5):
                    await closed(stream, greeting)
                await stream.aclose()
            await group.produce(producer, 3)
            assert (await group.master()) is master

    async def closed(stream: Any, greeting: bytes) -> None:
        try:
            await stream.send_all(greeting)
            while await stream.receive_some(1000):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    scenario(story, settings=settings)
