"""The way back from DLedger to classic mode: the last voter's store as a classic one, which a classic broker continues."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from errno import EIO
from itertools import count
from typing import Any, cast

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.modes.leaving_dledger import CannotLeave, ClassicCopy, write_classic_copy
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import ConsumeFrom, open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message, MessageQueue
from ledgermq.message.send_number import SendNumber
from ledgermq.message.units import QueueId
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.store.config import StoreConfig
from ledgermq.store.errors import LogOfOtherMode, StoreInUse, UnfinishedCopy
from ledgermq.store.opening import open_message_store
from ledgermq.testing.history import End
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.world import Machine
from ledgermq.world.address import Address
from ledgermq.world.disk import Disk

from ..tables.test_numbered_sends import FIELDS
from ..test_older_logs import leave_classic_stores, start_all, up
from .test_dledger import Group, scenario

TARGET = "classic"
QUEUES = [("T", 0), ("T", 1), ("Again", 0)]
Content = dict[tuple[str, int], tuple[int, int, list[bytes]]]


def copy_of(node: Node) -> ClassicCopy:
    return write_classic_copy(node.machine.world(), node.config.store_path_root_dir, TARGET)


def content(node: Node) -> Content:
    """The bounds and bodies of all queues, as a broker gives them out."""
    store = up(node).store
    found: Content = {}
    for topic, queue_id in QUEUES:
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        bodies: list[bytes] = []
        while low + len(bodies) < high:
            for piece in store.get(topic, queue_id, low + len(bodies), 32).slices:
                message = decode_record(piece)
                assert message.queue_offset == low + len(bodies)
                bodies.append(message.body)
        found[topic, queue_id] = low, high, bodies
    return found


async def remove_others(group: Group, master: Node) -> None:
    """Remove all voters but the master, and stop them."""
    async with open_admin(group.namesrv, world=group.world("10.0.3.7")) as admin:
        for node in group.nodes:
            if node is not master:
                await admin.change_dledger_group(str(up(master).address), "remove", node.config.dleger_self_id, "")
                await node.process.end(End.CLEAN)


async def start_classic(group: Group, node: Node) -> None:
    node.config = attrs.evolve(node.config, enable_dleger_commit_log=False, store_path_root_dir=TARGET)
    await group.nursery.start(node.process.run)


async def consumed(group: Group, count: int) -> list[bytes]:
    """Consume at least so many messages of the topic T as one group, and acknowledge them."""
    bodies: list[bytes] = []
    async with open_consumer(
        group.namesrv, "second", "T", consume_from=ConsumeFrom.FIRST, ack="explicit", world=group.world("10.0.3.8")
    ) as consumer:
        with trio.fail_after(60):
            while len(bodies) < count:
                for message in await consumer.get_many(32, 1.0):
                    bodies.append(message.body)
                    await message.ack()
    return bodies


@pytest.mark.parametrize("older", [False, True], ids=["ledger", "classic log and ledger"])
def test_a_classic_broker_goes_on_where_the_last_voter_ended(older: bool) -> None:
    """Messages, queue offsets, topics, consumer offsets, deletions and delayed messages are as they were."""

    async def story(group: Group) -> None:
        if older:
            await leave_classic_stores(group)
            await start_all(group)
        master = await group.master()
        world = group.world("10.0.3.2")
        async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
            await admin.create_topic("Again", queues=1)
            for _ in range(7):
                await producer.send(Message("Again", b"deleted"))
            await admin.delete_topic("Again")
            await admin.create_topic("Again", queues=1)
            await producer.send(Message("Again", b"kept"))
            await group.produce(producer, 400)
            read = await consumed(group, 100)
            await producer.send(Message("T", b"0", delay_level=2))
        await remove_others(group, master)
        await trio.sleep(1)
        before, offsets = content(master), up(master).offsets.to_json()
        assert before["Again", 0] == (7, 8, [b"kept"])
        await master.process.end(End.CLEAN)

        copied = copy_of(master)

        assert copied.end > 65536
        await start_classic(group, master)
        assert content(master) == before
        assert up(master).offsets.to_json()["offsetTable"] == offsets["offsetTable"]
        await trio.sleep(6)
        delayed = [body for queue, (_, _, bodies) in content(master).items() for body in bodies[len(before[queue][2]) :]]
        assert delayed == [b"0"]
        async with open_producer(group.namesrv, "p", world=world) as producer:
            sent = await producer.send(Message("Again", b"next"), queue=MessageQueue("Again", "broker-a", QueueId(0)))
            assert sent.queue_offset == 8
        stored = [*before["T", 0][2], *before["T", 1][2], b"0"]
        rest = await consumed(group, len(stored) - len(read))
        assert sorted(read + rest) == sorted(stored)
        await trio.sleep(11)  # so that the position of delayed messages is in its file
        after = content(master)
        await master.process.end(End.KILL)
        await group.nursery.start(master.process.run)
        assert content(master) == after

    scenario(story)


def test_a_classic_broker_knows_the_numbered_sends_and_fences_of_the_ledger() -> None:
    """A ledger has headers between its records, so every message has another place in the copy."""

    async def story(group: Group) -> None:
        async def ask(node: Node, code: int, ext: Mapping[str, Any]) -> RemotingCommand:
            address = Address(node.config.broker_ip1, node.config.listen_port)
            async with connected(address, network=group.world("10.0.3.1").network) as channel:
                return await channel.call(RemotingCommand(code, {name: str(value) for name, value in ext.items()}, b"x"), 5)

        async def send(node: Node, number: str) -> RemotingCommand:
            return await ask(node, RequestCode.SEND_MESSAGE_V2, {**FIELDS, "sendNumber": number})

        master = await group.master()
        first = [await send(master, number) for number in ("z.0.1.0", "b.0.1.0", "b.0.2.0", "a.0.1.0")]
        fenced = await ask(master, RequestCode.FENCE_PRODUCER, {"producer": "z"})
        up(master).numbered.table.apply(SendNumber("b", 0, 0, 0), 0, 100, 1)  # as if its message had expired
        await remove_others(group, master)
        await trio.sleep(1)
        before = up(master).numbered.table
        await master.process.end(End.CLEAN)

        copy_of(master)

        await start_classic(group, master)
        after = up(master).numbered.table
        assert list(after.producers) == list(before.producers)
        assert after.complete_since_ms == before.complete_since_ms
        again = [await send(master, number) for number in ("b.0.1.0", "b.0.2.0", "a.0.1.0")]
        assert [answer.ext.get("repeated") for answer in again] == ["true"] * 3
        assert [answer.ext["queueOffset"] for answer in again] == [answer.ext["queueOffset"] for answer in first[1:]]
        assert (await send(master, "z.0.2.0")).code == ResponseCode.PRODUCER_FENCED
        assert after.producers["z"].epoch == int(fenced.ext["epoch"])
        assert (await send(master, "b.0.0.0")).code == ResponseCode.SEND_FORGOTTEN
        assert up(master).store.max_offset("T", 0) == 4

    scenario(story)


FILE_BYTES_MAX = 64 << 10
"""The size of the log's files here. The index of the ledger has larger ones, and we take no more of them."""


