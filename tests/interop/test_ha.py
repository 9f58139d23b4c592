"""Replication with strangers: Apache slaves behind our master, our slave behind Apache masters, foreign clients that lose one.

Each pair goes through ``$LEDGERMQ_HA_MESSAGES`` mixed messages (20,000 unless set) with a kill -9 of either side under way.
"""

import hashlib
import os
import signal
from pathlib import Path

import attrs
import pytest
import trio

from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message

from .driver import Sent
from .members import SEGMENT_SIZE, Member, becomes_equal, digests, open_group, start_foreign
from .servers import Maker

pytestmark = pytest.mark.interop

MESSAGES = int(os.environ.get("LEDGERMQ_HA_MESSAGES", "20000"))
WORKERS = 16
BATCH = 20
PATIENCE_SECONDS = 300 + MESSAGES / 1000
TOPIC = "Mixed"

BARE = {"haProtocol": "rocketmq", "syncFrom": "first"}
"""The configuration of our broker for a peer of Apache's."""
SECRET = {"haSecret": "s"}


@attrs.define
class Load:
    """Numbered messages of every kind; one whose fate is unknown is sent again."""

    producer: Producer
    next_number: int = 0
    stored: set[int] = attrs.field(factory=set[int])

    async def begin(self) -> None:
        """Store the first message alone."""
        await self._next()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        while self.next_number < MESSAGES:
            await self._next()

    async def _next(self) -> None:
        first = self.next_number
        count = min(BATCH if first % 3 else 1, MESSAGES - first)
        self.next_number += count
        while True:
            try:
                await self._send(first, count)
                break
            except ClientError:
                await trio.sleep(0.1)  # its broker is being started again
        self.stored.update(range(first, first + count))

    async def _send(self, first: int, count: int) -> None:
        if count > 1:
            await self.producer.send_batch([mixed(number) for number in range(first, first + count)])
        elif first % 1000 == 0:
            await self.producer.send(attrs.evolve(mixed(first), delay_level=1))
        else:
            await self.producer.send(mixed(first), key=str(first % 5) if first % 2 else None)

    async def wait(self, share: float) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            while len(self.stored) < MESSAGES * share:  # noqa: ASYNC110 - many tasks add to it
                await trio.sleep(0.005)


def mixed(number: int) -> Message:
    """Small and large, compressible and not, with and without tags, keys and properties."""
    filler = hashlib.sha512(b"%d" % number).digest() * 200 if number % 97 == 0 else b"x" * (number % 700)
    properties = {"colour": f"grün-{number}"} if number % 5 == 0 else {}
    tag = f"tag{number % 3}" if number % 2 else None
    return Message(TOPIC, b"%d " % number + filler, tag=tag, keys=[f"key-{number}"], properties=properties)


async def becomes_known(member: Member) -> None:
    """Wait until a slave knows the topic: a classic slave of Apache's 5.x asks its master once a minute."""
    topics = member.folder / "store" / "config" / "topics.json"
    with trio.fail_after(PATIENCE_SECONDS):
        while not topics.exists() or f'"{TOPIC}"' not in topics.read_text():  # noqa: ASYNC110 - a file tells nobody
            await trio.sleep(0.2)


async def read_numbers(namesrv: str, wanted: set[int]) -> set[int]:
    """The numbers that a consumer group gets, from the first message on."""
    numbers: set[int] = set()
    async with open_consumer(namesrv, "reader", TOPIC, consume_from=ConsumeFrom.FIRST) as consumer:
        with trio.move_on_after(PATIENCE_SECONDS):
            while not numbers >= wanted:
                async with consumer.take() as batch:
                    numbers.update(int(message.body.split()[0]) for message in batch)
    return numbers


