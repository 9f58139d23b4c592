"""Pulls: checks, answers, and waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from ledgermq.broker.requests.pull import WOKEN_PER_TURN_MAX
from ledgermq.broker.role import Role
from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.received import split_records
from ledgermq.message.errors import CorruptRecord
from ledgermq.message.layout import decode_records
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import Wire
from ledgermq.testing.logs import capture_logs
from ledgermq.world.real import real_world

from ...turns import counted
from ..desk import Desk, Peer, classic_node, open_desk, until

Code = ResponseCode
HOLD: dict[str, Any] = {"sysFlag": 4 | 2}


def answer_of(peer: Peer, opaque: int) -> tuple[int, int]:
    answer = peer.answer(opaque)
    assert answer is not None
    return answer.code, int(answer.ext["nextBeginOffset"])


async def filled(desk: Desk, count: int = 3, **properties: Any) -> None:
    """Topic T1 with `count` messages in queue 0."""
    if desk.broker.topics.get("T1") is None:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
    for number in range(count):
        desk.put("T1", b"m%d" % number, **properties)
    await desk.settled()


async def test_messages_come_as_they_are_stored(tmp_path: Path) -> None:
    """A pull brings records from the asked offset on, and where to go on."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)

        answer = desk.peer().ask(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": "g",
                "topic": "T1",
                "queueId": 0,
                "queueOffset": 1,
                "maxMsgNums": 32,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
            },
        )

        assert (answer.code, answer.remark) == (Code.SUCCESS, "FOUND")
        assert answer.ext == {"nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3", "suggestWhichBrokerId": "0"}
        assert [message.body for message in decode_records(answer.body)] == [b"m1", b"m2"]


async def test_a_binary_pull_is_answered_in_binary(tmp_path: Path) -> None:
    """The answer's header is encoded as the request's."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        pull = desk.broker.pulls
        handle = pull.handle

        def handle_as_binary(connection: Any, request: Any) -> None:
            request.wire = Wire.BINARY
            handle(connection, request)

        desk.broker.dispatcher.register(RequestCode.PULL_MESSAGE, handle_as_binary)
        answer = peer.answer(peer.pull("T1"))

        assert answer is not None
        assert answer.wire is Wire.BINARY
        assert answer.ext["nextBeginOffset"] == "3"
        assert len(list(decode_records(answer.body))) == 3


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, (Code.SUCCESS, 3)),
        (3, (Code.PULL_NOT_FOUND, 3)),
        (4, (Code.PULL_OFFSET_MOVED, 3)),
        (99, (Code.PULL_OFFSET_MOVED, 3)),
    ],
)
async def test_an_offset_outside_the_queue_is_corrected(tmp_path: Path, offset: int, expected: tuple[int, int]) -> None:
    """Caught up is 19, beyond the end is 21 with the end."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()

        assert answer_of(peer, peer.pull("T1", offset)) == expected


@pytest.mark.parametrize(("offset", "code"), [(0, Code.PULL_NOT_FOUND), (7, Code.PULL_OFFSET_MOVED)])
async def test_a_queue_never_written_begins_at_0(tmp_path: Path, offset: int, code: int) -> None:
    """Offset 0 waits for the first message, any other is wrong."""
    async with open_desk(tmp_path) as desk:
        await filled(desk, 0)
        peer = desk.peer()

        assert answer_of(peer, peer.pull("T1", offset)) == (code, 0)


async def test_a_filter_that_matches_nothing_makes_progress(tmp_path: Path) -> None:
    """Scanned but not matched is 20, at once and behind what was scanned, even where a pull may wait."""
    async with open_desk(tmp_path) as desk:
        await filled(desk, TAGS="TagA")
        peer = desk.peer()

        assert answer_of(peer, peer.pull("T1", subscription="TagB", **HOLD)) == (Code.PULL_RETRY_IMMEDIATELY, 3)
        assert answer_of(peer, peer.pull("T1", subscription="TagB || TagA", **HOLD)) == (Code.SUCCESS, 3)


