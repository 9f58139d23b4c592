"""What a simulated run sees of a group with a controller: sets, masters of one epoch, and losses that are allowed."""

from __future__ import annotations

import random
from math import inf
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import trio

from harness.simulate.scene import Node, Process
from harness.simulate.sets import NAME, KnownSet, SetScene, SetWatch, _View  # pyright: ignore[reportPrivateUsage]
from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.ha.controller.server import Controller
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.segments import Segments
from ledgermq.testing.history import End, History, Put
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.testing.sim.world import sim_machines

SEGMENT, PART = 1024, 50
HOST = encode_host("10.0.0.1", 1)


def test_an_older_set_changes_nothing() -> None:
    """A controller that was cut off still knows it."""
    watch = SetWatch(1024)
    newer = KnownSet(2, 5, "b", frozenset("b"))
    watch.learn(newer)

    watch.learn(KnownSet(1, 4, "a", frozenset("ab")))

    assert watch.known == newer


def test_a_loss_is_allowed_when_one_that_lost_power_is_elected_from_the_set() -> None:
    """It is no violation, unless the node has failed alone."""
    watch = SetWatch(1024)
    lost: list[str] = []
    watch.on_loss.append(lambda: lost.append("all"))
    watch.learn(KnownSet(1, 1, "a", frozenset("ab")))
    watch.lossy.add("b")

    watch.learn(KnownSet(2, 2, "b", frozenset("b")))

    assert lost == ["all"]
    assert watch.violations == []


def test_a_node_that_has_left_the_set_may_lose_nothing_any_more() -> None:
    """When it joins again, it has everything."""
    watch = SetWatch(1024)
    watch.learn(KnownSet(1, 1, "a", frozenset("ab")))
    watch.lossy.add("b")
    watch.learn(KnownSet(1, 2, "a", frozenset("a")))
    watch.learn(KnownSet(1, 3, "a", frozenset("ab")))

    watch.learn(KnownSet(2, 4, "b", frozenset("b")))

    assert watch.losses == 0


def test_the_election_of_one_that_lost_power_alone_is_a_violation() -> None:
    watch = SetWatch(1024, calm=True)
    watch.learn(KnownSet(1, 1, "a", frozenset("ab")))
    watch.lossy.add("b")

    watch.learn(KnownSet(2, 2, "b", frozenset("b")))

    assert watch.violations == ["b has lost bytes and is elected for epoch 2, and other members live"]


def _record(body: bytes) -> bytes:
    return encode_record(b"T", 0, 0, body, b"", 0, 0, 1, HOST, 1, HOST, 0, 0)


def _log_of(sent: bytes, disk: SimDisk | None = None) -> LocalCommitLog:
    """The log of a replica that has received these bytes, and lets consumers see them."""
    log = LocalCommitLog(Segments(disk or SimDisk(), "store/commitlog", SEGMENT), SimClock(lambda: 0.0), SimWorkers())
    log.append_raw(0, sent)
    return log


def _judged(put: Put, *, copies: int | None, holders: str, members: str, master: str, leads_since: float = -inf) -> list[str]:
    """What is found when the message is acknowledged that these of the replicas a, b and c hold."""
    scene = _scene(copies)
    scene._leads_since = 1, leads_since  # pyright: ignore[reportPrivateUsage]
    addresses = {name: str(node.address) for name, node in zip("abc", scene.nodes, strict=True)}
    for name, node in zip("abc", scene.nodes, strict=True):
        if name in holders:
            _log_of(_record(b"%d;" % put.number), node.machine.disk)
    scene.watch.learn(KnownSet(1, 1, addresses[master], frozenset(addresses[name] for name in members)))
    scene.copies(put)
    return scene.watch.violations


def _scene(copies: int | None) -> SetScene:
    """Three brokers that do not run."""
    history, watch = History(sync_flush=False), SetWatch(SEGMENT, may_lose=copies == 2)
    scene = SetScene(
        random.Random(1), SimFabric(), history, 1.0, watch=watch, sync_flush=False, members_min=1, copies_min=copies
    )
    scene.nodes += [Node(machine, BrokerConfig(store_path_root_dir="store")) for machine in sim_machines(seed=1, count=3)]
    return scene


def _acknowledged() -> Put:
    return Put(7, 0, ("T", 0), 0, acknowledged=True, physical_offset=0, sent_at=trio.current_time())


@pytest.mark.parametrize(("copies", "holders"), [(None, "abc"), (2, "ac"), (3, "abc")])
async def test_a_message_with_as_many_copies_in_the_set_as_it_needs_is_kept(copies: int | None, holders: str) -> None:
    put = _acknowledged()

    assert _judged(put, copies=copies, holders=holders, members="abc", master="a") == []
    assert put.acknowledged


async def test_what_only_a_deposed_master_and_its_replica_hold_may_be_lost_if_two_of_three_copies_acknowledge() -> None:
    """Both may hear of the election later than its winner."""
    put = _acknowledged()

    assert _judged(put, copies=2, holders="ab", members="c", master="c") == []
    assert not put.acknowledged


