"""Reading through brokers: the same as from files, over failures of brokers."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

from ledgermq.client.route import QueueRoute, TopicRoute
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.batches import Batches
from ledgermq.pipeline.broker_client import BrokerCatalog, BrokerClient
from ledgermq.pipeline.broker_reader import BrokerReader
from ledgermq.pipeline.catalog import batch_ranges
from ledgermq.pipeline.columns import COLUMNS, chosen
from ledgermq.pipeline.errors import BadOption, CorruptStore, DataLoss, PipelineError, Unavailable, UnknownTopic
from ledgermq.pipeline.link import Link, LinkLost
from ledgermq.pipeline.options import Content, Pulling, Servers, read_options
from ledgermq.pipeline.ranges import QueueRange
from ledgermq.pipeline.reading import TaskReader, open_catalog
from ledgermq.pipeline.segment_reader import Reader
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import Embedded, start_embedded
from ledgermq.world.address import Address

from .brokers import create_topic, delete_topic, send

QUEUE = MessageQueue("T", "a", 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Embedded, Path]]:
    root = tmp_path_factory.mktemp("store")
    with start_embedded(store=str(root)) as embedded:
        create_topic(embedded.namesrv, "T", 3)
        send(embedded.namesrv, "T", 3000)
        yield embedded, root / "0"


def rows(**options: str) -> list[dict[str, Any]]:
    given = read_options(options, streaming=False)
    catalog = open_catalog(given)
    reader = TaskReader(given, chosen(given.content))
    tasks = catalog.plan(batch_ranges(catalog, given), given)
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["queueId"], row["queueOffset"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minPartitions": "5", "pullMaxMessages": "7"},
        {"pullMaxBytes": "200"},
        {"subExpression": "paid"},
        {"subscribePattern": "T|U"},
        {"assign": '{"T":{"broker-a":[2]}}', "startingOffsets": '{"T":{"broker-a":{"2":17}}}'},
        {"endingOffsets": '{"T":{"broker-a":{"0":1,"1":0,"2":333}}}', "pullMaxMessages": "50"},
        {"columns": "queueId,queueOffset,bornHost,storeHost,physicalOffset,bodyCrc,offsetMsgId"},
    ],
)
def test_both_transports_give_the_same(store: tuple[Embedded, Path], options: dict[str, str]) -> None:
    """Whatever is asked for, and however it is divided."""
    embedded, root = store
    given = options if options.keys() & {"subscribePattern", "assign"} else {"subscribe": "T", **options}

    by_broker = rows(nameServer=embedded.namesrv, **given)
    by_files = rows(storePath=str(root), brokerName="broker-a", **given)

    assert by_broker == by_files
    assert by_broker


def test_times_mean_the_same_in_both(store: tuple[Embedded, Path]) -> None:
    """The first message that was stored then or later, in a millisecond with many messages, before and behind all of them."""
    embedded, root = store
    stored = sorted({round(row["storeTimestamp"].timestamp() * 1000) for row in rows(storePath=str(root), subscribe="T")})

    for moment in (stored[0] - 5, stored[0], stored[len(stored) // 2], stored[-1], stored[-1] + 1):
        for name in ("startingTimestamp", "endingTimestamp"):
            given = {"subscribe": "T", name: str(moment), "startingOffsetsByTimestampStrategy": "latest"}
            by_broker = rows(nameServer=embedded.namesrv, **given)
            assert [row["msgId"] for row in by_broker] == [row["msgId"] for row in rows(storePath=str(root), **given)]


def test_a_topic_that_nobody_has_is_named(store: tuple[Embedded, Path]) -> None:
    """With the ones that are like it."""
    create_topic(store[0].namesrv, "orders", 1)

    with pytest.raises(UnknownTopic, match=r"'order' does not exist.*did you mean 'orders'"):
        rows(nameServer=store[0].namesrv, subscribe="order")


def test_a_group_that_the_broker_does_not_know_is_named(store: tuple[Embedded, Path]) -> None:
    """Where groups are not made by themselves."""
    with start_embedded(settings={"autoCreateSubscriptionGroup": "false"}) as embedded:
        create_topic(embedded.namesrv, "T", 1)
        send(embedded.namesrv, "T", 3)

        assert len(rows(nameServer=embedded.namesrv, subscribe="T")) == 3
        with pytest.raises(BadOption, match=r"option 'group'.*'nobody'"):
            rows(nameServer=embedded.namesrv, subscribe="T", group="nobody")


def test_name_servers_that_do_not_answer_are_named() -> None:
    """With the time and the attempts."""
    with pytest.raises(Unavailable, match=r"'nameServer'.*within 0.2 s.*attempts \(127.0.0.1:1: Connection refused\)"):
        rows(nameServer="127.0.0.1:1", subscribe="T", failoverTimeoutMs="200")


def test_one_of_two_name_servers_is_enough(store: tuple[Embedded, Path]) -> None:
    """Whichever answers."""
    assert len(rows(nameServer=f"127.0.0.1:1;{store[0].namesrv}", subscribe="T")) == 3000


def test_a_topic_deleted_between_plan_and_read_is_an_error_or_a_warning(store: tuple[Embedded, Path]) -> None:
    """It is not waited for."""
    namesrv = store[0].namesrv
    create_topic(namesrv, "gone", 1)
    send(namesrv, "gone", 10)
    strict = read_options({"nameServer": namesrv, "subscribe": "gone"}, streaming=False)
    ranges = batch_ranges(open_catalog(strict), strict)
    delete_topic(namesrv, "gone")

    with pytest.raises(DataLoss, match="the topic has been deleted"):
        list(TaskReader(strict, chosen(strict.content)).read(tuple(ranges)))
    lenient = attrs.evolve(strict, fail_on_data_loss=False)
    assert list(TaskReader(lenient, chosen(lenient.content)).read(tuple(ranges))) == []


def test_a_broker_that_does_not_answer_is_asked_for_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan does not wait for it a hundred times; the read itself waits."""
    asked: list[Address] = []

    def link(_: BrokerClient, address: Address) -> NoReturn:
        asked.append(address)
        raise LinkLost(address, "no answer in time")

    monkeypatch.setattr(BrokerClient, "member", lambda *_: Address("gone", 1))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(BrokerClient, "link", link)

    size = BrokerCatalog(BrokerClient(read_servers("gone:1"))).range_bytes([QueueRange(QUEUE, 0, 9)] * 5)

    assert (size, len(asked)) == (5 * 9 * 1024, 1)