class MachineEndedError(BaseException):
    """The machine loses power in the middle of a call."""


@attrs.define(eq=False)
class Failing:
    """A disk or a file one of whose calls fails, counted over all of them."""

    inner: Any
    error: BaseException
    calls_left: list[int]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found) or name in ("close", "boot_id"):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self.calls_left[0] -= 1
            if self.calls_left[0] == 0:
                raise self.error
            made = found(*args, **named)
            return Failing(made, self.error, self.calls_left) if name == "open" else made

        return call


def files_below(disk: SimDisk, directory: str) -> dict[str, bytes]:
    """The content of all files below a directory, but of locks, and of what a copy does not read."""
    found: dict[str, bytes] = {}
    for name in disk.list_directory(directory):
        path = f"{directory}/{name}"
        if name in ("lock", "consumequeue") or (name == "index" and "dledger" not in directory):
            continue
        if disk.is_directory(path):
            found |= files_below(disk, path)
        else:
            file = disk.open(path, read_only=True)
            found[path] = file.read(0, FILE_BYTES_MAX)
            file.close()
    return found


def disk_with(files: dict[str, bytes], seed: int) -> SimDisk:
    """A disk that has these files on its medium."""
    disk = SimDisk(random.Random(seed))
    for path, content in files.items():
        disk.make_directories(path.rpartition("/")[0])
        file = disk.open(path, create_size=len(content))
        file.write(content, 0)
        file.sync()
        file.close()
    disk.sync_directory(".")
    for path in files:
        disk.sync_directory(path.rpartition("/")[0])
    return disk


