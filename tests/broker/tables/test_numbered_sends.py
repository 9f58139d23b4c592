"""Repeated sends at one broker: each message is stored once, and each request is answered as the first was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from harness.simulate.group import replica_of
from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.tables import numbered_sends
from ledgermq.broker.tables.numbered_sends import NUMBERS_FILE
from ledgermq.broker.tables.persistence import LOG_OFFSET_KEY
from ledgermq.broker.tables.send_table import EXPIRY_MS
from ledgermq.message.batch import encode_batch
from ledgermq.message.json import loads
from ledgermq.message.properties import SEND_NUMBER, encode_properties
from ledgermq.message.send_number import SendNumber, number_property
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.store.config import SCHEDULE_TOPIC
from ledgermq.store.derived.dispatch import ROUND_RECORDS_MAX, Dispatcher
from ledgermq.testing.logs import capture_logs
from ledgermq.world.address import Address

from ..desk import BORN, Desk, Peer, open_desk, until
from ..modes.test_dledger import Group, scenario
from ..test_delay import turned_by_hand
from .test_tables import up

FIELDS = {"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": BORN, "h": 0, "i": "", "j": 0, "k": "false"}
PLACE = ("queueId", "queueOffset", "msgId")


def fields(sequence: int, *, epoch: int = 0, oldest: int = 0, **others: Any) -> dict[str, Any]:
    return {**FIELDS, "sendNumber": f"p.{epoch}.{sequence}.{oldest}", **others}


def send(peer: Peer, sequence: int, body: bytes = b"x", *, epoch: int = 0, oldest: int = 0, **others: Any) -> RemotingCommand:
    return peer.ask(RequestCode.SEND_MESSAGE_V2, fields(sequence, epoch=epoch, oldest=oldest, **others), body)


def send_batch(peer: Peer, sequence: int, *bodies: bytes, **others: Any) -> RemotingCommand:
    body = encode_batch((0, each, b"") for each in bodies)
    return peer.ask(RequestCode.SEND_BATCH_MESSAGE, {**fields(sequence, **others), "m": "true"}, body)


def place(answer: RemotingCommand) -> list[str]:
    assert answer.code == 0, answer.remark
    return [answer.ext[name] for name in PLACE]


async def bodies(desk: Desk) -> list[bytes]:
    await desk.settled()
    end = desk.broker.store.max_offset("T", 0)
    return [message.body for message in desk.peer().pulled("T")] if end else []


@pytest.mark.parametrize("derived", [False, True])
async def test_a_repeated_send_is_answered_as_the_first_and_stores_nothing(tmp_path: Path, *, derived: bool) -> None:
    """Whether the first is in the derived part of the log already, and whatever queue the repetition asks for."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        first = send(peer, 1)
        if derived:
            await desk.settled()

        again = send(desk.peer(), 1, e=2)

        assert place(again) == place(first)
        assert again.ext["repeated"] == "true"
        assert "repeated" not in first.ext
        assert await bodies(desk) == [b"x"]


async def test_a_send_that_is_repeated_in_one_receive_is_stored_once(tmp_path: Path) -> None:
    """The messages of a receive are put together; their order stays."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        requests = [
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2,
                {name: str(value) for name, value in fields(sequence).items()},
                str(sequence).encode(),
                opaque,
            )
            for opaque, sequence in enumerate([1, 2, 1, 3, 3, 2])
        ]

        desk.broker.dispatcher.handle(peer.connection, peer.connection.receive(b"".join(map(encode_frame, requests))))
        answers = [peer.answer(opaque) for opaque in range(6)]

        assert [answer and place(answer)[1] for answer in answers] == ["0", "1", "0", "2", "2", "1"]
        assert await bodies(desk) == [b"1", b"2", b"3"]


async def test_older_epochs_and_forgotten_sends_are_refused_by_name(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        send(peer, 1)
        send(peer, 5, oldest=4)
        await desk.settled()

        assert send(peer, 1).code == ResponseCode.SEND_FORGOTTEN
        send(peer, 1, epoch=1)
        await desk.settled()
        assert send(peer, 9).code == ResponseCode.PRODUCER_FENCED
        assert await bodies(desk) == [b"x"] * 3
        assert send(peer, 1, sendNumber="nonsense").code == ResponseCode.SYSTEM_ERROR


async def test_a_refused_send_may_be_repeated(tmp_path: Path) -> None:
    """What was not stored is not entered: neither a message that the log cannot hold nor one of a refusing broker."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        assert send(peer, 1, h=1 << 40).code == ResponseCode.MESSAGE_ILLEGAL
        desk.broker.store.writability.shut_down = True
        assert send(peer, 1).code == ResponseCode.SERVICE_NOT_AVAILABLE
        desk.broker.store.writability.shut_down = False

        assert send(peer, 1).code == 0
        desk.broker.store.writability.shut_down = True
        assert send(peer, 1).code == ResponseCode.SERVICE_NOT_AVAILABLE
        desk.broker.store.writability.shut_down = False

        assert await bodies(desk) == [b"x"]


