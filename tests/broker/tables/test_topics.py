"""The topic table."""

from __future__ import annotations

import random

import orjson
import pytest
import trio

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.entries import ENTRIES_BYTES_MAX, TableFull, encoded_entry
from ledgermq.broker.tables.topics import TEMPLATE_TOPIC, TopicConfig, TopicTable, topic_name_fault

CONFIG = BrokerConfig(broker_name="b1", broker_cluster_name="c1")


def table(**settings: object) -> TopicTable:
    return TopicTable.of(BrokerConfig(broker_name="b1", broker_cluster_name="c1", **settings), lambda: 1000)  # type: ignore[arg-type]


def test_system_topics_are_there_from_the_start() -> None:
    """A fresh table has RocketMQ's own topics with their queues and permissions."""
    topics = table().topics

    assert {name: (topic.read_queue_nums, topic.perm) for name, topic in topics.items()} == {
        "SELF_TEST_TOPIC": (1, 6),
        "BenchmarkTest": (1024, 6),
        "c1": (16, 7),
        "b1": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "c1_REPLY_TOPIC": (1, 6),
        "TBW102": (8, 7),
    }


def test_the_template_exists_exactly_while_topics_are_created_by_sending() -> None:
    """Switched off, TBW102 is gone, also when the file still has it."""
    stored = orjson.loads(table().wrapper())

    topics = TopicTable.of(BrokerConfig(auto_create_topic_enable=False), lambda: 0, stored)

    assert topics.get(TEMPLATE_TOPIC) is None
    assert topics.for_send("T1", TEMPLATE_TOPIC, 4) is None


def test_the_first_send_creates_a_topic_after_the_template() -> None:
    """The producer's wish bounds the queues, and the right to inherit is not inherited."""
    topics = table()

    created = topics.for_send("T1", TEMPLATE_TOPIC, 4)

    assert created is not None
    assert created == TopicConfig("T1", 4, 4, 6)
    topics.put(created)
    assert topics.for_send("T1", TEMPLATE_TOPIC, 99) is created
    assert topics.for_send("T2", TEMPLATE_TOPIC, 99) == TopicConfig("T2", 8, 8, 6)


@pytest.mark.parametrize("template", ["SELF_TEST_TOPIC", "nothing", ""])
def test_only_a_template_that_passes_its_permissions_on_creates(template: str) -> None:
    """An ordinary or unknown template creates nothing."""
    assert table().for_send("T1", template, 4) is None


@pytest.mark.parametrize(("name", "good"), [("T-1_%|", True), ("", False), ("a b", False), ("ü", False), ("x" * 128, False)])
def test_names_are_checked(name: str, good: bool) -> None:
    """A topic has 1 to 127 of RocketMQ's characters."""
    assert (topic_name_fault(name) is None) is good
    assert (table().for_send(name, TEMPLATE_TOPIC, 4) is not None) is good


def test_every_change_takes_a_version_and_notifies_observers() -> None:
    """Files and name servers follow by the names in the notifications; the version counts changes."""
    topics = table()
    notified: list[list[str]] = []
    topics.on_change.append(notified.append)
    before = topics.version.counter

    topics.put(TopicConfig("T1"), TopicConfig("T2"))
    topics.delete("T1")
    topics.delete("T1")

    assert notified == [["T1", "T2"], ["T1"]]
    assert topics.version.counter == before + 2


def test_the_table_is_encoded_as_it_is() -> None:
    """The cached encoding of topics follows every change."""
    topics = table()
    topics.put(TopicConfig("T1", 1, 1))
    assert orjson.loads(topics.encoded())["T1"]["readQueueNums"] == 1

    topics.put(TopicConfig("T1", 3, 3))
    topics.put(TopicConfig("T2"))
    topics.delete("T2")

    assert orjson.loads(topics.encoded()).keys() == topics.topics.keys()
    assert orjson.loads(topics.encoded(["T1", "gone"])) == {"T1": topics.topics["T1"].to_json()}


def test_a_stored_table_is_read_back() -> None:
    """What `topics.json` holds makes the same table, version included."""
    topics = table()
    topics.put(TopicConfig("T1", 2, 3, 4, "MULTI_TAG", 1, True, {"message.type": "FIFO"}))

    again = TopicTable.of(CONFIG, lambda: 5, orjson.loads(topics.wrapper()))

    assert again.topics == topics.topics
    assert again.version == topics.version