async def is_refused(machine: Machine) -> bool:
    """Whether a classic broker refuses to open the copy."""
    try:
        async with open_message_store(machine.world(), StoreConfig(store_path_root_dir=TARGET)):
            return False
    except UnfinishedCopy as error:
        assert "run the command again" in str(error)  # noqa: PT017 - whether it is raised is the result
        return True


@pytest.mark.parametrize("way", [pytest.param("the call fails", marks=pytest.mark.slow), "the power fails"])
def test_a_copy_that_fails_at_any_call_is_refused_or_whole(way: str) -> None:
    """The original stays as it was, no broker opens a part of the copy, and the next attempt succeeds."""

    async def story(group: Group) -> None:
        master = await group.master()
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 300)
        await remove_others(group, master)
        await trio.sleep(1)
        await master.process.end(End.CLEAN)
        machine, root = master.machine, master.config.store_path_root_dir
        original = files_below(machine.disk, root)
        copy_of(master)
        whole, outcomes = files_below(machine.disk, TARGET), Counter[str]()

        for number in count(1):
            machine.disk = disk_with(original, number)
            error = OSError(EIO, "failed") if way == "the call fails" else MachineEndedError()
            disk = Failing(machine.disk, error, [number])
            try:
                write_classic_copy(attrs.evolve(machine.world(), disk=cast("Disk", disk)), root, TARGET)
            except (OSError, MachineEndedError) as raised:
                if error not in (raised, raised.__cause__):
                    raise
            else:
                break
            if way == "the power fails":
                machine.disk = machine.disk.power_cut(number)
            assert files_below(machine.disk, root) == original
            if machine.disk.exists(f"{TARGET}/commitlog"):
                assert files_below(machine.disk, TARGET) == whole
                outcomes["whole"] += 1
            elif files_below(machine.disk, TARGET):
                assert await is_refused(machine)
                outcomes["refused"] += 1
            write_classic_copy(machine.world(), root, "another")
            assert files_below(machine.disk, "another") == {
                path.replace(TARGET, "another", 1): content for path, content in whole.items()
            }
        assert outcomes["refused"] >= 20
        assert outcomes["whole"] >= 1

    scenario(story)


def test_a_store_that_may_lack_messages_is_not_copied() -> None:
    """While others vote, while it runs, and after a kill; each refusal says what to do, and writes nothing."""

    async def story(group: Group) -> None:
        master = await group.master()
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 20)
        with pytest.raises(StoreInUse):
            copy_of(master)
        follower = next(node for node in group.nodes if node is not master)
        await follower.process.end(End.CLEAN)
        with pytest.raises(CannotLeave, match=r"is not the only voter of its group.*ledgermq dledger remove"):
            copy_of(follower)
        await group.nursery.start(follower.process.run)
        await trio.sleep(1)
        await remove_others(group, await group.master())
        (last,) = (node for node in group.nodes if node.broker is not None)
        await last.process.end(End.KILL)
        with pytest.raises(CannotLeave, match="was not closed in order"):
            copy_of(last)
        assert not last.machine.disk.list_directory(TARGET)

        await group.nursery.start(last.process.run)
        await group.master()
        await last.process.end(End.CLEAN)
        last.machine.disk.make_directories(f"{TARGET}/other")
        with pytest.raises(CannotLeave, match="is not empty"):
            copy_of(last)
        last.machine.disk.remove_tree(TARGET)
        assert copy_of(last).records == 20

        last.config = attrs.evolve(last.config, enable_dleger_commit_log=False)
        with pytest.raises(LogOfOtherMode, match="ledgermq store to-classic"):
            await last.process.run()

    scenario(story)