async def test_a_property_that_was_copied_from_another_message_counts_for_nothing(tmp_path: Path) -> None:
    """Java's consumers copy all properties when they send a message back by themselves."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        send(peer, 1)
        copied = encode_properties({"TAGS": "a"}) + number_property(SendNumber("p", 0, 1, 0))

        peer.ask(RequestCode.SEND_MESSAGE_V2, {**FIELDS, "i": copied}, b"copy")
        peer.ask(RequestCode.SEND_BATCH_MESSAGE, {**FIELDS, "m": "true"}, encode_batch([(0, b"copy", copied.encode())]))
        await desk.settled()

        messages = desk.peer().pulled("T")
        assert [message.body for message in messages] == [b"x", b"copy", b"copy"]
        assert [message.properties.get(SEND_NUMBER) for message in messages] == ["p.0.1.0", None, None]


async def test_a_repeated_batch_is_stored_once_as_a_whole(tmp_path: Path) -> None:
    """Each message has a number of its own; the answer has all ids."""
    async with open_desk(tmp_path) as desk:
        first = send_batch(desk.peer(), 10, b"a", b"b", b"c")

        again = send_batch(desk.peer(), 10, b"a", b"b", b"c")

        assert place(again) == place(first)
        assert again.ext["queueOffsets"] == "0,1,2"
        assert await bodies(desk) == [b"a", b"b", b"c"]
        assert send(desk.peer(), 11).ext["queueOffset"] == "1"


async def test_of_a_batch_that_was_stored_in_part_the_rest_is_stored(tmp_path: Path) -> None:
    """A crash, or another leader, may keep the first messages of a batch only."""
    async with open_desk(tmp_path) as desk:
        send_batch(desk.peer(), 10, b"a", b"b")
        send(desk.peer(), 1, b"between")

        again = send_batch(desk.peer(), 10, b"a", b"b", b"c", b"d")

        assert again.ext["queueOffsets"] == "0,1,3,4"
        assert len(again.ext["msgId"].split(",")) == 4
        assert await bodies(desk) == [b"a", b"b", b"between", b"c", b"d"]


async def test_a_batch_with_a_refused_message_stores_nothing(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        send(desk.peer(), 12, oldest=11)
        await desk.settled()

        assert send_batch(desk.peer(), 10, b"a", b"b", b"c", oldest=10).code == ResponseCode.SEND_FORGOTTEN

        assert await bodies(desk) == [b"x"]


async def test_a_repetition_waits_until_the_first_is_safe(tmp_path: Path) -> None:
    """The broker syncs each message here, and the disk does not come to it before both requests have arrived."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        await desk.peer().ask_waiting(RequestCode.SEND_MESSAGE_V2, fields(1), b"first")
        peer = desk.peer()

        opaques = [peer.post(RequestCode.SEND_MESSAGE_V2, fields(2), b"x") for _ in range(2)]

        assert [peer.answer(opaque) for opaque in opaques] == [None, None]
        await until(lambda: peer.answer(opaques[1]))
        last = peer.answer(opaques[1])
        assert last is not None
        assert last.code == 0
        assert last.ext["repeated"] == "true"
        assert await bodies(desk) == [b"first", b"x"]


