"""A broker with access control, asked through its dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.access.control import AccessControl
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.layout import decode_records
from ledgermq.message.message import MessageId
from ledgermq.message.strings import string_hash
from ledgermq.native import scan_sends
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.signature import Credentials, sign
from ledgermq.testing.logs import capture_logs

from ..desk import Desk, Peer, open_desk
from .scene import ADMIN, ALICE, allow, create_user, open_secured

HOLD: dict[str, Any] = {"sysFlag": 4 | 2}
"""A pull that waits for messages and names its subscription."""


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_secured(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 4, 4), TopicConfig("T2", 4, 4))
        yield desk


@pytest.fixture
def admin(desk: Desk) -> Peer:
    return desk.peer(ADMIN)


def refused(peer: Peer, code: int = RequestCode.GET_BROKER_CONFIG) -> str:
    """The remark of a refusal."""
    answer = peer.ask(code)
    assert answer.code == ResponseCode.NO_PERMISSION
    return answer.remark or ""


async def test_who_signs_nothing_or_something_else_is_refused(desk: Desk) -> None:
    """In RocketMQ's words, which tools and people search for."""
    assert refused(desk.peer()) == "username cannot be null."
    assert refused(desk.peer(ALICE)) == "User:alice is not found."
    assert refused(desk.peer(Credentials("admin", "guess"))) == "check signature failed."
    assert desk.peer(ADMIN).ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS


async def test_a_disabled_user_is_refused(desk: Desk, admin: Peer) -> None:
    create_user(admin, userStatus="disable")

    assert refused(desk.peer(ALICE)) == "User:alice is disabled."


