"""Brokers of a DLedger group on simulated machines: what clients see through elections, kills, power cuts and partitions."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.dledger import replica_settings
from ledgermq.broker.opening import open_broker
from ledgermq.broker.role import Role
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import ConsumeFrom, Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.ha.dledger.node import DLedgerNode
from ledgermq.ha.errors import WrongHaSetting
from ledgermq.message.message import IncomingMessage, Message
from ledgermq.message.units import MASTER_ID
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.store.errors import StoreInUse
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.embedded import RAFT_PORT, broker_configs
from ledgermq.testing.history import End
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine
from ledgermq.world.real import World

NAMESRV_HOST, NAMESRV_PORT = "10.0.2.1", 9876
SEEDS = range(1, 3)


@attrs.define(eq=False)
class Group:
    """Three nodes, a name server, and clients on a machine of their own."""

    nursery: trio.Nursery
    fabric: SimFabric
    rng: random.Random
    nodes: list[Node] = attrs.field(factory=list[Node])
    settings: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Keys in which the brokers differ from the usual ones."""
    differing: Mapping[int, Mapping[str, Any]] = attrs.field(factory=dict[int, Mapping[str, Any]])
    """Settings in which single nodes differ from the others."""
    namesrv: str = f"{NAMESRV_HOST}:{NAMESRV_PORT}"
    _numbers: count[int] = attrs.field(factory=count)
    sent: dict[int, None] = attrs.field(factory=dict[int, None])
    """What was acknowledged, in order."""

    def world(self, host: str) -> World:
        return Machine.of(host, self.fabric, random.Random(self.rng.getrandbits(32))).world()

    async def serve_names(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        config = NamesrvConfig(listen_port=NAMESRV_PORT, bind_address=NAMESRV_HOST)
        async with open_namesrv(config, self.world(NAMESRV_HOST)):
            task_status.started()
            await trio.sleep_forever()

    async def start(self) -> None:
        await self.nursery.start(self.serve_names)
        hosts = [f"10.0.1.{number}" for number in range(3)]
        addresses = ";".join(f"n{number}-{host}:{RAFT_PORT}" for number, host in enumerate(hosts))
        configs = broker_configs(
            "store",
            "",
            mode="dledger",
            nodes=3,
            raft_ports=[RAFT_PORT] * 3,
            settings={
                "namesrvAddr": self.namesrv,
                "listenPort": "10911",
                "defaultTopicQueueNums": "2",
                "mappedFileSizeCommitLog": "65536",
                "maxMessageSize": "60000",
                "messageDelayLevel": "1s 5s",
                "haSecret": "secret",
                "dLegerPeers": addresses,
                **self.settings,
            },
        )
        for host, config in zip(hosts, configs, strict=True):
            machine = Machine.of(host, self.fabric, random.Random(self.rng.getrandbits(32)))
            own = self.differing.get(len(self.nodes), {})
            node = Node(machine, attrs.evolve(config, broker_ip1=host, bind_address=host, **own))
            self.nodes.append(node)
            await self.nursery.start(node.process.run)

    def masters(self) -> list[Node]:
        return [node for node in self.nodes if node.broker is not None and node.broker.role.takes_puts]

    async def master(self) -> Node:
        """The node that is master, once there is exactly one."""
        with trio.fail_after(30):
            while len(self.masters()) != 1:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        return self.masters()[0]

    async def begin_anew(self) -> None:
        """Let all nodes, whose stores are in memory, lose them at once, and another one become master."""
        old = await self.master()
        for node in self.nodes:
            await node.process.end(End.KILL)
        self.sent.clear()
        for node in self.nodes:
            await self.nursery.start(node.process.run)
        if await self.master() is old:
            await old.process.end(End.CLEAN)
            await self.master()
            await self.nursery.start(old.process.run)

    async def produce(self, producer: Producer, messages: int) -> None:
        """Send so many messages; one that failed is sent again under another number."""
        while messages:
            number = next(self._numbers)
            try:
                await producer.send(Message("T", b"%d" % number, keys=(str(number),)))
            except ClientError:
                await trio.sleep(0.05)
            else:
                self.sent[number] = None
                messages -= 1

    async def consumed(self) -> list[int]:
        """What a new group is given, from the first message to the last acknowledged one."""
        received: list[int] = []
        async with open_consumer(
            self.namesrv, "check", "T", consume_from=ConsumeFrom.FIRST, ack="explicit", world=self.world("10.0.3.9")
        ) as consumer:
            with trio.fail_after(60):
                while not self.sent.keys() <= set(received):
                    async with consumer.take(32, 1.0) as batch:
                        received += [int(message.body) for message in batch]
        return received


JAVA = {"raftDialect": "java", "haSecret": ""}
DIALECTS = pytest.mark.parametrize(("settings", "seconds_max"), [({}, 5), (JAVA, 25)], ids=["native", "java"])
"""Settings of each dialect, and how long its time-outs let sends wait for the next master."""


def scenario(
    story: Callable[[Group], Awaitable[None]],
    seed: int = 1,
    settings: Mapping[str, str] | None = None,
    differing: Mapping[int, Mapping[str, Any]] | None = None,
) -> None:
    """Tell a story about a new group, once it has a master unless its nodes differ."""

    async def run() -> None:
        rng = random.Random(seed)
        async with trio.open_nursery() as nursery:
            group = Group(nursery, SimFabric(random.Random(seed)), rng, settings=settings or {}, differing=differing or {})
            await group.start()
            if differing is None:
                await group.master()
            await story(group)
            for node in group.nodes:
                if node.broker is not None:
                    await node.process.end(End.CLEAN)
            nursery.cancel_scope.cancel()

    seeded_run(run, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", list(End), ids=lambda end: end.name.lower())
@DIALECTS
def test_nothing_acknowledged_is_lost_or_repeated_when_the_master_ends(
    settings: Mapping[str, str], seconds_max: float, how: End, seed: int
) -> None:
    """Three masters in a row; queues have no gap and no message twice, on every node."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            for _ in range(3):
                await group.produce(producer, 20)
                old = await group.master()
                await old.process.end(how)
                ended = trio.current_time()
                await group.produce(producer, 20)
                assert trio.current_time() - ended < seconds_max
                await group.nursery.start(old.process.run)
            received = await group.consumed()
        assert len(received) == len(set(received))
        assert set(received) >= group.sent.keys()
        await check_nodes_agree(group)

    scenario(story, seed, settings)


async def check_nodes_agree(group: Group) -> None:
    """Every node that runs has the same log up to the committed position, and derives the same queues from it."""
    master = await group.master()
    assert master.broker is not None
    end = master.broker.store.log.committed_offset
    with trio.fail_after(30):
        while any(  # noqa: ASYNC110 - virtual time
            node.broker is not None and node.broker.store.dispatcher.dispatched_offset < end for node in group.nodes
        ):
            await trio.sleep(0.05)
    brokers = [node.broker for node in group.nodes if node.broker is not None]
    logs = [[bytes(broker.store.log.slice_from(at, 1 << 20)) for at in range(0, end, 65536)] for broker in brokers]
    assert all(log[:-1] == logs[0][:-1] for log in logs)
    queues = [{queue_id: broker.store.max_offset("T", queue_id) for queue_id in range(2)} for broker in brokers]
    assert all(one == queues[0] for one in queues)


def test_a_planned_stop_fails_no_send() -> None:
    """The master hands over first; sends wait for the new one."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            stopped = trio.Event()

            async def produce() -> None:
                while not stopped.is_set():
                    await producer.send(Message("T", b"x"))
                    await trio.sleep(0.002)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                for _ in range(3):
                    await trio.sleep(0.5)
                    old = await group.master()
                    await old.process.end(End.CLEAN)
                    await trio.sleep(1)
                    await group.nursery.start(old.process.run)
                stopped.set()

    scenario(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_master_that_is_cut_off_acknowledges_nothing_and_follows_when_it_is_back(seed: int) -> None:
    """Its clients go to the new master; what it had taken meanwhile never appears."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 10)
            old = await group.master()
            others = [node for node in group.nodes if node is not old]
            group.fabric.part([old.machine.host], [node.machine.host for node in others])
            assert old.broker is not None
            orphan = old.broker.store
            with trio.fail_after(30):
                while not any(node in others for node in group.masters()):  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
            await trio.sleep(1)
            assert not old.broker.role.takes_puts
            await group.produce(producer, 10)
            group.fabric.heal()
            await group.produce(producer, 10)
            received = await group.consumed()
            assert sorted(received) == sorted(group.sent)
            assert old.broker.store is orphan
            assert old.broker.role.state.role is Role.FOLLOWER
            await check_nodes_agree(group)

    scenario(story, seed)


def test_a_deposed_master_that_registers_late_does_not_replace_its_successor() -> None:
    """Cut off from the other nodes, it leads in its own eyes until its time-out; a periodic registration may fall into that."""

    async def story(group: Group) -> None:
        old = await group.master()
        assert old.broker is not None
        others = [node for node in group.nodes if node is not old]
        group.fabric.part([old.machine.host], [node.machine.host for node in others])
        registered_late = False
        with trio.fail_after(30):
            while old.broker.role.takes_puts:
                registered_late |= any(node in others for node in group.masters())
                old.broker.registration.register_again()
                await trio.sleep(0.01)
        assert registered_late
        new = await group.master()
        await trio.sleep(1)

        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:
            (broker,) = (await admin.cluster()).brokers
        assert broker.addresses[MASTER_ID].host == new.machine.host

    scenario(story)


def test_an_elected_node_is_not_on_the_routes_as_master_before_it_has_derived_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that it derives is registered at once; with id 0, clients would ask it for topics that it does not have yet."""
    derived = trio.Event()
    prepare = DLedgerNode.prepare_to_lead

    async def late(node: DLedgerNode, broker_id: int, *, synchronous: bool, term: int) -> None:
        await derived.wait()
        await prepare(node, broker_id, synchronous=synchronous, term=term)

    async def story(group: Group) -> None:
        old = await group.master()
        monkeypatch.setattr(DLedgerNode, "prepare_to_lead", late)
        await old.process.end(End.KILL)
        elected: list[Broker] = []
        with trio.fail_after(30):
            while not elected:
                await trio.sleep(0.01)
                running = [node.broker for node in group.nodes if node is not old and node.broker is not None]
                elected = [broker for broker in running if broker.role.state.role is Role.READ_ONLY]
        elected[0].registration.register_again()
        await trio.sleep(1)

        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:
            (before,) = (await admin.cluster()).brokers
            derived.set()
            new = await group.master()
            await trio.sleep(1)
            (after,) = (await admin.cluster()).brokers
        assert MASTER_ID not in before.addresses
        assert after.addresses[MASTER_ID].host == new.machine.host

    scenario(story)


def test_the_next_master_knows_topics_groups_and_commits() -> None:
    """What was created is there at once, though nobody has copied a table; commits are at most a moment old."""

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
            await admin.create_topic("T", queues=2)
            await admin.create_topic("Empty", queues=7)
            await admin.create_group("g")
            await group.produce(producer, 30)
            received: set[int] = set()
            async with open_consumer(
                group.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST, ack="explicit", world=world
            ) as consumer:
                while len(received) < 30:
                    for message in await consumer.get_many(8, 1.0):
                        received.add(int(message.body))
                        await message.ack()
            old = await group.master()
            assert old.broker is not None
            committed = old.broker.offsets.of("g", "T")
            assert sum(committed.values()) == 30
            await admin.delete_topic("Empty")
            await admin.create_topic("Empty", queues=3)
            await trio.sleep(0.3)
            await old.process.end(End.KILL)

            new = await group.master()
            assert new.broker is not None
            config = new.broker.topics.get("Empty")
            assert config is not None
            assert config.write_queue_nums == 3
            assert new.broker.groups.get("g") is not None
            assert new.broker.offsets.of("g", "T") == committed

            await group.nursery.start(old.process.run)
            for node in group.nodes:
                if node is not old:
                    await node.process.end(End.POWER)
            for node in group.nodes:
                if node is not old:
                    await group.nursery.start(node.process.run)
            last = await group.master()
            assert last.broker is not None
            assert last.broker.offsets.of("g", "T") == committed
            config = last.broker.topics.get("Empty")
            assert config is not None
            assert config.write_queue_nums == 3

    scenario(story)


def test_a_group_commits_at_the_next_master_though_its_client_has_not_heard_of_it() -> None:
    """The node that led before refuses commits, and the client asks name servers who leads now."""

    async def story(group: Group) -> None:
        async with (
            open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer,
            open_consumer(
                group.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST, ack="explicit", world=group.world("10.0.3.2")
            ) as consumer,
        ):
            await group.produce(producer, 10)
            received = await take(consumer, 10)
            old = await group.master()
            await old.process.end(End.CLEAN)
            await group.nursery.start(old.process.run)
            await group.produce(producer, 10)
            received += await take(consumer, 10)
            await trio.sleep(11)
            new = await group.master()
            assert new is not old
            assert len(received) == 20
            assert new.broker is not None
            assert sum(new.broker.offsets.of("g", "T").values()) == 20
            assert old.broker is not None
            assert old.broker.offsets.of("g", "T") == new.broker.offsets.of("g", "T")

    scenario(story)


async def take(consumer: Consumer, messages: int) -> list[int]:
    """Receive and acknowledge at least so many messages."""
    taken: list[int] = []
    with trio.fail_after(30):
        while len(taken) < messages:
            for message in await consumer.get_many(messages, 1.0):
                taken.append(int(message.body))
                await message.ack()
    return taken


def test_delayed_messages_come_once_each_through_a_failover() -> None:
    """The new master delivers what the old one had not."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 2)
            for number in range(1000, 1010):
                await producer.send(Message("T", b"%d" % number, delay_level=2))
                group.sent[number] = None
            await (await group.master()).process.end(End.KILL)
            received = await group.consumed()
        assert sorted(received) == sorted(group.sent)

    scenario(story)


def test_a_delayed_message_of_the_largest_size_that_the_log_takes_holds_up_no_other() -> None:
    """Its copy would be larger than the message that waits, because its topic has a longer name than the delay topic."""

    async def story(group: Group) -> None:
        topic = "L" * 100
        body = random.Random(1).randbytes(65_536)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1"), retries=0) as producer:
            with pytest.raises(ClientError, match="a segment of the log has room for") as refused:
                await producer.send(Message(topic, body, delay_level=1))
            size, room = map(int, re.findall(r"have (\d+) bytes, .* has room for (\d+)", str(refused.value))[0])
            excess = size - room
            await producer.send(Message(topic, body[:-excess], delay_level=1))
            await producer.send(Message(topic, b"next", delay_level=1))
        await trio.sleep(3)
        master = await group.master()
        assert master.broker is not None
        store = master.broker.store
        assert sum(store.max_offset(topic, queue_id) for queue_id in range(2)) == 2
        before = store.next_offset(topic, 0)
        put = store.put([IncomingMessage(topic, 0, one, "", 0, 0, 0, bytes(8)) for one in (b"before", body, b"after")])
        assert put.statuses == [PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK]
        assert put.queue_offsets == [before, -1, before + 1]
        assert put.end == store.log.max_offset

    scenario(story, settings={"maxMessageSize": "65536"})


def test_a_preferred_leader_that_is_no_peer_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt id would otherwise prefer nobody without a word."""
    config = broker_configs("store", "10.0.0.1", mode="dledger", nodes=3, raft_ports=[1, 2, 3])[0]

    replica_settings(attrs.evolve(config, preferred_leader_id="n1"))
    assert not caplog.records
    replica_settings(attrs.evolve(config, preferred_leader_id="n1;n7"))

    (record,) = caplog.records
    assert "preferred_leader_unknown preferred_leader_id='n7'" in record.getMessage()


def test_a_preferred_leader_is_refused_with_the_dialect_that_has_no_effect_for_it() -> None:
    """A node of ours does not ask for a transfer to it there, so the key would be ignored without a word."""
    config = broker_configs("store", "10.0.0.1", mode="dledger", nodes=3, raft_ports=[1, 2, 3])[0]

    with pytest.raises(WrongHaSetting, match="preferredLeaderId has no effect with raftDialect = java"):
        replica_settings(attrs.evolve(config, preferred_leader_id="n1", raft_dialect="java", ha_secret=""))


def test_a_node_that_listens_beyond_its_machine_needs_a_secret() -> None:
    """Whoever reaches the port could vote otherwise. One that is asked for by name, or that nobody reaches, starts without."""
    config = broker_configs("store", "10.0.0.1", mode="dledger", nodes=3, raft_ports=[1, 2, 3])[0]
    config = attrs.evolve(config, ha_secret="", allow_empty_ha_secret=False)

    for host in ("", "0.0.0.0", "::", "10.0.0.1", "broker-a.example"):
        with pytest.raises(WrongHaSetting, match="Set one haSecret on all nodes, or allowEmptyHaSecret=true"):
            replica_settings(attrs.evolve(config, bind_address=host))
        replica_settings(attrs.evolve(config, bind_address=host, ha_secret="secret"))  # noqa: S106
        replica_settings(attrs.evolve(config, bind_address=host, allow_empty_ha_secret=True))
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        replica_settings(attrs.evolve(config, bind_address=host))


@pytest.mark.parametrize(("host", "said"), [("10.0.0.1", True), ("127.0.0.1", False)])
def test_a_port_that_no_secret_can_protect_is_warned_of(host: str, caplog: pytest.LogCaptureFixture, *, said: bool) -> None:
    config = broker_configs("store", "10.0.0.1", mode="dledger", nodes=3, raft_ports=[1, 2, 3])[0]

    replica_settings(attrs.evolve(config, ha_secret="", raft_dialect="java", bind_address=host))

    assert ("raft_port_unprotected" in caplog.text) is said


def test_two_nodes_do_not_share_the_files_of_a_ledger() -> None:
    """One is given the directory of the other's ledger by mistake; it does not start, and the other goes on."""

    async def story(group: Group) -> None:
        master = await group.master()
        shared = f"{master.config.store_path_root_dir}/dledger-{master.config.dleger_self_id}/data"
        other = attrs.evolve(
            master.config, store_path_root_dir="elsewhere", store_path_dledger_commit_log=shared, listen_port=20911
        )
        with pytest.raises(StoreInUse):
            async with open_broker(other, master.machine.world()):
                pytest.fail("two nodes share a ledger")
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)

    scenario(story)


def test_a_message_that_no_entry_takes_is_refused_by_the_limit_of_entries() -> None:
    """They have 4 MiB, however large a file of the log is; the largest that is accepted can be retried too."""

    async def story(group: Group) -> None:
        body = random.Random(1).randbytes(4 * 1024 * 1024)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1"), retries=0) as producer:
            with pytest.raises(ClientError, match="an entry of a DLedger group has room for") as refused:
                await producer.send(Message("T", body))
            size, room = map(int, re.findall(r"have (\d+) bytes, .* has room for (\d+)", str(refused.value))[0])
            assert 4 * 1024 * 1024 - 2048 < room < 4 * 1024 * 1024
            await producer.send(Message("T", body[: room - size]))

    scenario(story, settings={"maxMessageSize": str(4 * 1024 * 1024), "mappedFileSizeCommitLog": str(8 * 1024 * 1024)})
