"""Users and their rights, which each broker, with its slaves or its group, has of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ...message.json import dumps, loads
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...world.network import Address
from ..arguments import check_text
from ..errors import Refused
from .calls import AdminCalls
from .values import Right, User


@attrs.define(eq=False)
class AccessAdmin(AdminCalls):
    """The part of the admin client that concerns users and rights.

    Changes are made on every master, on those of a cluster, or on one broker. They raise `Unreachable` if one has no master.
    """

    async def create_user(
        self, name: str, password: str, *, is_super: bool = False, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Create a user where it does not exist yet; returns the names of these brokers.

        Raises:
            NoPermission: every broker has the user, or the caller may not create it. A note says which brokers have it now.
        """
        user = {"password": password, "userType": "Super" if is_super else "Normal"}
        having, lacking = await self._having_user(name, cluster, broker)
        return await self._change_user(RequestCode.AUTH_CREATE_USER, name, user, lacking or having)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change what is given of a user, and leave the rest as it is; returns the names of the brokers that have the user."""
        user = {
            "password": password,
            "userType": None if is_super is None else "Super" if is_super else "Normal",
            "userStatus": None if is_enabled is None else "enable" if is_enabled else "disable",
        }
        having, lacking = await self._having_user(name, cluster, broker)
        return await self._change_user(RequestCode.AUTH_UPDATE_USER, name, user, having or lacking)

    async def delete_user(self, name: str, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """Delete a user and all its rights; returns the names of the brokers.

        Raises:
            ClientError: one or more failed, or have the user in their configuration; the others were asked all the same.
        """
        check_text("name", name)
        masters = await self._named_masters(cluster, broker, every=True)
        await self._ask_each(masters, RequestCode.AUTH_DELETE_USER, {"username": name})
        return [each for each, _ in masters]

    async def _having_user(
        self, name: str, cluster: str | None, broker: str | None
    ) -> tuple[list[tuple[str, Address]], list[tuple[str, Address]]]:
        """The brokers that have a user, and those that do not: one that refuses a change would keep others from it."""
        check_text("name", name)
        masters = await self._named_masters(cluster, broker, every=True)
        having = {user.broker for user in await self.users(name, cluster=cluster, broker=broker) if user.name == name}
        return [each for each in masters if each[0] in having], [each for each in masters if each[0] not in having]

    async def _change_user(
        self, code: RequestCode, name: str, user: Mapping[str, Any], masters: Iterable[tuple[str, Address]]
    ) -> list[str]:
        requests = [(each, address, {"username": name}, dumps(user)) for each, address in masters]
        await self._change(code, requests)
        return [each for each, *_ in requests]

    async def users(self, containing: str = "", *, cluster: str | None = None, broker: str | None = None) -> list[User]:
        """The users whose names contain a text, by broker and name."""
        found: list[User] = []
        for name, address in await self._named_masters(cluster, broker):
            answer = await self._ask(address, RequestCode.AUTH_LIST_USER, {"filter": containing})
            for user in _list_in(answer):
                is_super, is_enabled = user.get("userType") == "Super", user.get("userStatus") != "disable"
                found.append(User(name, str(user.get("username")), is_super, is_enabled))
        return found

    async def set_right(
        self,
        user: str,
        resource: str,
        actions: Iterable[str],
        *,
        allow: bool = True,
        sources: Iterable[str] = (),
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Let a user do these actions with a resource, or forbid them; replaces what was set for the same resource.

        Args:
            user: the name of a user that exists.
            resource: as in `Right`.
            actions: of `All`, `Pub`, `Sub`, `Create`, `Update`, `Delete`, `Get`, `List`.
            allow: whether they are allowed.
            sources: the addresses and networks from where requests have to come; none means all.

        Returns: the names of the brokers.
        """
        entry = {
            "resource": resource,
            "actions": list(actions),
            "decision": "Allow" if allow else "Deny",
            "sourceIps": list(sources),
        }
        body = dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]})
        masters = await self._named_masters(cluster, broker, every=True)
        await self._change(RequestCode.AUTH_UPDATE_ACL, [(name, address, _subject(user), body) for name, address in masters])
        return [name for name, _ in masters]

    async def delete_rights(
        self, user: str, resource: str | None = None, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Take away a user's rights for a resource, or all of them; returns the names of the brokers where the user has rights.

        Raises:
            NoPermission: the user has no rights on any broker, or the caller may not take them away.
            ClientError: one or more failed; the others were asked all the same, and a note says which.
        """
        fields = {**_subject(user), "resource": resource, "policyType": "Custom" if resource is not None else None}
        masters = await self._named_masters(cluster, broker, every=True)
        having = {right.broker for right in await self.rights(user, cluster=cluster, broker=broker)}
        asked = [each for each in masters if each[0] in having] or masters
        await self._ask_each(asked, RequestCode.AUTH_DELETE_ACL, fields)
        return [name for name, _ in asked]

    async def rights(
        self, user: str | None = None, *, resource: str = "", cluster: str | None = None, broker: str | None = None
    ) -> list[Right]:
        """The rights of one user or of all, for resources that contain a text; by broker and user."""
        found: list[Right] = []
        for name, address in await self._named_masters(cluster, broker):
            try:
                if user is None:
                    acls = _list_in(await self._ask(address, RequestCode.AUTH_LIST_ACL, {"resourceFilter": resource}))
                else:
                    acls = [loads((await self._ask(address, RequestCode.AUTH_GET_ACL, _subject(user))).body)]
            except Refused as error:
                if error.code != ResponseCode.POLICY_NOT_EXIST:
                    raise
                acls = []
            found += [right for acl in acls for right in _rights_in(name, acl) if resource in right.resource]
        return found


def _subject(user: str) -> dict[str, Any]:
    check_text("user", user)
    return {"subject": f"User:{user}"}


def _list_in(answer: RemotingCommand) -> list[dict[str, Any]]:
    return loads(answer.body) if answer.body else []


def _rights_in(broker: str, acl: Mapping[str, Any]) -> list[Right]:
    user = str(acl.get("subject", "")).partition(":")[2]
    return [
        Right(
            broker,
            user,
            str(entry.get("resource")),
            tuple(map(str, entry.get("actions") or ())),
            entry.get("decision") == "Allow",
            tuple(map(str, entry.get("sourceIps") or ())),
            str(policy.get("policyType")),
        )
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]
