"""Requests that reach a client through its broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from ledgermq.broker.admin import relay
from ledgermq.broker.admin.inspection import QUEUES_PER_TURN
from ledgermq.broker.subscription import Subscription
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import dumps, loads
from ledgermq.message.layout import decode_records
from ledgermq.message.message import MessageId, MessageQueue
from ledgermq.message.units import PhysicalOffset, QueueId
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import ONEWAY_FLAG, RemotingCommand, Wire, encode_frame
from ledgermq.remoting.dispatcher import BODY_BYTES_MAX
from ledgermq.remoting.server import ServerConnection
from ledgermq.testing.logs import capture_logs

from ...turns import counted
from .desk import Desk, RecordedConnection, next_sent, open_desk, sent


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(str(tmp_path)) as desk:
        yield desk


@attrs.define(eq=False)
class Answering:
    """A client that answers the next request of its broker."""

    connection: RecordedConnection
    code: int = 0
    body: bytes = b""
    remark: str | None = None
    asked: RemotingCommand | None = None

    async def run(self) -> None:
        request = self.asked = await next_sent(self.connection)
        self.connection.receive(encode_frame(request.response(self.code, body=self.body, remark=self.remark)))


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("T1", "b1", QueueId(queue_id))


def message_id(offset: int) -> str:
    return str(MessageId("127.0.0.1", 10911, PhysicalOffset(offset)))


# ---------------------------------------------------------------- 307 and 309


async def test_running_info_goes_to_the_client_and_back_unchanged(desk: Desk) -> None:
    """The client gets the administrator's fields, but no credentials; code, remark and body come back as it gave them."""
    client = Answering(desk.consumer("g1", "T1"), body=b'{"jstack":"..."}', remark="not set any response code")
    asked = {"consumerGroup": "g1", "clientId": "client-1", "jstackEnable": "true"}
    signed = {"AccessKey": "key", "Signature": "signature"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        answer = await desk.ask_waiting(RequestCode.GET_CONSUMER_RUNNING_INFO, asked | signed)

    assert client.asked is not None
    assert (client.asked.code, client.asked.ext) == (RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
    assert not client.asked.is_oneway
    assert (answer.code, answer.remark, answer.body) == (0, "not set any response code", b'{"jstack":"..."}')


async def test_message_is_consumed_directly(desk: Desk) -> None:
    """The client gets the stored message itself, and the broker's name beside the administrator's fields."""
    offset = desk.put("T1", body=b"again")
    client = Answering(desk.consumer("g1", "T1"), body=b'{"consumeResult":"CR_SUCCESS"}')
    asked = {"consumerGroup": "g1", "clientId": "client-1", "msgId": message_id(offset), "topic": "T1"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        answer = await desk.ask_waiting(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)

    assert client.asked is not None
    assert client.asked.ext == asked | {"brokerName": "b1", "topicSysFlag": "0", "groupSysFlag": "0"}
    assert [message.body for message in decode_records(client.asked.body)] == [b"again"]
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("not an id", ResponseCode.INVALID_PARAMETER),
        (message_id(10**9), ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_message_that_is_not_there_is_not_consumed(desk: Desk, wrong: str, code: int) -> None:
    """A malformed id and an id of no message are distinguished, and no client is bothered."""
    connection = desk.consumer("g1", "T1")
    asked = {"consumerGroup": "g1", "clientId": "client-1", "msgId": wrong}

    answer = await desk.ask_waiting(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)

    assert answer.code == code
    assert sent(connection) == []


@pytest.mark.parametrize(("group", "client_id"), [("g1", "other"), ("g2", "client-1")])
async def test_unknown_client_is_an_error(desk: Desk, group: str, client_id: str) -> None:
    """Neither a wrong client nor a wrong group reaches anybody."""
    desk.consumer("g1", "T1")

    answer = await desk.ask_waiting(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": group, "clientId": client_id})

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert client_id in (answer.remark or "")


async def test_client_that_is_too_slow_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without an answer in time is reported as CONSUME_MSG_TIMEOUT."""
    monkeypatch.setattr(relay, "CALL_SECONDS", 0.01)
    desk.consumer("g1", "T1")

    answer = await desk.ask_waiting(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g1", "clientId": "client-1"})

    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_client_that_goes_away_is_an_error_at_once(desk: Desk) -> None:
    """The administrator does not wait out the time of a client whose connection ended."""
    connection = desk.consumer("g1", "T1")

    async with trio.open_nursery() as nursery:

        async def vanish() -> None:
            await next_sent(connection)
            connection.mark_closed()

        nursery.start_soon(vanish)
        answer = await desk.ask_waiting(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g1", "clientId": "client-1"})

    assert answer.code == ResponseCode.SYSTEM_ERROR


# ---------------------------------------------------------------- 223


async def test_consumers_tell_where_they_stand(desk: Desk) -> None:
    """Each member is asked; tables keyed by queue are read from the clients and written for the tool."""
    clients = [
        Answering(desk.consumer("g1", "T1", client_id=name, port=port), body=dumps({"messageQueueTable": {queue(at): at + 5}}))
        for at, (name, port) in enumerate((("c-0", 50000), ("c-1", 50001)))
    ]

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.run)
        answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "g1"})

    keys = [f'{{"brokerName":"b1","queueId":{at},"topic":"T1"}}' for at in (0, 1)]
    assert loads(answer.body) == {"consumerTable": {"c-0": {keys[0]: 5}, "c-1": {keys[1]: 6}}, "messageQueueTable": {}}
    assert clients[0].asked is not None
    assert clients[0].asked.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert clients[0].asked.ext == {"topic": "T1", "group": "g1"}


async def test_many_consumers_are_asked_and_their_answers_read_in_several_turns(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many answers arrive together, each turn reads one, and each sends requests to a part of the group."""
    body, asked, read = dumps({"messageQueueTable": {queue(0): 5}}), 0, 0
    json_of = relay._json_of  # pyright: ignore[reportPrivateUsage]

    async def call(_: ServerConnection, request: RemotingCommand, _seconds: float) -> RemotingCommand:
        nonlocal asked
        asked += 1
        await all_asked.wait()
        return request.response(body=body)

    def reading(answer: RemotingCommand) -> Any:
        nonlocal read
        read += 1
        return json_of(answer)

    all_asked = trio.Event()
    monkeypatch.setattr(RecordedConnection, "call", call)
    monkeypatch.setattr(relay, "_json_of", reading)
    for n in range(300):
        desk.consumer("g1", "T1", client_id=f"c-{n}", port=50_000)

    with counted(lambda: asked) as asking, counted(lambda: read) as reads:
        async with trio.open_nursery() as nursery:

            async def let_answer() -> None:
                await trio.testing.wait_all_tasks_blocked()
                all_asked.set()

            nursery.start_soon(let_answer)
            answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "g1"})

    assert len(loads(answer.body)["consumerTable"]) == asked == read == 300
    assert (asking.most, reads.most) == (relay.ASKED_PER_TURN, 1)


async def test_answers_of_consumers_that_are_too_long_together_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the tool would not fit a frame, and meanwhile all of them would be in memory."""
    monkeypatch.setattr(relay, "ANSWER_BYTES_MAX", 1000)

    async def call(_: ServerConnection, request: RemotingCommand, _seconds: float) -> RemotingCommand:
        await trio.lowlevel.checkpoint()
        return request.response(body=dumps({"messageQueueTable": {queue(at): 5 for at in range(10)}}))

    monkeypatch.setattr(RecordedConnection, "call", call)
    for n in range(30):
        desk.consumer("g1", "T1", client_id=f"c-{n}", port=50_000)

    answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "g1"})

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "bytes" in (answer.remark or "")


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"messageQueueTable":{"x":1}}'])
async def test_consumer_that_answers_nonsense_is_left_out(desk: Desk, body: bytes) -> None:
    """One client's bad answer does not spoil the others'."""
    good = Answering(desk.consumer("g1", "T1", client_id="good"), body=dumps({"messageQueueTable": {queue(0): 5}}))
    bad = Answering(desk.consumer("g1", "T1", client_id="bad", port=50001), body=body)

    async with trio.open_nursery() as nursery:
        for client in (good, bad):
            nursery.start_soon(client.run)
        answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "g1"})

    table: dict[str, Any] = loads(answer.body)["consumerTable"]
    assert table.pop("bad", {}) == {}
    assert list(table) == ["good"]


async def test_one_consumer_is_asked_by_its_id(desk: Desk) -> None:
    """`clientAddr` chooses a client; the others hear nothing."""
    asked = Answering(desk.consumer("g1", "T1", client_id="c-0"), body=b"{}")
    other = desk.consumer("g1", "T1", client_id="c-1", port=50001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.run)
        answer = await desk.ask_waiting(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "g1", "clientAddr": "c-0"}
        )

    assert loads(answer.body)["consumerTable"] == {"c-0": {}}
    assert sent(other) == []


async def test_offline_group_has_no_answer(desk: Desk) -> None:
    """A group without members is an error, as in RocketMQ."""
    answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T1", "group": "g1"})

    assert answer.code == ResponseCode.SYSTEM_ERROR


# ---------------------------------------------------------------- 222


async def three_messages(desk: Desk) -> None:
    for _ in range(3):
        desk.put("T1")
    await desk.settled()


def reset(**more: str | int) -> dict[str, str | int]:
    return {"topic": "T1", "group": "g1", "timestamp": 0, "isForce": "true", **more}


async def test_living_consumers_are_notified_to_move(desk: Desk) -> None:
    """Members get the table keyed by queue, oneway; the tool gets the same table; the offsets are stored."""
    await three_messages(desk)
    desk.broker.offsets.commit("g1", "T1", 0, 3)
    connection = desk.consumer("g1", "T1")

    answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())

    (notice,) = sent(connection)
    assert (notice.code, notice.flag) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ONEWAY_FLAG)
    assert notice.ext == {"topic": "T1", "group": "g1", "timestamp": "0", "isForce": "true"}
    assert notice.body == answer.body == dumps({"offsetTable": {queue(0): 0, queue(1): 0}})
    assert desk.broker.offsets.of("g1", "T1") == {0: 0, 1: 0}


async def test_a_topic_of_many_queues_is_reset_in_slices(desk: Desk) -> None:
    """Other tasks run meanwhile; a request for 65,535 queues must not hold the event loop."""
    desk.broker.topics.put(TopicConfig("T1", 5000, 5000))
    turns: list[int] = []
    async with trio.open_nursery() as nursery:

        async def look() -> None:
            while True:
                turns.append(len(desk.broker.offsets.of("g1", "T1")))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(look)
        await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())
        nursery.cancel_scope.cancel()

    assert max(after - before for before, after in pairwise(turns)) <= 3 * QUEUES_PER_TURN  # the order of tasks is random
    assert len(desk.broker.offsets.of("g1", "T1")) == 5000


async def test_a_reset_ends_when_the_broker_stops_deciding_and_says_how_far_it_came(desk: Desk) -> None:
    """Another node may have been elected between two turns; offsets that are set here after that would never reach it."""
    desk.broker.topics.put(TopicConfig("T1", 5000, 5000))

    async def lose_leadership() -> None:
        while not desk.broker.offsets.of("g1", "T1"):
            await trio.lowlevel.checkpoint()
        desk.broker.store.writability.role_refusal = "another node leads"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_leadership)
        answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())

    done = len(desk.broker.offsets.of("g1", "T1"))
    assert done < 5000
    assert answer.code == ResponseCode.SYSTEM_ERROR
    remark = answer.remark or ""
    assert remark.startswith(f"another node leads: g1 was reset on {done} queues of T1, and not on those from {done} on; ")


async def test_a_reset_is_sent_to_many_consumers_in_several_turns_and_once_to_each_connection(desk: Desk) -> None:
    """A reset of a wide topic has a megabyte; thousands of consumers get it in turns, those of one connection once."""
    await three_messages(desk)
    connections = [desk.consumer("g1", "T1", client_id=f"c-{n}", port=50_000 + n) for n in range(200)]
    members = list(desk.broker.consumers.groups["g1"].members.values())
    for member in members[:50]:
        twin = attrs.evolve(member, client_id=f"twin of {member.client_id}")
        desk.broker.consumers.register("g1", twin, [Subscription.parse("T1", "TagA", 5)])

    with counted(lambda: sum(len(connection.frames) for connection in connections)) as turns:
        await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())

    assert [len(connection.frames) for connection in connections] == [1] * 200
    assert turns.most == relay.ASKED_PER_TURN


async def test_cpp_consumer_gets_its_offsets_as_a_list(desk: Desk) -> None:
    """The C++ client reads no table keyed by objects; each member gets what its language reads."""
    await three_messages(desk)
    java = desk.consumer("g1", "T1", client_id="java")
    cpp = desk.consumer("g1", "T1", client_id="cpp", language="CPP", port=50001)

    await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=-1))

    (notice,) = sent(cpp)
    assert loads(notice.body) == {
        "offsetTable": [
            {"brokerName": "b1", "offset": 3, "queueId": 0, "topic": "T1"},
            {"brokerName": "b1", "offset": 0, "queueId": 1, "topic": "T1"},
        ]
    }
    (notice,) = sent(java)
    assert notice.body == dumps({"offsetTable": {queue(0): 3, queue(1): 0}})


async def test_only_the_next_pulls_are_answered_with_a_server_side_reset(desk: Desk) -> None:
    """With `useServerSideResetOffset` members get no request, an offline group is no error, and the answer is the same."""
    await three_messages(desk)
    desk.broker.live_config.now = attrs.evolve(desk.broker.config, use_server_side_reset_offset=True)

    offline = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=-1))
    connection = desk.consumer("g1", "T1")
    online = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())

    assert (offline.code, online.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert online.body == dumps({"offsetTable": {queue(0): 0, queue(1): 0}})
    assert sent(connection) == []
    assert desk.broker.offsets.of("g1", "T1") == {0: 0, 1: 0}
    assert [desk.broker.offsets.resets.must_follow("g1", "T1", queue_id, connection) for queue_id in (0, 1)] == [True, True]


async def test_offline_group_is_moved_here_and_said_to_be_offline(desk: Desk) -> None:
    """Without members the offsets are stored and the answer is CONSUMER_NOT_ONLINE."""
    await three_messages(desk)

    answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=-1))

    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert desk.broker.offsets.of("g1", "T1") == {0: 3, 1: 0}


async def test_without_force_a_group_only_moves_back(desk: Desk) -> None:
    """An offset that is behind the target stays where it is."""
    await three_messages(desk)
    desk.broker.offsets.commit("g1", "T1", 0, 1)

    await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=-1, isForce="false"))
    assert desk.broker.offsets.query("g1", "T1", 0) == 1

    await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=0, isForce="false"))
    assert desk.broker.offsets.query("g1", "T1", 0) == 0


async def test_without_force_a_group_that_has_not_committed_yet_stays_where_its_members_are(desk: Desk) -> None:
    """They may be reading from the beginning: any moment of the past could be ahead of them, and messages be passed over."""
    await three_messages(desk)
    desk.consumer("g1", "T1")

    await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=-1, isForce="false"))

    assert desk.broker.offsets.of("g1", "T1") == {}


async def test_one_queue_is_moved_to_an_offset(desk: Desk) -> None:
    """With `queueId` and `offset` only that queue moves, and only to where it has messages."""
    await three_messages(desk)

    await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(queueId=0, offset=2))
    outside = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(queueId=0, offset=4))
    no_queue = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(queueId=2, offset=0))

    assert desk.broker.offsets.of("g1", "T1") == {0: 2}
    assert outside.code == no_queue.code == ResponseCode.INVALID_PARAMETER


async def test_unknown_names_are_not_reset(desk: Desk) -> None:
    """An unknown topic is 17, an unknown group 26, and neither leaves offsets behind."""
    topic = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(topic="nosuch"))
    group = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(group="nosuch"))

    assert topic.code == ResponseCode.TOPIC_NOT_EXIST
    assert group.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert desk.broker.offsets.table == {}


async def test_group_is_reset_on_every_queue_that_is_read(desk: Desk) -> None:
    """Queues that can no longer be written but still be read move too."""
    desk.broker.topics.put(TopicConfig("T1", 3, 1))

    await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())

    assert desk.broker.offsets.of("g1", "T1") == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("code", [(1 << 31) - 1, -(1 << 31)])
async def test_a_client_whose_answer_does_not_fit_is_no_reason_to_end(desk: Desk, code: int) -> None:
    """A code that no binary header can carry, or a body and remark that fill two frames: the administrator is refused."""
    client = Answering(desk.consumer("g1", "T1"), code=code, body=bytes(9 << 20))
    asked = {"consumerGroup": "g1", "clientId": "client-1"}
    request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, asked, opaque=7, wire=Wire.BINARY)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        desk.broker.dispatcher.handle(desk.connection, [request])
        answer = await next_sent(desk.connection)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not fit" in (answer.remark or "")
    assert desk.read(RequestCode.GET_BROKER_RUNTIME_INFO)


async def test_a_status_that_is_no_answer_is_left_out_unread(desk: Desk) -> None:
    """Megabytes of a client would hold up everybody while they are read."""
    client = Answering(desk.consumer("g1", "T1"), body=bytes(BODY_BYTES_MAX + 1))
    asked = {"topic": "T1", "group": "g1"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        with capture_logs() as logs:
            answer = await desk.ask_waiting(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)

    assert loads(answer.body)["consumerTable"] == {}
    assert [entry["event"] for entry in logs] == ["consumer_status_missing"]
