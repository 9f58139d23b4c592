"""Brokers with RocketMQ's ACL 1.0."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledgermq.broker.access.plain_acl import Accounts, PlainAccessControl
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.signature import Credentials

from ..desk import Desk, Peer, open_desk

SECRET = "shared"  # noqa: S105 - of the test
ADMIN, ALICE = Credentials("rocketmq2", "12345678"), Credentials("RocketMQ", "87654321")
FILE = """
# As RocketMQ ships it, and a little more.
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: '87654321'
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
  - accessKey: local-one
    secretKey: abcdefgh
    whiteRemoteAddress: 127.0.0.*
    defaultTopicPerm: PUB
"""


@asynccontextmanager
async def open_plain(directory: Path, text: str = FILE, **settings: Any) -> AsyncGenerator[Desk]:
    (directory / "conf" / "acl").mkdir(parents=True, exist_ok=True)
    (directory / "conf" / "plain_acl.yml").write_text(text)
    async with open_desk(directory, acl_enable=True, **settings) as desk:
        desk.broker.topics.put(*(TopicConfig(name, 4, 4) for name in ("topicA", "topicB", "topicC", "topicD")))
        yield desk


def remark(peer: Peer, topic: str = "topicB") -> str:
    """Why a send is refused; empty if it is not."""
    answer = peer.send(topic)
    if answer.code == ResponseCode.SUCCESS:
        return ""
    assert answer.code == ResponseCode.SYSTEM_ERROR
    prefix, _, reason = (answer.remark or "").partition(": ")
    assert prefix == "org.apache.rocketmq.acl.common.AclException"
    return reason


async def test_requests_are_checked_in_rocketmqs_words(tmp_path: Path) -> None:
    async with open_plain(tmp_path) as desk:
        alice = desk.peer(ALICE)

        assert remark(desk.peer()) == "No accessKey is configured"
        assert remark(desk.peer(Credentials("stranger", "x"))) == "No acl config for stranger"
        assert remark(desk.peer(Credentials("RocketMQ", "guess"))) == "Check signature failed for accessKey=RocketMQ"
        assert remark(alice) == ""
        assert remark(alice, "topicA") == "No default permission for topicA"
        assert remark(alice, "topicC") == "No default permission for topicC"
        assert remark(alice, "topicD") == "No default permission for topicD"
        assert remark(desk.peer(ADMIN), "topicD") == ""


async def test_consuming_needs_the_topic_and_the_group(tmp_path: Path) -> None:
    async with open_plain(tmp_path) as desk:
        alice = desk.peer(ALICE)

        assert alice.heartbeat("groupB", "topicB", "%RETRY%groupB").code == ResponseCode.SUCCESS
        assert "topicD" in (alice.heartbeat("groupB", "topicD").remark or "")
        assert "groupA" in (alice.heartbeat("groupA", "topicB").remark or "")


async def test_a_held_pull_is_judged_again_by_the_accounts_of_the_moment_when_it_is_answered(tmp_path: Path) -> None:
    async with open_plain(tmp_path) as desk:
        alice, admin = desk.peer(ALICE), desk.peer(ADMIN)
        opaque, of_admin = (peer.pull("topicB", group="groupB", sysFlag=4 | 2) for peer in (alice, admin))
        access = desk.broker.access
        assert isinstance(access, PlainAccessControl)
        access.accounts = Accounts.of([yaml.safe_load(FILE.replace("topicB=PUB|SUB", "topicB=PUB"))])

        desk.put("topicB", b"news")
        await desk.settled()

        answer, given = alice.answer(opaque), admin.answer(of_admin)
        assert answer is not None
        assert given is not None
        assert (answer.body, (answer.remark or "").partition(": ")[2]) == (b"", "No default permission for topicB")
        assert given.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "topicB"}),
        (RequestCode.UPDATE_BROKER_CONFIG, {}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "topicB"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "groupB"}),
        (RequestCode.AUTH_CREATE_USER, {"username": "eve"}),
        (RequestCode.GET_ALL_ACCESS, {}),
        (9999, {}),
    ],
)
async def test_changes_need_an_administrator(tmp_path: Path, code: int, ext: dict[str, str]) -> None:
    async with open_plain(tmp_path) as desk:
        answer = desk.peer(ALICE).ask(code, ext)

    assert (answer.remark or "").endswith(f"Need admin permission for request code={int(code)}")


async def test_states_are_for_every_account_and_passwords_of_users_for_none(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        assert desk.peer().ask(3001, {"username": "bob"}, {"password": "hush"}).code == ResponseCode.SUCCESS
    async with open_plain(tmp_path) as desk:
        assert desk.peer(ALICE).ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.SUCCESS
        assert b"hush" not in desk.peer(ADMIN).ask(RequestCode.AUTH_GET_USER, {"username": "bob"}).body


async def test_an_account_that_may_not_send_writes_no_fences_into_the_log(tmp_path: Path) -> None:
    async with open_plain(tmp_path) as desk:
        alice = desk.peer(ALICE)

        refused = alice.ask(RequestCode.FENCE_PRODUCER, {"producer": "p", "topic": "topicC"})
        fenced = await alice.ask_waiting(RequestCode.FENCE_PRODUCER, {"producer": "p", "topic": "topicB"})

    assert (refused.remark or "").endswith("No default permission for topicC")
    assert fenced.code == ResponseCode.SUCCESS


async def test_white_lists_need_no_signature(tmp_path: Path) -> None:
    """The one of an account is for its own access key, the global one for everybody."""
    async with open_plain(tmp_path) as desk:
        assert remark(desk.peer(Credentials("local-one", "guess")), "topicD") == ""
    async with open_plain(tmp_path, FILE.replace("10.10.103.*", "127.0.0.1")) as desk:
        assert remark(desk.peer(), "topicD") == ""


async def test_a_trace_may_be_sent_by_every_account(tmp_path: Path) -> None:
    async with open_plain(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("RMQ_SYS_TRACE_TOPIC", 1, 1))

        assert remark(desk.peer(ALICE), "RMQ_SYS_TRACE_TOPIC") == ""


async def test_a_message_is_read_by_its_position_only_with_the_right_to_its_topic(tmp_path: Path) -> None:
    async with open_plain(tmp_path) as desk:
        positions = {topic: desk.put(topic) for topic in ("topicB", "topicD")}

        def code(peer: Peer, topic: str) -> int:
            return peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": positions[topic]}).code

        alice, admin = desk.peer(ALICE), desk.peer(ADMIN)
        assert (code(alice, "topicB"), code(alice, "topicD"), code(admin, "topicD")) == (0, 1, 0)


async def test_nodes_with_the_secret_are_administrators(tmp_path: Path) -> None:
    async with open_plain(tmp_path, ha_secret=SECRET) as desk:
        assert desk.peer(desk.broker.config.node_credentials).ask(RequestCode.GET_ALL_ACCESS).code == ResponseCode.SUCCESS
        assert remark(desk.peer(Credentials("*node", "guess"))) == "Check signature failed for accessKey=*node"
