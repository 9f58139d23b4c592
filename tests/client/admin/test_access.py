"""Users and rights by the admin client."""

from __future__ import annotations

import json
from typing import ClassVar, cast

import pytest
import trio

from ledgermq import Credentials
from ledgermq.client.admin import open_admin
from ledgermq.client.admin.access import AccessAdmin
from ledgermq.client.admin.values import Right, User
from ledgermq.client.errors import InvalidParameter, NoPermission
from ledgermq.client.session import Session
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import open_virtual
from ledgermq.world.network import Address

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


async def test_a_change_reaches_the_brokers_that_others_would_keep_from_it(autojump_clock: trio.testing.MockClock) -> None:
    """A broker refuses to create a user that it has, and to change or to take away what it does not have."""
    async with (
        open_virtual(nodes=2, settings=SECURED) as cluster,
        open_admin(cluster.namesrv, credentials=Credentials("admin", "swordfish"), world=cluster.world) as admin,
    ):
        first, second = (broker.name for broker in (await admin.cluster()).brokers)
        await admin.create_user("alice", "hush", broker=second)
        assert await admin.update_user("alice", is_enabled=False) == [second]
        await admin.delete_user("alice")

        await admin.create_user("alice", "hush", broker=first)
        assert await admin.create_user("alice", "hush") == [second]
        await admin.set_right("alice", "Topic:T", ["Pub"], broker=second)
        assert await admin.delete_rights("alice") == [second]
        assert await admin.rights() == []
        with pytest.raises(NoPermission, match="The acl is not exist"):
            await admin.delete_rights("alice")


async def test_a_user_is_deleted_where_it_can_be() -> None:
    """A broker that has the user in its configuration refuses, and others would keep the user with all its rights."""

    class Brokers:
        """Three brokers, of which the first refuses."""

        asked: ClassVar[list[int]] = []

        async def ask(self, address: Address, _command: RemotingCommand, _seconds: float) -> None:
            await trio.lowlevel.checkpoint()
            self.asked.append(address.port)
            if address.port == 1:
                raise NoPermission(16, "User:alice is in the configuration of the broker; nothing was deleted", str(address))

    class Admin(AccessAdmin):
        async def _named_masters(self, *_: object, **__: object) -> list[tuple[str, Address]]:
            await trio.lowlevel.checkpoint()
            return [("a", Address("10.0.0.1", 1)), ("b", Address("10.0.0.1", 2)), ("c", Address("10.0.0.1", 3))]

    with pytest.raises(NoPermission) as caught:
        await Admin(cast("Session", Brokers())).delete_user("alice")

    assert Brokers.asked == [1, 2, 3]
    assert caught.value.__notes__ == ["Done by b, c; not by a."]