Settings = dict[str, Any]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "T9"}, Code.TOPIC_NOT_EXIST),
        ({"topic": "W"}, Code.NO_PERMISSION),
        ({"group": "closed"}, Code.NO_PERMISSION),
        ({"group": "a b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"group": "barred"}, Code.NO_PERMISSION),
        ({"queueId": 2}, Code.INVALID_PARAMETER),
        ({"queueId": -1}, Code.INVALID_PARAMETER),
        ({"queueId": "x"}, Code.SYSTEM_ERROR),
        ({"subscription": "||"}, Code.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "SQL92", "subscription": "a>1"}, Code.SYSTEM_ERROR),
        ({"sysFlag": 0}, Code.SUBSCRIPTION_NOT_EXIST),
        ({"sysFlag": 0, "group": "live", "topic": "T2"}, Code.SUBSCRIPTION_NOT_EXIST),
        ({"sysFlag": 0, "group": "live", "subVersion": 6}, Code.SUBSCRIPTION_NOT_LATEST),
        ({"sysFlag": 0, "group": "live", "subVersion": 5}, Code.SUCCESS),
        ({"sysFlag": 0, "group": "quiet"}, Code.NO_PERMISSION),
    ],
)
async def test_a_pull_that_is_refused_gets_the_reason(tmp_path: Path, fields: Settings, code: int) -> None:
    """Each check has its code, and a remark for people."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        topics, groups = desk.broker.topics, desk.broker.groups
        topics.put(TopicConfig("W", perm=2), TopicConfig("T2"))
        groups.put(GroupConfig("closed", consume_enable=False), GroupConfig("quiet", consume_broadcast_enable=False))
        groups.put_forbidden("barred", {"T1": 1})
        peer = desk.peer()
        peer.heartbeat("live", "T1")
        peer.heartbeat("quiet", "T1", messageModel="BROADCASTING")

        answer = peer.answer(peer.pull(offset=0, **{"topic": "T1", **fields}))

        assert answer is not None
        assert answer.code == code
        assert answer.remark


async def test_without_auto_creation_a_strange_group_is_refused(tmp_path: Path) -> None:
    """26 exactly when groups must be made by hand."""
    async with open_desk(tmp_path, auto_create_subscription_group=False) as desk:
        await filled(desk)
        peer = desk.peer()

        answer = peer.answer(peer.pull("T1"))

        assert answer is not None
        assert answer.code == Code.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_held_pull_is_answered_by_the_message_it_waits_for(tmp_path: Path) -> None:
    """Nothing is answered before, and the message itself comes, not word of it."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaque = peer.pull("T1", 3, **HOLD)
        assert peer.answer(opaque) is None
        assert len(desk.broker.pulls.holds) == 1

        desk.put("T1", b"news")
        await desk.settled()

        answer = peer.answer(opaque)
        assert answer is not None
        assert [message.body for message in decode_records(answer.body)] == [b"news"]
        assert len(desk.broker.pulls.holds) == 0


async def test_a_held_pull_sleeps_through_other_tags(tmp_path: Path) -> None:
    """It is woken by its own tag, and its answer says to go on behind what was scanned meanwhile."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaque = peer.pull("T1", 3, subscription="TagB", **HOLD)

        desk.put("T1", TAGS="TagA")
        await desk.settled()
        assert peer.answer(opaque) is None
        desk.put("T1", TAGS="TagB")
        await desk.settled()

        assert answer_of(peer, opaque) == (Code.SUCCESS, 5)


async def test_a_held_pull_is_answered_when_its_time_is_up(tmp_path: Path) -> None:
    """19 at the deadline, not before; the offset stays."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaque = peer.pull("T1", 3, **HOLD)
        now = desk.broker.world.clock.monotonic()

        desk.broker.pulls.sweep(now + 14)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.answer(opaque) is None
        desk.broker.pulls.sweep(now + 20)
        await until(lambda: peer.answer(opaque))

        assert answer_of(peer, opaque) == (Code.PULL_NOT_FOUND, 3)


