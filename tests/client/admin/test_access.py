"""Users and rights by the admin client."""

from __future__ import annotations

import json

import pytest
import trio

from ledgermq import Credentials
from ledgermq.client.admin import open_admin
from ledgermq.client.admin.values import Right, User
from ledgermq.client.errors import InvalidParameter, NoPermission
from ledgermq.testing.embedded import open_virtual

SECURED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "swordfish"}),
}


async def test_users_and_rights_are_those_of_each_broker(autojump_clock: trio.testing.MockClock) -> None:
    """A change is made on every master, and what is read says which broker has it."""
    async with (
        open_virtual(nodes=2, settings=SECURED) as cluster,
        open_admin(cluster.namesrv, credentials=Credentials("admin", "swordfish"), world=cluster.world) as admin,
    ):
        names = await admin.create_user("alice", "hush")
        await admin.update_user("alice", is_super=True, is_enabled=False, broker=names[0])
        users = await admin.users("ali")
        await admin.set_right("alice", "Topic:T", ["Pub"], sources=["10.0.0.0/8"])
        await admin.set_right("alice", "Group:g", ["Sub"], allow=False, broker=names[1])
        rights = await admin.rights("alice")
        await admin.delete_rights("alice", "Topic:T", broker=names[0])
        left = await admin.rights()
        with pytest.raises(InvalidParameter, match="resource type"):
            await admin.set_right("alice", "Queue:T", ["Pub"])
        with pytest.raises(NoPermission, match="The user is existed"):
            await admin.create_user("alice", "hush")
        await admin.delete_user("alice")
        gone = await admin.users("ali"), await admin.rights("alice")

    assert len(names) == 2
    assert users == [User(names[0], "alice", True, False), User(names[1], "alice", False, True)]
    on_topic = [Right(name, "alice", "Topic:T", ("Pub",), True, ("10.0.0.0/8",)) for name in names]
    on_group = Right(names[1], "alice", "Group:g", ("Sub",), False)
    assert rights == [*on_topic, on_group]
    assert left == [on_topic[1], on_group]
    assert gone == ([], [])