def test_a_slave_is_read_while_its_master_is_away() -> None:
    """The task goes on where it was."""
    with start_embedded(mode="ha", nodes=2) as embedded:
        create_topic(embedded.namesrv, "T", 2)
        send(embedded.namesrv, "T", 500)
        client = BrokerClient(read_servers(embedded.namesrv))
        client.route("T")
        master = client.routes.master("broker-a")
        assert master is not None
        client.avoid(master)
        reader = BrokerReader(client, Pulling(), Reader(Batches(COLUMNS), Content(), fail_on_data_loss=True, warn=print))

        batches = reader.read([QueueRange(MessageQueue("T", "broker-a", queue_id), 0, 250) for queue_id in (0, 1)])
        found = [row for batch in batches for row in batch.to_pylist()]

    assert len(found) == 500


def read_servers(namesrv: str, **options: str) -> Servers:
    place = read_options({"nameServer": namesrv, "subscribe": "T", **options}, streaming=False).place
    assert isinstance(place, Servers)
    return place


def record(offset: int, body: bytes = b"body") -> bytes:
    return encode_record(
        topic=b"T", queue_id=0, queue_offset=offset, body=body, properties=b"", flag=0, sys_flag=0,
        physical_offset=offset * 1000,
        born_timestamp=1, born_host=encode_host("127.0.0.1", 1), store_timestamp=2, store_host=encode_host("127.0.0.1", 2),
    )  # fmt: skip


@attrs.define(eq=False)
class Script:
    """A link whose answers a test decides: the next one for each request, by the offset that it asks for."""

    address: Address
    answer_to: Any
    asked: list[int] = attrs.field(factory=list[int])
    _next: int = 0
    _out: dict[int, tuple[int, int]] = attrs.field(factory=dict[int, tuple[int, int]])

    def submit(self, command: RemotingCommand, timeout_seconds: float) -> int:
        self._next += 1
        self._out[self._next] = (command.integer("queueOffset"), command.integer("maxMsgNums"))
        self.asked.append(command.integer("queueOffset"))
        return self._next

    def answer(self, opaque: int, timeout_seconds: float) -> RemotingCommand:
        found = self.answer_to(*self._out.pop(opaque))
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self._out.clear()


def found(first: int, count: int, *, following: int | None = None) -> RemotingCommand:
    body = b"".join(record(offset) for offset in range(first, first + count))
    return RemotingCommand(
        ResponseCode.SUCCESS, {"nextBeginOffset": str(following or first + count), "maxOffset": "1000", "minOffset": "0"}, body
    )