async def test_a_closed_connection_is_not_answered(tmp_path: Path) -> None:
    """Its held pulls are forgotten."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        peer.pull("T1", 3, **HOLD)

        peer.close()

        assert len(desk.broker.pulls.holds) == 0


async def test_a_deleted_topic_lets_its_pulls_go(tmp_path: Path) -> None:
    """Whoever waits on a topic that is deleted is answered, and learns by the next pull."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaque = peer.pull("T1", 3, **HOLD)

        assert (await peer.ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})).code == Code.SUCCESS

        await until(lambda: peer.answer(opaque))
        gone = peer.answer(peer.pull("T1", 3, **HOLD))
        assert gone is not None
        assert gone.code == Code.TOPIC_NOT_EXIST


async def test_too_many_held_pulls_are_refused_by_a_code_that_clients_know(tmp_path: Path) -> None:
    """A connection beyond its bound is answered SYSTEM_BUSY and tries again later."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        desk.broker.pulls.holds.per_owner_max = 2
        peer = desk.peer()
        opaques = [peer.pull("T1", 3, **HOLD) for _ in range(3)]

        answers = [peer.answer(opaque) for opaque in opaques]

        assert answers[:2] == [None, None]
        assert answers[2] is not None
        assert answers[2].code == Code.SYSTEM_BUSY


async def test_pulls_that_ask_whether_this_broker_leads_are_bounded_and_answered_if_that_fails(tmp_path: Path) -> None:
    """A further one is answered SYSTEM_BUSY, and a failure of the question harms nobody."""
    go_on = trio.Event()

    async def fail() -> bool:
        await go_on.wait()
        raise ZeroDivisionError("a bug")

    async with open_desk(tmp_path) as desk:
        await filled(desk)
        desk.broker.pulls.leads, desk.broker.dispatcher.waiting_max = fail, 1
        peer = desk.peer()
        first, second = peer.pull("T1", 9), peer.pull("T1", 9)

        refused = peer.answer(second)
        go_on.set()
        await until(lambda: peer.answer(first))

        assert refused is not None
        assert refused.code == Code.SYSTEM_BUSY
        assert getattr(peer.answer(first), "remark", None) == "ZeroDivisionError: a bug"
        assert len(peer.pulled("T1")) == 3


async def test_many_readers_of_a_queue_are_all_woken(tmp_path: Path) -> None:
    """More than one turn's worth of waiting pulls is answered over several turns, none forgotten."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaques = [peer.pull("T1", 3, group=f"g{number}", **HOLD) for number in range(300)]

        desk.put("T1")
        await desk.settled()
        with trio.fail_after(60):
            while any(peer.answer(opaque) is None for opaque in opaques):
                await trio.lowlevel.checkpoint()


