"""Topics and queues that change while a read is planned."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from ledgermq.client.route import BrokerRoute, QueueRoute, TopicRoute
from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.broker_client import merged
from ledgermq.pipeline.catalog import StoreCatalog, batch_ranges, subscribed
from ledgermq.pipeline.errors import DataLoss
from ledgermq.pipeline.options import ReadOptions, Stores, read_options
from ledgermq.pipeline.ranges import QueueRange
from ledgermq.pipeline.reading import open_catalog
from ledgermq.testing.embedded import Embedded, start_embedded
from ledgermq.world.address import Address

from .brokers import create_topic, send
from .stores import StoreFiles, interleaved


class Deleting(StoreCatalog):
    """A catalog whose topic `U` is deleted as soon as its queues have been listed."""

    def queues(self, topics: Iterable[str]) -> dict[str, list[MessageQueue]]:
        found = super().queues(topics)
        shutil.rmtree(Path(self.place.paths[0]) / "consumequeue" / "U")
        return found


@pytest.fixture
def store(tmp_path: Path) -> dict[str, str]:
    files = StoreFiles(tmp_path / "store")
    files.append([*interleaved(9), *interleaved(9, topic="U")])
    return {"storePath": str(files.root), "subscribe": "T,U"}


def planned(store: dict[str, str], **options: str) -> list[QueueRange]:
    read: ReadOptions = read_options({**store, **options}, streaming=False)
    assert isinstance(read.place, Stores)
    return batch_ranges(Deleting(read.place), read)


def test_a_queue_that_is_deleted_while_a_batch_is_planned_is_named(store: dict[str, str]) -> None:
    """It is neither left out silently nor a failure without a name."""
    with pytest.raises(DataLoss, match=r"^U@store:0: the queue was deleted while the read was planned\."):
        planned(store)


def test_a_batch_may_go_on_without_a_queue_that_was_deleted(store: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """With one warning for each queue; the other topic is read completely."""
    ranges = planned(store, failOnDataLoss="false")

    assert ranges == [QueueRange(MessageQueue("T", "store", queue_id), 0, 3) for queue_id in range(3)]
    assert capsys.readouterr().err.count("the queue was deleted while the read was planned; going on without them") == 3


@pytest.fixture(scope="module")
def halved() -> Generator[Embedded]:
    """A topic on two brokers, of which one is down, so that name servers do not list its queues."""
    with start_embedded(nodes=2) as embedded:
        create_topic(embedded.namesrv, "T", 2)
        send(embedded.namesrv, "T", 40)
        embedded.stop(embedded.addresses[1])
        yield embedded


def queues_of(ranges: Iterable[QueueRange]) -> set[str]:
    return {str(each.queue) for each in ranges}


HERE, THERE = {"T@broker-a:0", "T@broker-a:1"}, MessageQueue("T", "broker-b", 1)


@pytest.mark.parametrize(
    ("named", "read_before", "lost"),
    [
        ({"subscribe": "T", "brokerName": "broker-a,broker-b"}, {}, "broker broker-b: no name server knows it"),
        ({"assign": '{"T":{"broker-a":[0,1],"broker-b":[1]}}'}, {}, "broker broker-b: no name server knows it"),
        (
            {"subscribe": "T", "startingOffsets": '{"T":{"broker-b":{"1":3}}}'},
            {},
            "broker broker-b: no name server knows it",
        ),
        ({"subscribePattern": "T"}, {THERE: 7}, "broker broker-b: no name server knows it"),
    ],
)
def test_a_batch_without_a_broker_that_it_expects_is_incomplete(
    halved: Embedded, capsys: pytest.CaptureFixture[str], named: dict[str, str], read_before: dict[MessageQueue, int], lost: str
) -> None:
    """Whether the user has named the broker or one of its queues, or an earlier read has found it."""
    given = {"nameServer": halved.namesrv, "failoverTimeoutMs": "0", **named}
    strict, lenient = (read_options({**given, "failOnDataLoss": each}, streaming=False) for each in ("true", "false"))

    with pytest.raises(DataLoss, match=f"^{lost}"):
        batch_ranges(open_catalog(strict), strict, read_before)
    found = batch_ranges(open_catalog(lenient), lenient, read_before)

    assert queues_of(found) == HERE
    assert f"{lost}, so its messages cannot be read; going on without them" in capsys.readouterr().err


def test_a_broker_that_another_name_server_knows_is_read(halved: Embedded) -> None:
    """A name server that was started just now knows only the brokers that have registered since."""
    with start_embedded() as other:
        create_topic(other.namesrv, "T", 3)
        options = read_options({"nameServer": f"{halved.namesrv};{other.namesrv}", "subscribe": "T"}, streaming=False)

        found = subscribed(open_catalog(options), options.subscription)

    assert {str(queue) for queue in found} == HERE  # both know a broker of this name; the first one counts


def test_routes_are_merged_by_broker() -> None:
    """Addresses that only one name server knows are used too."""
    one = TopicRoute(
        "T", (BrokerRoute("a", "c", {0: Address("a0", 1)}),), (QueueRoute("a", 4, 4, 6),), order_configuration="a:4;b:4"
    )
    two = TopicRoute(
        "T",
        (BrokerRoute("a", "c", {1: Address("a1", 1)}), BrokerRoute("b", "c", {0: Address("b0", 1)})),
        (QueueRoute("a", 2, 2, 6), QueueRoute("b", 4, 4, 6)),
    )

    route = merged([one, two])

    assert {broker.name: dict(broker.addresses) for broker in route.brokers} == {
        "a": {0: Address("a0", 1), 1: Address("a1", 1)},
        "b": {0: Address("b0", 1)},
    }
    assert {queue.broker_name: queue.read_queues for queue in route.queues} == {"a": 4, "b": 4}
    assert route.order_configuration == "a:4;b:4"