def coded(code: int, following: int = 0, least: int = 0) -> RemotingCommand:
    return RemotingCommand(
        code, {"nextBeginOffset": str(following), "minOffset": str(least), "maxOffset": "1000"}, remark="said so"
    )


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    answer_to: Any,
    *,
    end: int = 100,
    fail: bool = True,
    pulling: Pulling | None = None,
    content: Content | None = None,
    **options: Any,
) -> tuple[list[int], list[str], Script]:
    """Read offsets 0 to `end` of a scripted broker; returns the offsets that came, warnings, and the script."""
    script = Script(Address("broker", 1), answer_to)
    client = BrokerClient(read_servers("127.0.0.1:1", failoverTimeoutMs="150", **options))
    monkeypatch.setattr(BrokerReader, "_link", lambda *_: script)
    warnings: list[str] = []
    content = content or Content()
    reader = Reader(Batches(chosen(content)), content, fail_on_data_loss=fail, warn=warnings.append)
    batches = BrokerReader(client, pulling or Pulling(), reader).read([QueueRange(QUEUE, 0, end)])
    return [row["queueOffset"] for batch in batches for row in batch.to_pylist()], warnings, script


@pytest.mark.parametrize("cap", [1, 7, 32, 1000])
def test_answers_of_any_size_are_put_together(monkeypatch: pytest.MonkeyPatch, cap: int) -> None:
    """Several requests are out at once as soon as it is known how much an answer holds."""
    offsets, _, script = scripted(monkeypatch, lambda start, count: found(start, min(count, cap)))

    assert offsets == list(range(100))
    assert len(script.asked) == -(-100 // cap)


def test_answers_that_get_smaller_leave_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing of a window is asked for before what follows it."""
    offsets, _, _ = scripted(monkeypatch, lambda start, count: found(start, min(count, 10 if start < 30 else 3)))

    assert offsets == list(range(100))


def test_a_lost_connection_is_opened_again_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read twice."""
    losses = iter([False, False, True, False, True])

    def answer(start: int, count: int) -> RemotingCommand | Exception:
        return LinkLost(Address("broker", 1), "reset") if next(losses, False) else found(start, min(count, 9))

    offsets, _, _ = scripted(monkeypatch, answer)

    assert offsets == list(range(100))


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
def test_a_member_that_is_behind_or_busy_is_waited_for(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """It does not mean that messages are gone."""
    times = iter(range(3))

    def answer(start: int, count: int) -> RemotingCommand:
        return coded(code, start) if start >= 40 and next(times, None) is not None else found(start, min(count, 40))

    assert scripted(monkeypatch, answer)[0] == list(range(100))


def test_a_queue_that_stays_shorter_than_planned_is_an_error_or_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that a failover may take."""

    def answer(start: int, count: int) -> RemotingCommand:
        return coded(ResponseCode.PULL_OFFSET_MOVED, 40) if start >= 40 else found(start, min(count, 40))

    with pytest.raises(DataLoss, match="offsets 40 to 99 were planned, but broker:1 ends before offset 40"):
        scripted(monkeypatch, answer)
    offsets, warnings, _ = scripted(monkeypatch, answer, fail=False)

    assert offsets == list(range(40))
    assert len(warnings) == 1


def test_a_broker_that_stays_busy_does_not_count_as_the_end_of_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages would be skipped as lost, or the user would be told to accept that."""

    def answer(start: int, count: int) -> RemotingCommand:
        return coded(ResponseCode.SYSTEM_BUSY) if start >= 40 else found(start, min(count, 40))

    with pytest.raises(Unavailable, match=r"offset 40 could not be read.*broker:1 is busy: code 2, said so"):
        scripted(monkeypatch, answer, fail=False)


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED", "PERMISSIVE"])
def test_a_record_that_is_damaged_on_the_disk_of_a_broker_is_one_damaged_record(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The broker names it in its refusal; the messages after it can be read."""

    def answer(start: int, count: int) -> RemotingCommand:
        if start == 40:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="MESSAGE_DAMAGED: the next message is damaged")
        return found(start, min(count, 10, 40 - start if start < 40 else 10))

    content = Content(mode=mode)
    if mode == "FAILFAST":
        with pytest.raises(CorruptStore, match=r"broker:1, .*queue offset 40: MESSAGE_DAMAGED"):
            scripted(monkeypatch, answer, content=content)
        return
    offsets, warnings, _ = scripted(monkeypatch, answer, content=content)

    assert sorted(each for each in offsets if each is not None) == [*range(40), *range(41, 100)]
    assert len(offsets) == 99 + (mode == "PERMISSIVE")
    assert len(warnings) == 1


def test_messages_that_retention_took_are_an_error_or_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read goes on at the oldest message, never before it."""

    def answer(start: int, count: int) -> RemotingCommand:
        return coded(ResponseCode.PULL_OFFSET_MOVED, 70, 70) if start < 70 else found(start, min(count, 40))

    with pytest.raises(DataLoss, match="offsets 0 to 69 are gone, the oldest message has offset 70"):
        scripted(monkeypatch, answer)
    offsets, warnings, _ = scripted(monkeypatch, answer, fail=False)

    assert offsets == list(range(70, 100))
    assert len(warnings) == 1


def test_messages_that_retention_took_during_the_read_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests are out when retention goes beyond the first one's window; the second one's messages are gone too."""

    def answer(start: int, count: int) -> RemotingCommand:
        return coded(ResponseCode.PULL_OFFSET_MOVED, 35, 35) if 10 <= start < 35 else found(start, min(count, 10))

    offsets, warnings, _ = scripted(monkeypatch, answer, fail=False, pulling=Pulling(messages_max=10))

    assert offsets == [*range(10), *range(35, 100)]
    assert warnings == [f"{QUEUE}: offsets 10 to 34 are gone, the oldest message has offset 35; going on without them"]


def test_a_connection_that_ends_inside_a_window_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a window is requested after its first messages have been taken."""
    lost = iter([True])
    submit = Script.submit

    def failing_submit(self: Script, command: RemotingCommand, timeout_seconds: float) -> int:
        if command.integer("queueOffset") == 33 and next(lost, False):
            raise LinkLost(self.address, "reset")
        return submit(self, command, timeout_seconds)

    monkeypatch.setattr(Script, "submit", failing_submit)

    offsets, _, _ = scripted(monkeypatch, lambda start, count: found(start, min(count, 10 if start < 30 else 3)))

    assert offsets == list(range(100))


def test_messages_missing_at_the_end_of_a_range_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No later message shows them to be missing; the offset at which the broker continues does."""
    with pytest.raises(DataLoss, match="2 messages between offsets 0 and 9 are gone"):
        scripted(monkeypatch, lambda *_: found(0, 8, following=10), end=10)


def test_a_gap_in_an_answer_is_an_error_or_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that skips what it cannot read says nothing; offsets do."""

    def answer(start: int, count: int) -> RemotingCommand:
        return found(5, 5) if start == 0 else found(start, min(count, 40))

    with pytest.raises(DataLoss, match="5 messages between offsets 0 and 99 are gone"):
        scripted(monkeypatch, answer)
    assert scripted(monkeypatch, answer, fail=False)[0] == list(range(5, 100))


def test_gaps_inside_an_answer_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only at its begin."""

    def answer(start: int, count: int) -> RemotingCommand:
        if start > 0:
            return found(start, count)
        body = b"".join(record(offset) for offset in (0, 1, 4, 5))
        return RemotingCommand(ResponseCode.SUCCESS, {"nextBeginOffset": "6"}, body)

    with pytest.raises(DataLoss, match="2 messages between offsets 0 and 99 are gone"):
        scripted(monkeypatch, answer)


def test_other_refusals_end_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the broker said."""
    with pytest.raises(Unavailable, match="the broker refused offset 0: code 29, said so"):
        scripted(monkeypatch, lambda *_: coded(ResponseCode.INVALID_PARAMETER))


def test_an_answer_that_is_cut_short_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its records begin cannot be known."""
    with pytest.raises(PipelineError, match="no whole record"):
        scripted(monkeypatch, lambda start, count: RemotingCommand(0, {"nextBeginOffset": "9"}, record(0)[:-1]))


def test_a_server_that_never_answers_costs_the_time_that_was_set() -> None:
    """A link gives up, and is opened anew by the next request."""
    link = Link(Address("127.0.0.1", 1))
    began = time.monotonic()

    with pytest.raises(LinkLost, match="Connection refused"):
        link.call(RemotingCommand(11), 0.2)
    assert time.monotonic() - began < 5


@attrs.define(eq=False)
class ComingBack(BrokerClient):
    """Its broker registers again, with its topics, between two answers of the name server."""

    up: bool = False

    def route(self, topic: str) -> TopicRoute | None:
        return TopicRoute(topic, (), (QueueRoute("a", 1, 1, 6),)) if self.up else None

    def brokers(self) -> set[str]:
        self.up = True
        return {"a"}


def test_a_topic_of_a_broker_that_has_just_come_back_does_not_count_as_deleted() -> None:
    """Its topics were not in the first answer, because it was down then."""
    client = ComingBack(Servers((Address("127.0.0.1", 9876),)))

    assert not client.is_deleted("T", "a")