async def test_pulls_that_are_due_together_are_answered_in_several_turns(tmp_path: Path) -> None:
    """Each turn answers a part of them, also if the next second begins before all are answered, and each pull once."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaques = [peer.pull("T1", 3, **HOLD) for _ in range(1000)]
        pulls, now = desk.broker.pulls, desk.broker.world.clock.monotonic()

        with counted(lambda: 1000 - len(pulls.holds)) as turns:
            pulls.sweep(now + 20)
            await trio.lowlevel.checkpoint()
            pulls.sweep(now + 21)
            await until(lambda: not len(pulls.holds))

        assert turns.most <= WOKEN_PER_TURN_MAX
        assert [answer_of(peer, opaque) for opaque in opaques] == [(Code.PULL_NOT_FOUND, 3)] * 1000


async def test_many_pulls_that_want_other_tags_are_compared_with_messages_in_several_turns(tmp_path: Path) -> None:
    """Messages that come during the comparison are compared too: every pull gets its own, whenever it comes."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        unwanted = [peer.pull("T1", 3, subscription="TagX", **HOLD) for _ in range(WOKEN_PER_TURN_MAX)]
        wanting = [peer.pull("T1", 3, subscription=f"Tag{n}", **HOLD) for n in range(200)]

        for n in range(200):
            desk.put("T1", TAGS=f"Tag{n}")
            if n % 10 == 0:
                await trio.lowlevel.checkpoint()

        await until(lambda: all(peer.answer(opaque) for opaque in wanting))
        assert len(desk.broker.pulls.holds) == len(unwanted)
        assert not any(peer.answer(opaque) for opaque in unwanted)
        assert not desk.broker.pulls._scanned  # pyright: ignore[reportPrivateUsage]


async def test_messages_that_come_before_held_pulls_are_compared_wake_their_pulls_too(tmp_path: Path) -> None:
    """Each of them wakes more pulls than one turn answers, and the comparison has only begun when the last one comes."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer, store, holds = desk.peer(), desk.broker.store, desk.broker.pulls.holds
        tags = ["TagA"] * 2 * WOKEN_PER_TURN_MAX + ["TagB"] * 2 * WOKEN_PER_TURN_MAX + ["TagC"]
        opaques = [peer.pull("T1", 3, subscription=tag, **HOLD, suspendTimeoutMillis=600_000) for tag in tags]

        with capture_logs() as events:
            for tag in ("TagA", "TagB"):
                desk.put("T1", TAGS=tag)
                store.catch_up()
            while len(holds) == len(opaques):
                await trio.lowlevel.checkpoint()
            desk.put("T1", TAGS="TagC")
            store.catch_up()
            await until(lambda: all(peer.answer(opaque) for opaque in opaques))
            await trio.testing.wait_all_tasks_blocked()

        assert "task_failed" not in [event["event"] for event in events]


async def test_pulls_of_topics_that_are_deleted_together_are_looked_for_together(tmp_path: Path) -> None:
    """The pulls of the last one are found as well, although it is deleted while those of the first are looked for."""
    async with open_desk(tmp_path) as desk:
        topics = [f"T{n}" for n in range(1, 40)]
        desk.broker.topics.put(*(TopicConfig(topic, 1, 1) for topic in (*topics, "Kept")))
        peer = desk.peer()
        held = [peer.pull(topic, **HOLD) for topic in topics for _ in range(100)]
        kept = peer.pull("Kept", **HOLD)

        for topic in topics:
            desk.broker.topics.delete(topic)
            await trio.lowlevel.checkpoint()
        await until(lambda: all(peer.answer(opaque) for opaque in held))

        assert peer.answer(kept) is None


async def test_a_pull_commits_what_it_carries(tmp_path: Path) -> None:
    """The commit flag stores the offset at the first look; without it nothing is stored."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()

        peer.pull("T1", commitOffset=9)
        assert desk.broker.offsets.query("g", "T1", 0) is None
        peer.pull("T1", commitOffset=2, sysFlag=4 | 1)

        assert desk.broker.offsets.query("g", "T1", 0) == 2


async def test_a_slave_does_not_know_better_than_its_master(tmp_path: Path) -> None:
    """A slave may be behind: it neither moves an offset nor commits one."""
    async with open_desk(tmp_path, broker_role="SLAVE", broker_id=1) as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        peer = desk.peer()

        answer = peer.answer(peer.pull("T1", 50, sysFlag=4 | 1, commitOffset=50))

        assert answer is not None
        assert answer.code == Code.PULL_RETRY_IMMEDIATELY
        assert answer.ext["suggestWhichBrokerId"] == "0"
        assert answer.ext["nextBeginOffset"] == "50"
        assert desk.broker.offsets.query("g", "T1", 0) is None


