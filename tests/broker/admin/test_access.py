"""Users and rights that administrators change and read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from ledgermq.broker.access.policies import Acl
from ledgermq.broker.admin import access
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.signature import Credentials

from ...turns import counted
from ..access.scene import ADMIN, ALICE, allow, create_user, open_secured
from ..desk import Desk, Peer, open_desk

CREATE, UPDATE, DELETE, GET, LIST = 3001, 3002, 3003, 3004, 3005
CREATE_ACL, UPDATE_ACL, DELETE_ACL, GET_ACL, LIST_ACL = 3006, 3007, 3008, 3009, 3010


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_secured(tmp_path) as desk:
        yield desk


@pytest.fixture
def admin(desk: Desk) -> Peer:
    return desk.peer(ADMIN)


def content(peer: Peer, code: int, ext: dict[str, Any] | None = None) -> Any:
    """The content of an answer, None if it has none."""
    answer = peer.ask(code, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return orjson.loads(answer.body) if answer.body else None


async def listed(peer: Peer, ext: dict[str, Any] | None = None) -> list[str]:
    """The subjects of the rights that a request lists."""
    answer = await peer.ask_waiting(LIST_ACL, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [acl["subject"] for acl in orjson.loads(answer.body)] if answer.body else []


async def test_a_user_is_created_changed_and_deleted(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    created = content(admin, GET, {"username": "alice"})
    assert admin.ask(UPDATE, {"username": "alice"}, {"password": "new"}).code == ResponseCode.SUCCESS
    with_old, with_new = (desk.peer(Credentials("alice", word)).send("T") for word in ("hush", "new"))
    allow(admin, "Topic:T", "Pub")
    assert admin.ask(DELETE, {"username": "alice"}).code == ResponseCode.SUCCESS

    assert created == {"password": "hush", "userStatus": "enable", "userType": "Normal", "username": "alice"}
    assert with_old.remark == "check signature failed."
    assert "no matched policies" in (with_new.remark or "")
    assert admin.ask(GET, {"username": "alice"}).code == ResponseCode.USER_NOT_EXIST
    assert admin.ask(GET_ACL, {"subject": "User:alice"}).code == ResponseCode.POLICY_NOT_EXIST


async def test_the_user_of_the_configuration_can_be_changed_and_not_deleted(desk: Desk, admin: Peer) -> None:
    """A change counts from then on; a deletion of the changed user brings back what the configuration says."""
    assert admin.ask(CREATE, {"username": "admin"}, {"password": "x"}).remark == "The user is existed"
    assert admin.ask(DELETE, {"username": "admin"}).code == ResponseCode.NO_PERMISSION
    assert admin.ask(UPDATE, {"username": "admin"}, {"password": "better"}).code == ResponseCode.SUCCESS
    changed = desk.peer(Credentials("admin", "better"))

    assert admin.ask(LIST).remark == "check signature failed."
    assert changed.ask(DELETE, {"username": "admin"}).code == ResponseCode.SUCCESS
    assert admin.ask(LIST).code == ResponseCode.SUCCESS


async def test_users_are_listed_by_a_part_of_their_names(admin: Peer) -> None:
    for name in ("alice", "malik", "bob"):
        create_user(admin, Credentials(name, "x"))

    assert [user["username"] for user in content(admin, LIST)] == ["admin", "alice", "bob", "malik"]
    assert [user["username"] for user in content(admin, LIST, {"filter": "ali"})] == ["alice", "malik"]
    assert content(admin, LIST, {"filter": "nobody"}) is None


async def test_only_a_super_user_makes_and_sees_super_users(desk: Desk, admin: Peer) -> None:
    """Whoever may change users could otherwise become one."""
    create_user(admin)
    allow(admin, "Cluster:*", "Update", "Get")
    alice = desk.peer(ALICE)

    created = alice.ask(CREATE, {"username": "eve"}, {"password": "x", "userType": "Super"})
    taken = alice.ask(UPDATE, {"username": "admin"}, {"password": "x"})
    raised = alice.ask(UPDATE, {"username": "alice"}, {"userType": "Super"})
    assert [answer.code for answer in (created, taken, raised)] == [ResponseCode.NO_PERMISSION] * 3
    assert created.remark == "The super user can only be create by super user"
    assert alice.ask(CREATE, {"username": "bob"}, {"password": "x"}).code == ResponseCode.SUCCESS
    assert all("password" not in user for user in content(alice, LIST))
    assert alice.ask(60003).code == ResponseCode.NO_PERMISSION


async def test_rights_are_added_replaced_listed_and_taken_away(desk: Desk, admin: Peer) -> None:
    create_user(admin)
    create_user(admin, Credentials("bob", "x"))
    allow(admin, "Topic:T1", "Pub")
    allow(admin, "Topic:T2", "Sub")
    allow(admin, "Group:g", "Sub", user="bob")
    entry = {"resource": "Topic:T1", "actions": ["Sub"], "decision": "Deny"}
    assert admin.ask(UPDATE_ACL, {"subject": "User:alice"}, {"policies": [{"entries": [entry]}]}).code == 0

    (policy,) = content(admin, GET_ACL, {"subject": "User:alice"})["policies"]
    assert [(each["resource"], each["actions"], each["decision"]) for each in policy["entries"]] == [
        ("Topic:T1", ["Sub"], "Deny"),
        ("Topic:T2", ["Sub"], "Allow"),
    ]
    assert await listed(admin) == ["User:alice", "User:bob"]
    assert await listed(admin, {"resourceFilter": "Group"}) == ["User:bob"]
    assert await listed(admin, {"subjectFilter": "carol"}) == []
    assert admin.ask(DELETE_ACL, {"subject": "User:alice", "resource": "Topic:T1"}).code == 0
    assert len(content(admin, GET_ACL, {"subject": "User:alice"})["policies"][0]["entries"]) == 1
    assert admin.ask(DELETE_ACL, {"subject": "User:alice"}).code == 0
    assert admin.ask(DELETE_ACL, {"subject": "User:alice"}).remark == "The acl is not exist."


async def test_thousands_of_rights_are_listed_in_several_turns(
    desk: Desk, admin: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "ACLS_PER_TURN", 2)
    written: list[str] = []
    to_json = Acl.to_json

    def write(acl: Acl) -> dict[str, Any]:
        written.append(acl.subject)
        return to_json(acl)

    monkeypatch.setattr(Acl, "to_json", write)
    entry = {"resource": "Topic:T", "actions": ["Sub"], "decision": "Allow"}
    content = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
    subjects = [f"User:u{number}" for number in range(7)]
    desk.broker.tables.access.acls.update({subject: Acl.from_json(content, subject) for subject in subjects})

    with counted(lambda: len(written)) as turns:
        assert len(await listed(admin)) == 7

    assert turns.most == 2


REFUSED: list[tuple[int, dict[str, Any], Any, str]] = [
    (CREATE, {}, {"password": "x"}, "username is blank"),
    (CREATE, {"username": "a b"}, {"password": "x"}, "printable"),
    (CREATE, {"username": "alice"}, {}, "password can not be blank"),
    (UPDATE, {"username": "nobody"}, {"password": "x"}, "not exist"),
    (CREATE_ACL, {"subject": "User:nobody"}, {"policies": [{"entries": []}]}, "policies is empty"),
    (CREATE_ACL, {"subject": "alice"}, {"policies": []}, "User:NAME"),
    (
        CREATE_ACL,
        {"subject": "User:nobody"},
        {"policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}]},
        "The subject of User:nobody is not exist.",
    ),
    (CREATE_ACL, {"subject": "User:admin"}, {"policies": 5}, "int"),
    (
        CREATE_ACL,
        {"subject": "User:admin"},
        {
            "policies": [
                {
                    "entries": [
                        {"resource": f"Topic:{at}", "actions": ["Pub"], "decision": "Allow", "sourceIps": ["::"] * 100}
                        for at in range(11)
                    ]
                }
            ]
        },
        "the entries of User:admin would have 1100 sources together; at most 1000 are allowed; nothing was changed",
    ),
    (DELETE_ACL, {"subject": "User:admin"}, None, "not exist"),
    (GET_ACL, {"subject": "admin"}, None, "User:NAME"),
]


@pytest.mark.parametrize(("code", "ext", "body", "said"), REFUSED)
async def test_what_makes_no_user_and_no_right_is_refused(
    admin: Peer, code: int, ext: dict[str, Any], body: Any, said: str
) -> None:
    answer = admin.ask(code, ext, body)

    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.NO_PERMISSION)
    assert said in (answer.remark or "")


async def test_users_and_rights_survive_a_restart_with_their_file_and_without_it(tmp_path: Path) -> None:
    """They are in the log, and the file is a cache."""
    async with open_secured(tmp_path) as desk:
        create_user(desk.peer(ADMIN))
        allow(desk.peer(ADMIN), "Topic:T", "Pub")
    file = tmp_path / "config" / "access.json"
    assert "hush" in file.read_text()
    for _ in range(2):
        async with open_secured(tmp_path) as desk:
            assert (await desk.peer(ALICE).send_waiting("T")).code == ResponseCode.SUCCESS
        for one in (file, file.with_name("access.json.bak")):
            one.unlink(missing_ok=True)


async def test_users_can_be_made_before_access_control_is_switched_on(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        create_user(desk.peer())
        allow(desk.peer(), "Topic:T", "Pub")

    async with open_secured(tmp_path) as desk:
        assert (await desk.peer(ALICE).send_waiting("T")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("secret", ["", "shared"])
async def test_passwords_are_copied_only_by_nodes_that_know_the_secret(tmp_path: Path, secret: str) -> None:
    """Without a secret the port of replication gives everybody the log, and so the request does, too."""
    async with open_desk(tmp_path, ha_secret=secret) as desk:
        create_user(desk.peer())
        stranger = desk.peer().ask(60003)
        node = desk.peer(desk.broker.config.node_credentials).ask(60003)

    assert stranger.code == (ResponseCode.NO_PERMISSION if secret else ResponseCode.SUCCESS)
    assert b"hush" in node.body