async def test_a_delivered_and_a_returned_message_are_no_repetitions(tmp_path: Path) -> None:
    """The broker copies a delayed message when it is due, and one that a consumer gives back; each copy counts as new."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        first = send(desk.peer(), 1, b"late", i=encode_properties({"DELAY": "1"}), e=2)
        again = send(desk.peer(), 1, b"late", i=encode_properties({"DELAY": "1"}), e=2)
        assert place(again) == place(first)
        assert place(again)[0] == "2"
        await desk.settled()
        assert len(desk.peer().pulled(SCHEDULE_TOPIC)) == 1

        clock.now_ms += 2000
        while desk.broker.delay.round() == 0:
            pass
        await desk.settled()
        (delivered,) = desk.peer().pulled("T", queueId=2)
        assert SEND_NUMBER not in delivered.properties

        send(desk.peer(), 2, b"failed")
        await desk.settled()
        failed = desk.peer().pulled("T")[0]
        desk.peer().heartbeat("g", "T")
        returned = desk.peer().ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": failed.physical_offset})
        assert returned.code == 0
        await desk.settled()
        (waiting,) = desk.peer().pulled(SCHEDULE_TOPIC, queueId=2)
        assert SEND_NUMBER not in waiting.properties


def _content(broker: Broker) -> Any:
    return broker.numbered.table.to_json()


@pytest.mark.parametrize("file", ["kept", "missing", "broken", "of a longer log"])
async def test_a_start_knows_what_is_in_the_log(tmp_path: Path, file: str) -> None:
    """From the table's file and the rest of the log, or from the log alone."""
    path = tmp_path / "config" / NUMBERS_FILE
    async with open_desk(tmp_path) as desk:
        first = place(send(desk.peer(), 1))
    async with open_desk(tmp_path) as desk:
        send(desk.peer(), 2)
        await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "q"})
        await desk.settled()
        before = _content(desk.broker)
        written = path.read_bytes()  # of the first run, so it lacks the second send and the fence
    if file == "kept":
        path.write_bytes(written)
    elif file == "missing":
        path.unlink()
        (tmp_path / "config" / f"{NUMBERS_FILE}.bak").unlink(missing_ok=True)
    elif file == "broken":
        path.write_text('{"logOffset": 5, "producers": 7}')
    else:
        path.write_text(
            '{"logOffset": 999999, "completeSince": 0, "producers": {"p": [0, -1, 5, [[3, 100, 90], [4, 999000, 90]]]}}'
        )

    async with open_desk(tmp_path) as desk:
        # Once the log has grown, the next start could not see that the file is that of another one.
        assert loads(path.read_bytes())[LOG_OFFSET_KEY] <= desk.broker.store.log.max_offset
        if file != "of a longer log":
            assert _content(desk.broker) == before
        assert place(send(desk.peer(), 1)) == first
        assert send(desk.peer(), 3).ext.get("repeated") is None
        assert send(desk.peer(), 4).ext.get("repeated") is None
        assert await bodies(desk) == [b"x"] * 4