@pytest.mark.parametrize("copies", [None, 3])
async def test_a_message_that_the_elected_master_lacks_is_found_if_all_copies_acknowledge(copies: int | None) -> None:
    put = _acknowledged()

    assert _judged(put, copies=copies, holders="ab", members="c", master="c")
    assert put.acknowledged


async def test_a_copy_outside_the_set_does_not_count() -> None:
    """The other member could be elected, and lacks the message."""
    found = _judged(_acknowledged(), copies=2, holders="ac", members="ab", master="a")

    assert len(found) == 1
    assert "needs 2 copies in the set" in found[0]


async def test_copies_that_a_deposed_master_counts_are_of_its_own_set_until_the_elected_one_leads() -> None:
    """The elected master has the message and waits for its whole log before it leads (seed 73)."""
    put = _acknowledged()

    assert _judged(put, copies=2, holders="ac", members="ab", master="a", leads_since=put.sent_at) == []
    assert put.acknowledged


@pytest.mark.parametrize("sent_later", [0.0, 1.0])
async def test_only_a_message_sent_before_a_replica_lost_bytes_may_be_lacking_when_it_is_answered(sent_later: float) -> None:
    """That loss was counted when the replica was elected, before anybody knew that the message was acknowledged (seed 6015)."""
    scene, put = _scene(None), _acknowledged()
    put.sent_at += sent_later
    node, holder = scene.nodes[:2]
    _log_of(_record(b"%d;" % put.number), holder.machine.disk)
    members = frozenset({str(node.address), str(holder.address)})
    scene.watch.learn(KnownSet(1, 1, str(node.address), members))
    scene.ends(node.process, End.POWER)
    scene.watch.learn(KnownSet(2, 2, str(node.address), members))
    assert scene.watch.losses == 1

    scene.copies(put)

    lacking = f"message {put.number} was acknowledged at 0, and {node.address}, in sync, lacks it"
    assert scene.watch.violations == ([lacking] if sent_later else [])


def test_the_first_bytes_of_a_record_are_no_message_that_consumers_see() -> None:
    """A frame may end inside a record. If its master ends then, the next one stores another record in its place."""
    watch, first = SetWatch(SEGMENT), _record(b"1;")
    _View(watch, "a", _log_of(first + _record(b"2;")[:PART])).compare()

    _View(watch, "b", _log_of(first + _record(b"3;"))).compare()

    assert watch.violations == []


def test_another_message_at_the_same_position_is_found() -> None:
    """Also if the first bytes of the message were compared before the rest had come."""
    watch, first, second = SetWatch(SEGMENT), _record(b"1;"), _record(b"2;")
    log = _log_of(first + second[:PART])
    view = _View(watch, "a", log)
    view.compare()
    log.append_raw(len(first) + PART, second[PART:])
    view.compare()

    _View(watch, "b", _log_of(first + _record(b"3;"))).compare()

    assert len(watch.violations) == 1


async def test_an_elected_node_leads_once_the_life_of_its_predecessor_has_ended() -> None:
    """What is read of its tables before would count as if the predecessor had lost commits while it ran (seed 5267)."""
    scene = _scene(None)
    ends = list[None]()
    scene.watch.on_change.append(lambda: ends.append(None))
    node = scene.nodes[0]
    role = SimpleNamespace(takes_puts=True, state=SimpleNamespace(term=1))
    node.process.server = cast("Broker", SimpleNamespace(role=role))
    scene.watch._views[node.host] = _View(scene.watch, node.host, _log_of(_record(b"1;")))  # pyright: ignore[reportPrivateUsage]
    scene.watch.learn(KnownSet(1, 1, str(node.address), frozenset({str(node.address)})))

    assert scene.leader is None
    scene.look()

    assert scene.leader is node
    assert len(ends) == 1


async def test_a_broker_reaches_the_controllers_once_its_present_process_has_a_role() -> None:
    """Until then they go by what its last process has said, and may elect it, whatever it has lost since (seed 5087)."""
    scene = _scene(None)
    processes = [SimpleNamespace(is_removed=False) for _ in scene.nodes]
    for node, process in zip(scene.nodes, processes, strict=True):
        node.process.server = cast("Broker", SimpleNamespace(node=process))
    replicas = SimpleNamespace(replicas=range(3))
    situation = SimpleNamespace(state=SimpleNamespace(sets={NAME: replicas}), is_alive=Mock(return_value=True))
    leading = SimpleNamespace(is_leader=True, leading=SimpleNamespace(term=1))
    controller = SimpleNamespace(server=SimpleNamespace(node=SimpleNamespace(replica=leading, situation=situation)))
    scene.controllers.append(cast("Process[Controller]", controller))
    assert scene.all_reach_controllers()

    processes[0].is_removed = True

    assert not scene.all_reach_controllers()