@pytest.mark.parametrize(
    ("leader", "follower"),
    [
        pytest.param(Maker.OURS, Maker.APACHE_55, id="apache-5.5.0-follows-ours"),
        pytest.param(Maker.OURS, Maker.APACHE_49, id="apache-4.9.7-follows-ours"),
        pytest.param(Maker.APACHE_55, Maker.OURS, id="ours-follows-apache-5.5.0"),
        pytest.param(Maker.APACHE_49, Maker.OURS, id="ours-follows-apache-4.9.7"),
    ],
)
async def test_a_slave_is_its_master_byte_for_byte(tmp_path: Path, leader: Maker, follower: Maker) -> None:
    """Through kill -9 of the slave, then of the master, under load: equal segments, and all can be read from the slave."""

    def settings(maker: Maker) -> dict[str, str]:
        return BARE if maker is Maker.OURS else {}

    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin:
        master = await group.start(leader, more=settings(leader))
        await admin.create_topic(TOPIC, broker=master.address)
        slave = await group.start(follower, number=1, more=settings(follower))
        async with open_producer(group.namesrv, send_timeout_seconds=10) as producer, trio.open_nursery() as nursery:
            load = Load(producer)
            with trio.fail_after(PATIENCE_SECONDS):
                await load.begin()
            # A master of Apache's gives a slave without any record only its last segment, which may be the second one later.
            await becomes_equal(admin, master, slave, seconds=PATIENCE_SECONDS)
            nursery.start_soon(load.run)

            await load.wait(1 / 4)
            slave.kill()
            await slave.start()
            await load.wait(1 / 2)
            master.kill()
            await master.start()
            await load.wait(1)

        end = await becomes_equal(admin, master, slave, seconds=PATIENCE_SECONDS)
        await becomes_known(slave)
        await master.stop()
        assert await read_numbers(group.namesrv, load.stored) == set(range(MESSAGES))
        await slave.stop()

    assert end > SEGMENT_SIZE
    assert digests(slave.segments, end) == digests(master.segments, end)


@pytest.mark.parametrize("follower", [Maker.APACHE_55, Maker.APACHE_49], ids=lambda maker: maker.value)
async def test_a_slave_of_another_make_passes_over_deletions(tmp_path: Path, follower: Maker) -> None:
    """It keeps what was deleted, for it knows no such record; what comes afterwards is there, under the master's offsets."""
    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin, open_producer(group.namesrv) as producer:
        master = await group.start(Maker.OURS, more=BARE)
        await admin.create_topic(TOPIC, queues=1)
        slave = await group.start(follower, number=1)
        for number in range(20):
            await producer.send(Message(TOPIC, b"%d " % number))
        await admin.delete_topic(TOPIC)
        await admin.create_topic(TOPIC, queues=1)
        results = [await producer.send(Message(TOPIC, b"%d " % number)) for number in range(20, 30)]
        assert [result.queue_offset for result in results] == list(range(20, 30))
        await becomes_equal(admin, master, slave, seconds=PATIENCE_SECONDS)
        await becomes_known(slave)
        await master.stop()
        wanted = set(range(20, 30))
        assert await read_numbers(group.namesrv, wanted) >= wanted
        await slave.stop()


def taken_by(sent: list[Sent]) -> set[int]:
    """The ports of the brokers that took these messages: an offset message id begins with four bytes each of host and port."""
    return {int(each.offset_msg_id[8:16], 16) for each in sent}


@pytest.mark.parametrize("language", ["java", "go"])
async def test_foreign_clients_outlive_a_master_of_ours(tmp_path: Path, language: str) -> None:
    """After a kill -9, sends go to the other master; what the dead one had for a running consumer is read from its slave."""
    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin, open_producer(group.namesrv) as producer:
        lost = await group.start(Maker.OURS, more=SECRET)
        other = await group.start(Maker.OURS, "broker-b")
        await admin.create_topic(TOPIC, queues=2)
        slave = await group.start(Maker.OURS, number=1, more=SECRET)
        client = await start_foreign(language, group.namesrv, tmp_path / language)
        group.started.callback(client.close)
        ports = {int(str(member.config["listenPort"])) for member in (lost, other)}

        with client.consuming("push", topic=TOPIC, group="reader") as consumer:
            sent = client.send(topic=TOPIC, mode="sync", count=40, body="before-{i}")
            assert taken_by(sent) == ports
            await trio.to_thread.run_sync(consumer.wait, 40)
            # The client stands still while more arrives: the pull that it has out at each queue brings one message, no more.
            client.process.send_signal(signal.SIGSTOP)
            for number in range(40):
                await producer.send(Message(TOPIC, b"meanwhile-%d" % number))
            await becomes_equal(admin, lost, slave, seconds=PATIENCE_SECONDS)
            await becomes_known(slave)
            lost.kill()
            client.process.send_signal(signal.SIGCONT)
            sent = await trio.to_thread.run_sync(lambda: client.send(topic=TOPIC, mode="sync", count=40, body="after-{i}"))
            received = await trio.to_thread.run_sync(consumer.wait, 120, PATIENCE_SECONDS)

    assert {each.status for each in sent} == {"SEND_OK"}
    assert taken_by(sent) == {int(str(other.config["listenPort"]))}
    assert {each.body for each in received} == {f"{when}-{i}" for when in ("before", "meanwhile", "after") for i in range(40)}