async def test_a_slave_without_its_master_holds_pulls_of_what_only_the_master_had(tmp_path: Path) -> None:
    """RocketMQ's clients would repeat it without end if asked to try again; they get the messages once these have come."""
    async with open_desk(tmp_path, broker_role="SLAVE", broker_id=1, ha_protocol="rocketmq") as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        peer = desk.peer()
        opaque = peer.pull("T1", 3, **HOLD)
        assert peer.answer(opaque) is None

        desk.broker.pulls.sweep(desk.broker.world.clock.monotonic() + 60)
        await until(lambda: peer.answer(opaque))
        assert answer_of(peer, opaque) == (Code.PULL_RETRY_IMMEDIATELY, 3)

        opaque = peer.pull("T1", 3, **HOLD)
        desk.broker.store.writability.role_refusal = None  # a master's put stands for what comes from one
        for _ in range(4):
            desk.put("T1")
        await desk.settled()
        assert answer_of(peer, opaque) == (Code.SUCCESS, 4)
        desk.broker.store.writability.role_refusal = "the broker is a slave"

        client = classic_node(desk.broker).client
        assert client is not None
        client.joined_at = 0.0
        opaque = peer.pull("T1", 50, **HOLD)
        assert answer_of(peer, opaque) == (Code.PULL_RETRY_IMMEDIATELY, 50), "the master has it"


async def test_a_broker_that_becomes_master_moves_no_offset_back_before_it_has_all(tmp_path: Path) -> None:
    """What the last master has shown may not be derived yet; a group that is sent back would commit that, and read it again."""
    async with open_desk(tmp_path) as desk:
        await filled(desk, 1)
        peer, role = desk.peer(), desk.broker.role
        master = role.state
        role.state = attrs.evolve(master, role=Role.READ_ONLY, reason="it is becoming master")

        assert answer_of(peer, peer.pull("T1", 3)) == (Code.PULL_RETRY_IMMEDIATELY, 3)
        held = peer.pull("T1", 3, **HOLD)
        assert peer.answer(held) is None

        role.state = master
        desk.broker.pulls.look_again()
        await until(lambda: peer.answer(held))
        assert answer_of(peer, held) == (Code.PULL_OFFSET_MOVED, 1)


async def test_a_slave_that_is_configured_so_corrects_offsets(tmp_path: Path) -> None:
    """With `offsetCheckInSlave` it answers as a master would."""
    async with open_desk(tmp_path, broker_role="SLAVE", broker_id=1, offset_check_in_slave=True) as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        peer = desk.peer()

        assert answer_of(peer, peer.pull("T1", 50)) == (Code.PULL_OFFSET_MOVED, 0)


@pytest.mark.parametrize(("slave_read", "hint"), [(True, "3"), (False, "0")])
async def test_a_reader_far_behind_is_sent_to_a_slave(tmp_path: Path, slave_read: bool, hint: str) -> None:
    """Only with `slaveReadEnable` is a slave suggested, the group's choice of one; the machine's memory says how far is far."""
    world = attrs.evolve(real_world(), memory_bytes=10)
    async with open_desk(tmp_path, world, slave_read_enable=slave_read) as desk:
        await filled(desk)
        desk.broker.groups.put(GroupConfig("g", which_broker_when_consume_slowly=3))
        peer = desk.peer()

        answer = peer.answer(peer.pull("T1", maxMsgNums=1))

        assert answer is not None
        assert answer.ext["suggestWhichBrokerId"] == hint


@pytest.mark.parametrize(("slave_read", "hint"), [(True, "2"), (False, "0")])
async def test_a_reader_close_behind_goes_where_its_group_belongs(tmp_path: Path, slave_read: bool, hint: str) -> None:
    """The master, unless the group's configuration names another member; so a reader that has caught up comes back."""
    async with open_desk(tmp_path, slave_read_enable=slave_read) as desk:
        await filled(desk)
        desk.broker.groups.put(GroupConfig("g", broker_id=2, which_broker_when_consume_slowly=3))
        peer = desk.peer()

        answer = peer.answer(peer.pull("T1"))

        assert answer is not None
        assert answer.ext["suggestWhichBrokerId"] == hint


