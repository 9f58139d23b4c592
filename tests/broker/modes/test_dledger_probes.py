"""A DLedger group in situations that come seldom: offsets right after a failover, half a group, a stop during an election."""

from __future__ import annotations

import attrs
import trio

from ledgermq.broker.modes.dledger import DLedgerReplication
from ledgermq.client.admin import open_admin
from ledgermq.client.producer import open_producer
from ledgermq.message.json import loads
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.history import End
from ledgermq.world.network import Address

from .test_dledger import Group, scenario
from .test_dledger_requests import SENT, ask


def test_a_new_leader_knows_the_ends_of_queues_and_where_a_time_lies() -> None:
    """Messages of a batch and their offsets are the same at the next leader, from its first answer on."""

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_producer(group.namesrv, "p", world=world) as producer:
            for _ in range(3):
                await producer.send_batch([Message("T", b"%d" % number) for number in range(10)])
                await trio.sleep(1)
            old = await group.master()
            assert old.broker is not None
            wanted = ("T", 0), ("T", 1)
            ends = [old.broker.store.max_offset(*queue) for queue in wanted]
            assert sum(ends) == 30
            middle = old.machine.clock.wall_ms() - 1500
            places = [old.broker.store.offset_by_time(*queue, middle) for queue in wanted]
            await old.process.end(End.KILL)
            new = await group.master()
            for queue_id, (end, place) in enumerate(zip(ends, places, strict=True)):
                queue = {"topic": "T", "queueId": str(queue_id)}
                answer = await ask(group, new, RequestCode.GET_MAX_OFFSET, (queue, b""))
                assert int(answer.ext["offset"]) == end
                answer = await ask(
                    group, new, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ({**queue, "timestamp": str(middle)}, b"")
                )
                assert int(answer.ext["offset"]) == place

    scenario(story)


def test_a_reset_that_was_answered_holds_at_the_next_leader() -> None:
    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
            await admin.create_topic("T", queues=2)
            await admin.create_group("g")
            await group.produce(producer, 10)
            old = await group.master()
            for queue_id in range(2):
                commit = {"consumerGroup": "g", "topic": "T", "queueId": str(queue_id), "commitOffset": "4"}
                await ask(group, old, RequestCode.UPDATE_CONSUMER_OFFSET, (commit, b""))
            reset = {"group": "g", "topic": "T", "timestamp": "0", "isForce": "true"}
            answer = await ask(group, old, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, (reset, b""))
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            await old.process.end(End.POWER)
            new = await group.master()
            assert new.broker is not None
            assert new.broker.offsets.of("g", "T") == {0: 0, 1: 0}

    scenario(story)


def test_half_of_a_group_of_two_takes_nothing_and_says_so() -> None:
    """Two of three nodes are away: the last one is a candidate, refuses sends at once, and goes on when one is back."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
            first, second, last = group.nodes
            await first.process.end(End.KILL)
            await second.process.end(End.KILL)
            await trio.sleep(5)
            assert last.broker is not None
            assert not last.broker.role.takes_puts
            answer = await ask(group, last, RequestCode.SEND_MESSAGE, (SENT, b"x"))
            assert answer.code != ResponseCode.SUCCESS
            assert "candidate" in (answer.remark or "")
            assert isinstance(last.broker.replication, DLedgerReplication)
            status = last.broker.replication.status()["dledger"]
            assert status["leaderId"] is None
            assert [peer["connected"] for peer in status["peers"]] == [False, False]
            await group.nursery.start(first.process.run)
            await group.produce(producer, 5)

    scenario(story)


def test_a_node_that_is_stopped_during_an_election_stops_and_hinders_nobody() -> None:
    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
            for _ in range(3):
                old = await group.master()
                other = next(node for node in group.nodes if node is not old)
                await old.process.end(End.KILL)
                await trio.sleep(0.25 + 0.1 * group.rng.random())
                with trio.fail_after(5):
                    await other.process.end(End.CLEAN)
                await group.nursery.start(old.process.run)
                await group.produce(producer, 5)
                await group.nursery.start(other.process.run)
                await group.produce(producer, 5)

    scenario(story)


def test_a_node_with_files_of_another_size_takes_no_part_and_its_status_says_why() -> None:
    """Its entries would come to lie elsewhere; the other two go on."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
            master = await group.master()
            other = next(node for node in group.nodes if node is not master)
            await other.process.end(End.CLEAN)
            other.config = attrs.evolve(other.config, mapped_file_size_commit_log=131072, store_path_root_dir="elsewhere")
            await group.nursery.start(other.process.run)
            await group.produce(producer, 5)
            await trio.sleep(2)
            assert other.broker is not None
            assert isinstance(other.broker.replication, DLedgerReplication)
            refusals = [peer["refusal"] for peer in other.broker.replication.status()["dledger"]["peers"]]
            assert all("mappedFileSizeCommitLog" in refusal for refusal in refusals)
            assert not other.broker.role.takes_puts

    scenario(story)


def test_who_asks_right_after_an_acknowledgement_is_told_of_the_message() -> None:
    """A reset to the end skips it, the time of a queue's first message is its time, and the entries of its queue have it."""

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        leader = await group.master()
        async with (
            open_admin(group.namesrv, world=world) as admin,
            open_producer(group.namesrv, "p", world=world) as producer,
            connected(Address(leader.machine.host, 10911), network=world.network) as channel,
        ):
            await admin.create_group("g")
            for number, (code, ext) in enumerate(
                (
                    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "g", "timestamp": "-1", "isForce": "true"}),
                    (RequestCode.GET_EARLIEST_MSG_STORETIME, {"queueId": "0"}),
                    (RequestCode.QUERY_CONSUME_QUEUE, {"queueId": "0", "index": "0", "count": "10"}),
                )
            ):
                await admin.create_topic(f"T{number}", queues=1)
                for _ in range(1 if code is RequestCode.GET_EARLIEST_MSG_STORETIME else 2):
                    await producer.send(Message(f"T{number}", b"x"))
                answer = await channel.call(RemotingCommand(code, {"topic": f"T{number}", **ext}), 10.0)
                if code is RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
                    assert list(loads(answer.body)["offsetTable"].values()) == [2]
                elif code is RequestCode.GET_EARLIEST_MSG_STORETIME:
                    assert int(answer.ext["timestamp"]) > 0
                else:
                    assert loads(answer.body)["maxQueueIndex"] == 2

    scenario(story, settings={"useServerSideResetOffset": "true"})