async def test_a_table_that_is_made_anew_is_complete_only_since_its_last_forgotten_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a quiet log, the part that a start reads holds producers that expired before a later one came."""
    monkeypatch.setattr(numbered_sends, "REWRITE_BYTES", 1)
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world, mapped_file_size_commit_log=4096) as desk:
        for sequence in range(4):  # the last one is in the next file
            send(desk.peer(), 1, b"x" * 1000, sendNumber=f"first.0.{sequence}.0")
        clock.now_ms += 1000
        send(desk.peer(), 1, sendNumber="p.0.1.0")
        stored_ms = clock.now_ms
        clock.now_ms += EXPIRY_MS + 1
        send(desk.peer(), 1, sendNumber="new.0.1.0")
        await desk.settled()
    (tmp_path / "config" / NUMBERS_FILE).unlink()
    (tmp_path / "config" / f"{NUMBERS_FILE}.bak").unlink(missing_ok=True)

    async with open_desk(tmp_path, world, mapped_file_size_commit_log=4096) as desk:
        fenced = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p"})

    assert fenced.ext["known"] == "false"
    assert int(fenced.ext["completeSince"]) >= stored_ms


async def test_a_message_that_is_not_where_the_table_has_it_is_stored(tmp_path: Path) -> None:
    """A broker that answered from the table alone would acknowledge a message that is not there."""
    async with open_desk(tmp_path) as desk:
        send(desk.peer(), 1)
        await desk.settled()
        desk.broker.numbered.table.apply(SendNumber("p", 0, 2, 0), 0, 100, 1)

        answer = send(desk.peer(), 2, b"y")

        assert "repeated" not in answer.ext
        assert await bodies(desk) == [b"x", b"y"]


async def test_a_batch_beyond_the_last_sequence_is_refused_as_a_whole(tmp_path: Path) -> None:
    """Its last message would have a number that no reader takes for one."""
    async with open_desk(tmp_path) as desk:
        answers = [send_batch(desk.peer(), 10**15 - 1, b"a", b"b") for _ in range(2)]

        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 2
        assert await bodies(desk) == []


async def test_a_message_that_is_not_where_it_was_appended_is_stored(tmp_path: Path) -> None:
    """Nothing of it is derived, so the table has nothing to remove."""
    async with open_desk(tmp_path) as desk:
        desk.broker.numbered.putting["p", 0, 2] = 0
        send(desk.peer(), 1)

        assert place(send(desk.peer(), 2, b"y"))[1] == "1"
        assert place(send(desk.peer(), 2, b"y"))[1] == "1"
        assert await bodies(desk) == [b"x", b"y"]


async def test_a_fence_refuses_older_epochs_and_says_what_was_there(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        unknown = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p"})
        epoch = int(unknown.ext["epoch"])
        assert unknown.ext["known"] == "false"
        assert send(desk.peer(), 0, epoch=epoch).code == 0

        known = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p"})

        assert known.ext["known"] == "true"
        assert int(known.ext["epoch"]) > epoch
        assert send(desk.peer(), 1, epoch=epoch).code == ResponseCode.PRODUCER_FENCED
        assert send(desk.peer(), 0, epoch=int(known.ext["epoch"])).ext.get("repeated") is None
        wrong = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "a.b"})
        assert wrong.code != 0
        desk.broker.store.writability.shut_down = True
        refused = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p"})
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_epochs_grow_even_if_the_clock_goes_back_and_the_producer_was_forgotten(tmp_path: Path) -> None:
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        first = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p"})
        clock.now_ms -= 100_000
        desk.broker.numbered.table.clear(0)

        second = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p"})

        assert int(second.ext["epoch"]) > int(first.ext["epoch"])


async def test_heartbeats_say_that_repetitions_are_recognised(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        assert desk.peer().heartbeat("g").ext["sendNumbers"] == "true"


@pytest.mark.parametrize("producer_id", ["", "a.b", "x" * 65, "\u0661", "a\nb"])
async def test_a_fence_of_what_is_no_producer_is_refused(tmp_path: Path, producer_id: str) -> None:
    """The peer's mistake is answered with what a producer id is, and logged as no error of the broker."""
    async with open_desk(tmp_path) as desk:
        with capture_logs() as logs:
            answer = await desk.peer().ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": producer_id})

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "no producer was fenced" in (answer.remark or "")
    assert logs == []


def test_a_new_leader_takes_no_repetition_before_it_has_derived_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table of sends is behind the log until then, so it would store the message a second time."""
    held, derive = set[Dispatcher](), Dispatcher.round

    def derive_unless_held(self: Dispatcher, records_max: int = ROUND_RECORDS_MAX) -> bool:
        return self not in held and derive(self, records_max)

    monkeypatch.setattr(Dispatcher, "round", derive_unless_held)
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {name: str(value) for name, value in fields(1).items()}, b"x")

    async def story(group: Group) -> None:
        async def ask(node: Node) -> RemotingCommand:
            address = Address(node.config.broker_ip1, node.config.listen_port)
            async with connected(address, network=group.world("10.0.3.1").network) as channel:
                return await channel.call(request, 5)

        old = await group.master()
        heir = next(node for node in group.nodes if node is not old)
        assert heir.broker is not None
        held.add(heir.broker.store.dispatcher)
        first = await ask(old)
        replica = replica_of(heir.broker)
        replica_of(up(old)).transfer(replica.settings.self_id)
        with trio.fail_after(30):
            while not replica.is_leader:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)

        for _ in range(10):
            assert (await ask(heir)).code != ResponseCode.SUCCESS
            await trio.sleep(0.05)
        held.clear()
        with trio.fail_after(30):
            while heir not in group.masters():  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)

        assert place(await ask(heir)) == place(first)
        assert heir.broker.store.max_offset("T", 0) == 1

    scenario(story)