async def test_each_client_of_a_group_that_was_reset_continues_at_its_offset_once(tmp_path: Path) -> None:
    """During a rebalance a queue has two readers: the next one has to continue there although the previous one has done so.

    Neither of them commits what it read before the reset; after following it, each one pulls and commits where it wants.
    """
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        previous, following = desk.peer(), desk.peer()
        desk.broker.offsets.reset("g", "T1", 0, 1)

        assert answer_of(previous, previous.pull("T1", 3, sysFlag=4 | 1, commitOffset=3)) == (Code.PULL_OFFSET_MOVED, 1)
        assert answer_of(previous, previous.pull("T1", 1)) == (Code.SUCCESS, 3)
        assert answer_of(following, following.pull("T1", 2, sysFlag=4 | 1, commitOffset=2)) == (Code.PULL_OFFSET_MOVED, 1)
        assert desk.broker.offsets.query("g", "T1", 0) == 1
        assert answer_of(following, following.pull("T1", 1)) == (Code.SUCCESS, 3)
        assert answer_of(following, following.pull("T1", 2, sysFlag=4 | 1, commitOffset=2)) == (Code.SUCCESS, 3)
        assert desk.broker.offsets.query("g", "T1", 0) == 2


async def test_a_reset_reaches_pulls_that_are_held(tmp_path: Path) -> None:
    """Those of the group alone: another one's pull goes on waiting."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        held, other = peer.pull("T1", 3, **HOLD), peer.pull("T1", 3, consumerGroup="other", **HOLD)

        desk.broker.offsets.reset("g", "T1", 0, 0)
        desk.broker.pulls.group_reset("g", "T1")
        await until(lambda: peer.answer(held))

        assert answer_of(peer, held) == (Code.PULL_OFFSET_MOVED, 0)
        assert peer.answer(other) is None


async def test_a_pull_that_does_not_wait_finds_what_was_acknowledged_just_before(tmp_path: Path) -> None:
    """Deriving gathers for some milliseconds; a pull whose answer would be that there is nothing does not wait for it."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        peer.send("T1", b"fresh")

        assert [message.body for message in peer.pulled("T1", 3)] == [b"fresh"]


async def test_a_pull_that_does_not_wait_names_an_end_behind_what_was_acknowledged_just_before(tmp_path: Path) -> None:
    """A client that pulls until it has reached the end of the answer finds all messages that were acknowledged."""
    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        peer.send("T1", b"fresh")

        answer = peer.answer(peer.pull("T1"))

        assert answer is not None
        assert answer.ext["maxOffset"] == "4"
        assert len(list(decode_records(answer.body))) == 4


@pytest.mark.parametrize("damage", [(0, b"\x7f\xff\xff\xff"), (4, bytes(4)), (0, bytes(90))], ids=["size", "magic", "zeros"])
async def test_a_record_that_was_damaged_at_rest_is_noticed_by_who_pulls_it(tmp_path: Path, damage: tuple[int, bytes]) -> None:
    """The log's bytes are sent as they are. Our client takes nothing of such an answer, and stays where it is."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        places = [desk.put("T1", b"hello") for _ in range(3)]
        await desk.settled()
        (segment,) = (tmp_path / "commitlog").iterdir()
        at, content = damage
        with segment.open("r+b") as file:
            file.seek(places[1] + at)
            file.write(content)

        peer = desk.peer()
        answer = peer.answer(peer.pull("T1"))

        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        with pytest.raises(CorruptRecord, match=f"at byte {places[1] - places[0]}"):
            split_records(cast("Any", None), answer.body)