async def test_a_user_may_do_what_its_rights_say(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    alice = desk.peer(ALICE)
    before = alice.send("T1")
    allow(admin, "Topic:T1", "Pub")

    assert before.code == ResponseCode.NO_PERMISSION
    assert before.remark == "User:alice has no permission to access Topic:T1 from 127.0.0.1, no matched policies."
    assert alice.send("T1").code == ResponseCode.SUCCESS
    assert alice.send("T2").code == ResponseCode.NO_PERMISSION
    assert alice.answer(alice.pull("T1")).code == ResponseCode.NO_PERMISSION  # type: ignore[union-attr]
    assert alice.ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.NO_PERMISSION


async def test_a_consumer_needs_its_group_and_its_topics(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    alice = desk.peer(ALICE)
    desk.put("T1")
    await desk.settled()
    allow(admin, "Topic:T1", "Sub")
    refused_group = alice.heartbeat("g", "T1")
    allow(admin, "Group:g", "Sub")

    assert refused_group.code == ResponseCode.NO_PERMISSION
    assert "Group:g" in (refused_group.remark or "")
    assert alice.heartbeat("g", "T1", "%RETRY%g").code == ResponseCode.SUCCESS
    assert alice.heartbeat("g", "T1", "T2").code == ResponseCode.NO_PERMISSION
    assert len(alice.pulled("T1")) == 1


async def test_rights_that_change_count_for_the_next_request(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    alice = desk.peer(ALICE)
    allow(admin, "Topic:*", "Pub")
    sent = alice.send("T1")
    assert admin.ask(3008, {"subject": "User:alice", "policyType": "Custom", "resource": "Topic:*"}).code == 0

    assert sent.code == ResponseCode.SUCCESS
    assert alice.send("T1").code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("change", ["right withdrawn", "user disabled", "user deleted"])
async def test_a_held_pull_is_judged_again_by_the_rights_of_the_moment_when_it_is_answered(
    desk: Desk, admin: Peer, change: str
) -> None:
    """Somebody who was sent away must not get what is sent later, however long a pull has waited."""
    create_user(admin)
    allow(admin, "Topic:T1", "Sub")
    allow(admin, "Group:g", "Sub")
    alice = desk.peer(ALICE)
    opaque = alice.pull("T1", **HOLD)
    changes: dict[str, tuple[int, dict[str, str], dict[str, str]]] = {
        "right withdrawn": (RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice", "resource": "Topic:T1"}, {}),
        "user disabled": (RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "disable"}),
        "user deleted": (RequestCode.AUTH_DELETE_USER, {"username": "alice"}, {}),
    }
    assert admin.ask(*changes[change]).code == ResponseCode.SUCCESS

    with capture_logs() as logs:
        desk.put("T1", b"of tomorrow")
        await desk.settled()

    answer = alice.answer(opaque)
    assert answer is not None
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    assert [entry["user"] for entry in logs if entry["event"] == "request_refused"] == ["alice"]


async def test_a_held_pull_is_answered_after_a_change_of_rights_that_leaves_its_own(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    allow(admin, "Topic:T1", "Sub")
    allow(admin, "Group:g", "Sub")
    alice = desk.peer(ALICE)
    opaque = alice.pull("T1", **HOLD)
    create_user(admin, Credentials("bob", "hush"))

    desk.put("T1", b"news")
    await desk.settled()

    answer = alice.answer(opaque)
    assert answer is not None
    assert [message.body for message in decode_records(answer.body)] == [b"news"]


async def test_without_authorization_every_user_may_do_everything(tmp_path: Path) -> None:
    async with open_secured(tmp_path, authorization_enabled=False) as desk:
        create_user(desk.peer(ADMIN))

        assert desk.peer(ALICE).ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS
        assert refused(desk.peer()) == "username cannot be null."


async def test_passwords_are_shown_to_super_users_alone(tmp_path: Path) -> None:
    """Whoever reads them can sign as anybody; without `authorizationEnabled`, too."""
    async with open_secured(tmp_path, authorization_enabled=False) as desk:
        create_user(desk.peer(ADMIN))

        assert "no super user" in refused(desk.peer(ALICE), RequestCode.GET_ALL_ACCESS)
        assert desk.peer(ADMIN).ask(RequestCode.GET_ALL_ACCESS).code == ResponseCode.SUCCESS


async def test_what_a_user_may_read_ends_with_the_user(desk: Desk, admin: Peer) -> None:
    """A request that was taken before may look at a message after the deletion."""
    request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"AccessKey": "alice"})
    access = desk.broker.dispatcher.access
    assert isinstance(access, AccessControl)

    refusal = access.read_refusal(admin.connection, request, "T1")

    assert refusal is not None
    assert refusal.remark == "User:alice is not found."


async def test_delayed_messages_of_all_topics_are_read_with_a_right_to_their_topic_alone(desk: Desk, admin: Peer) -> None:
    """They wait together, also those of a topic that is denied to whoever may read all others."""
    create_user(admin)
    allow(admin, "Topic:*", "Sub")
    allow(admin, "Group:*", "Sub")
    alice = desk.peer(ALICE)

    def reads(topic: str) -> bool:
        answer = alice.answer(alice.pull(topic))
        return answer is None or answer.code != ResponseCode.NO_PERMISSION

    before = reads("T1"), reads("SCHEDULE_TOPIC_XXXX")
    allow(admin, "Topic:SCHEDULE_TOPIC_XXXX", "Sub")

    assert (before, reads("SCHEDULE_TOPIC_XXXX")) == ((True, False), True)


async def test_a_key_finds_messages_of_the_topic_that_was_asked_for_alone(desk: Desk, admin: Peer) -> None:
    """The index has hashes, and a key can be made whose hash is that of another topic's."""
    desk.broker.topics.put(TopicConfig("Aa", 1, 1), TopicConfig("BB", 1, 1))
    create_user(admin)
    allow(admin, "Topic:Aa", "Sub")
    admin.send("BB", KEYS="k")
    asked = {"key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60}

    assert string_hash("Aa#k") == string_hash("BB#k")
    found = await desk.peer(ALICE).ask_waiting(RequestCode.QUERY_MESSAGE, {"topic": "Aa", **asked})
    own = await admin.ask_waiting(RequestCode.QUERY_MESSAGE, {"topic": "BB", **asked})
    assert (found.code, own.code) == (ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUCCESS)


async def test_another_user_s_send_number_is_another_number(desk: Desk, admin: Peer) -> None:
    """It stands in every message; whoever reads one must not have its producer's next sends taken for repetitions."""
    create_user(admin)
    allow(admin, "Topic:T2", "Pub")
    fields = {"a": "p", "c": "", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "m": "false"}

    def send(peer: Peer, topic: str, number: str) -> RemotingCommand:
        return peer.ask(RequestCode.SEND_MESSAGE_V2, {**fields, "b": topic, "sendNumber": number}, b"body")

    send(desk.peer(ALICE), "T2", "p.0.42.41")
    answers = [send(admin, "T1", "p.0.42.41") for _ in range(2)]
    fence = await desk.peer(ALICE).ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p", "topic": "T2"})
    later = send(admin, "T1", "p.0.43.41")

    assert [answer.ext.get("repeated") for answer in answers] == [None, "true"]
    assert (fence.code, later.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert len(admin.pulled("T1")) == 2


async def test_a_user_who_may_not_send_writes_no_fences_into_the_log(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    allow(admin, "Topic:T1", "Sub")
    allow(admin, "Topic:T2", "Pub")
    before = desk.broker.store.log.max_offset
    alice = desk.peer(ALICE)

    refused = alice.ask(RequestCode.FENCE_PRODUCER, {"producer": "p", "topic": "T1"})
    nameless = alice.ask(RequestCode.FENCE_PRODUCER, {"producer": "p"})

    assert (refused.code, nameless.code) == (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
    assert desk.broker.store.log.max_offset == before


async def test_without_access_control_nobody_signs(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        assert desk.broker.dispatcher.access is None
        assert desk.broker.server.scan is scan_sends
        assert desk.peer().ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("code", [RequestCode.END_TRANSACTION, 9999])
async def test_a_code_that_nobody_knows_is_for_super_users(desk: Desk, admin: Peer, code: int) -> None:
    create_user(admin)
    allow(admin, "*", "All")

    assert refused(desk.peer(ALICE), code) == f"User:alice is no super user, which request {int(code)} needs"
    assert admin.ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_of_a_run_of_sends_those_that_are_allowed_are_put(desk: Desk, admin: Peer) -> None:
    """They come in one receive, and each is answered once, whatever is refused in between."""
    create_user(admin)
    allow(admin, "Topic:T1", "Pub")
    alice = desk.peer(ALICE)
    fields = {"a": "p", "c": "", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "m": "false"}
    requests = [
        RemotingCommand(310, {**fields, "b": topic}, str(opaque).encode(), opaque=opaque)
        for opaque, topic in enumerate(("T2", "T1", "T2", "T2", "T1", "T2"), 100)
    ]
    for request in requests:
        sign(request, ALICE)
    desk.broker.dispatcher.handle(alice.connection, requests)
    codes = [answer.code if (answer := alice.answer(opaque)) is not None else None for opaque in range(100, 106)]
    await desk.settled()

    assert codes == [16, 0, 16, 16, 0, 16]
    assert [message.body for message in admin.pulled("T1")] == [b"101", b"104"]


@pytest.mark.skipif(scan_sends is None, reason="the compiled path is not built")
async def test_plain_sends_without_a_signature_are_refused(desk: Desk) -> None:
    """Also those that the compiled path would have taken, if connections looked for them."""
    assert desk.broker.server.scan is None
    peer = desk.peer()
    connection = peer.connection
    connection.scan = scan_sends
    fields = {"a": "p", "b": "T1", "c": "", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0", "k": "false"}
    frames = b"".join(encode_frame(RemotingCommand(310, fields, b"x", opaque=opaque)) for opaque in (7, 8))
    requests = connection.receive(frames)
    assert connection.sends is not None
    desk.broker.dispatcher.handle(connection, requests)

    assert [answer.code for opaque in (7, 8) if (answer := peer.answer(opaque)) is not None] == [16, 16]


async def test_a_message_is_read_by_its_position_only_with_the_right_to_its_topic(desk: Desk, admin: Peer) -> None:
    """By id, as a copy in a retry topic, and pushed to a consumer: a position may be that of any message."""
    create_user(admin)
    allow(admin, "Topic:T1", "Sub")
    allow(admin, "Group:g", "Sub")
    mine, other = desk.put("T1"), desk.put("T2")
    alice = desk.peer(ALICE)

    def by_position(offset: int) -> int:
        return alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": "T1"}).code

    def sent_back(offset: int) -> int:
        return alice.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": offset, "originTopic": "T1", "delayLevel": 3}
        ).code

    pushed = await alice.ask_waiting(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "g", "clientId": "c", "topic": "T1", "msgId": str(MessageId("127.0.0.1", 1, other))},  # type: ignore[arg-type]
    )
    assert alice.heartbeat("g", "T1").code == ResponseCode.SUCCESS
    assert (by_position(mine), by_position(other)) == (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
    assert sent_back(other) == ResponseCode.NO_PERMISSION
    assert pushed.code == ResponseCode.NO_PERMISSION


async def test_events_of_the_log_are_no_messages(desk: Desk, admin: Peer) -> None:
    """They contain the passwords of users, and no position leads to them, not even for a super user."""
    start = desk.broker.store.log.max_offset
    create_user(admin)
    end = desk.broker.store.log.max_offset
    record = next(iter(decode_records(bytes(desk.broker.store.log.slice_from(start, end - start)))))

    answer = admin.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": record.physical_offset})

    assert b"hush" in record.body
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_refusals_are_logged_with_bounded_values_and_at_a_bounded_rate(desk: Desk) -> None:
    """Who, what and from where; no signature."""
    peer = desk.peer(Credentials("x" * 100_000, "guess"))
    with capture_logs() as logs:
        for _ in range(1000):
            peer.ask(RequestCode.GET_BROKER_CONFIG)
    lines = [line for line in logs if line["event"] == "request_refused"]

    assert 1 <= len(lines) <= 25
    assert lines[0]["request"] == "GET_BROKER_CONFIG"
    assert lines[0]["remote"].startswith("127.0.0.1:")
    assert len(str(lines[0])) < 1000
    assert "Signature" not in str(lines[0])


async def test_the_audit_has_a_logger_of_its_own(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    refused(desk.peer())

    assert [record.name for record in caplog.records if "request_refused" in record.getMessage()] == [
        "ledgermq.broker.access.audit"
    ]