async def test_a_masters_table_is_read_in_slices_and_changes_at_once() -> None:
    """Meanwhile everybody sees the old one; observers are notified once of what has changed."""
    master, slave = table(), table()
    master.put(*(TopicConfig(f"T{number}", 4, 4) for number in range(3000)))
    slave.put(TopicConfig("T1", 1, 1), TopicConfig("gone"))
    notified: list[list[str]] = []
    slave.on_change.append(notified.append)

    seen: set[int] = set()
    async with trio.open_nursery() as nursery:

        async def look() -> None:
            while True:
                seen.add(len(slave.topics))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(look)
        await slave.load_in_slices(orjson.loads(master.wrapper()))
        nursery.cancel_scope.cancel()

    assert len(seen - {len(master.topics)}) == 1
    assert slave.topics == master.topics
    assert orjson.loads(slave.wrapper()) == orjson.loads(master.wrapper())
    (names,) = notified
    assert set(names) == {"gone", *(f"T{number}" for number in range(3000))}


def test_the_name_server_says_which_topics_are_ordered() -> None:
    """Topics named become ordered, the others are no longer."""
    topics = table()
    topics.put(TopicConfig("T1"), TopicConfig("T2", order=True))

    topics.mark_ordered(["T1", "elsewhere"])

    assert topics.topics["T1"].order
    assert not topics.topics["T2"].order


@pytest.mark.parametrize(("topic", "is_system"), [("b1", True), ("c1_REPLY_TOPIC", True), ("rmq_sys_x", True), ("b2", False)])
def test_own_topics_are_known(topic: str, is_system: bool) -> None:
    """Topics named after the broker and its cluster are the system's."""
    assert table().is_system(topic) is is_system


def test_topics_of_the_store_are_taken_up() -> None:
    """A topic with messages but without settings gets settings by which its messages can be read."""
    topics = table()
    topics.put(TopicConfig("T1", 1, 1))

    adopted = topics.adopt({"T1": 8, "T2": 2, "T3": 9, "%RETRY%g": 1, "SCHEDULE_TOPIC_XXXX": 3, "no topic": 1})

    assert adopted == ["%RETRY%g", "T2", "T3"]
    assert {name: topics.topics[name].read_queue_nums for name in ("T1", *adopted)} == {
        "T1": 1,
        "%RETRY%g": 1,
        "T2": 4,
        "T3": 9,
    }


def test_a_topic_that_no_registration_could_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there stay registered: a larger table would not fit a frame."""
    topics = table()
    before = topics.wrapper()
    monkeypatch.setattr(topics._entries, "size_max", topics._entries.size + 100)  # pyright: ignore[reportPrivateUsage]

    with pytest.raises(TableFull, match="the table of topics is full"):
        topics.check_room([topics.for_group("%RETRY%g", 1)])

    assert topics.wrapper() == before
    assert "%RETRY%g" not in topics.topics


def test_what_is_encoded_follows_every_change() -> None:
    """Puts, deletions, and whole tables of a master that differ from ours in a few topics."""
    rng, topics = random.Random(4), table()
    names = [f"T{number}" for number in range(12)]
    for _ in range(300):
        match rng.randrange(3):
            case 0:
                topics.put(*(TopicConfig(name, rng.randint(1, 4)) for name in rng.sample(names, 2)))
            case 1:
                topics.delete(rng.choice(names))
            case _:
                theirs = {
                    name: TopicConfig(name, rng.randint(1, 2)).to_json() for name in rng.sample(names, rng.randint(0, 12))
                }
                topics.load({"topicConfigTable": theirs, "dataVersion": None})

        assert orjson.loads(topics.encoded()) == {name: config.to_json() for name, config in topics.topics.items()}


def test_the_table_has_room_for_42_000_retry_topics() -> None:
    """Of groups with names of 20 characters."""
    topic = f"%RETRY%{'g' * 20}"
    size = len(encoded_entry(topic, TopicConfig(topic, 1, 1).to_json()))

    assert 42_000 <= ENTRIES_BYTES_MAX // size < 43_000
