"""Requests 3001 to 3010: create, change, delete and read users and their rights (RocketMQ AdminBrokerProcessor of 5.x).

Users and rights may be changed before access control is switched on. A deleted user loses its rights, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...message.json import dumps
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY
from ...world.slices import in_slices
from ..access.policies import CUSTOM, DEFAULT, Acl, BadPolicy, Resource, checked_subject
from ..access.users import BadUser, User, subject_of
from ..request_bodies import body_of
from ..requests.answer_policies import Applied
from ..tables.table_log import TableLog

LISTED_MAX = 10_000
"""The most users or rights in one answer; the filter of the request finds the others."""
ACLS_PER_TURN = 250
"""The rights of how many users one turn of the event loop writes."""


@attrs.define(eq=False, kw_only=True, repr=False)
class AccessAdministration:
    """The handlers of these requests."""

    table_log: TableLog
    configured: Mapping[str, User]
    """The users of the configuration, by name."""
    is_checked: bool
    """Whether requests are signed by users: then only a super user may change or see super users."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        applied = Applied(self.table_log)
        changes: Mapping[RequestCode, Callable[[RemotingCommand], None]] = {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_CREATE_ACL: self.put_acl,
            RequestCode.AUTH_UPDATE_ACL: self.put_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
        }
        reads: Mapping[RequestCode, Callable[[RemotingCommand], Any]] = {
            RequestCode.AUTH_GET_USER: self.user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_GET_ACL: self.acl,
        }
        for code, change in changes.items():
            dispatcher.register(code, _changing(change), policy=applied)
        for code, read in reads.items():
            dispatcher.register(code, _reading(read))
        dispatcher.register_long({RequestCode.AUTH_LIST_ACL: self.list_acls})

    # ---------------------------------------------------------------- users

    def create_user(self, request: RemotingCommand) -> None:
        """3001: create a user."""
        name = _user_name(request)
        if self.table_log.user(name) is not None or name in self.configured:
            raise _refused("The user is existed")
        self._put_user(request, User.from_json({**body_of(request), "username": name}), None)

    def update_user(self, request: RemotingCommand) -> None:
        """3002: change a user's password, type or status; one of the configuration is from now on as this says."""
        name = _user_name(request)
        known = self.table_log.user(name) or self.configured.get(name)
        if known is None:
            raise _refused("The user is not exist")
        self._put_user(request, User.from_json({**body_of(request), "username": name}, known), known)

    def _put_user(self, request: RemotingCommand, user: User, known: User | None) -> None:
        if user.is_super or (known is not None and known.is_super):
            self._check_super(request, "create" if known is None else "update")
        self.table_log.put_access({user.name: user}, {})

    def delete_user(self, request: RemotingCommand) -> None:
        """3003: delete a user and its rights; one of the configuration is as it says there again."""
        name = _user_name(request)
        known = self.table_log.user(name)
        if known is None and name in self.configured:
            raise _refused(f"User:{name} is in the configuration of the broker; nothing was deleted")
        if known is not None and known.is_super:
            self._check_super(request, "update")
        self.table_log.put_access({name: None}, {subject_of(name): None})

    def user(self, request: RemotingCommand) -> dict[str, Any]:
        """3004: one user."""
        name = _user_name(request)
        known = self._applied(name)
        if known is None:
            raise RequestRefused(ResponseCode.USER_NOT_EXIST, f"User:{name} is not found.")
        return known.to_json(password=self._is_super(request))

    def list_users(self, request: RemotingCommand) -> list[dict[str, Any]]:
        """3005: the users whose names contain the filter."""
        wanted, shown = request.text("filter", ""), self._is_super(request)
        users = {**self.configured, **self.table_log.tables.access.users}
        return [users[name].to_json(password=shown) for name in sorted(users) if wanted in name][:LISTED_MAX]

    def _check_super(self, request: RemotingCommand, verb: str) -> None:
        if not self._is_super(request):
            raise _refused(f"The super user can only be {verb} by super user")

    def _is_super(self, request: RemotingCommand) -> bool:
        """Whether a request is signed by a super user, or by nobody where everybody may do everything."""
        user = self._applied(request.ext.get(ACCESS_KEY, ""))
        return not self.is_checked or (user is not None and user.is_super)

    def _applied(self, name: str) -> User | None:
        return self.table_log.tables.access.users.get(name) or self.configured.get(name)

    # ---------------------------------------------------------------- rights

    def put_acl(self, request: RemotingCommand) -> None:
        """3006 and 3007: give a user rights, in addition to those for other resources."""
        subject = checked_subject(request.text("subject"))
        acl = Acl.from_json(body_of(request), subject)
        if acl.is_empty:
            raise BadPolicy("The policies is empty.")
        name = subject.partition(":")[2]
        if self.table_log.user(name) is None and name not in self.configured:
            raise _refused(f"The subject of {subject} is not exist.")
        known = self.table_log.acl(subject) or Acl(subject)
        self.table_log.put_access({}, {subject: known.updated(acl)})

    def delete_acl(self, request: RemotingCommand) -> None:
        """3008: take away a user's rights for a resource, or all."""
        subject = checked_subject(request.text("subject"))
        known = self.table_log.acl(subject)
        if known is None:
            raise _refused("The acl is not exist.")
        resource = request.text("resource", "")
        policy = DEFAULT if request.text("policyType", "").lower() == DEFAULT.lower() else CUSTOM
        left = known.without(policy, Resource.parse(resource)) if resource else None
        self.table_log.put_access({}, {subject: None if left is None or left.is_empty else left})

    def acl(self, request: RemotingCommand) -> dict[str, Any]:
        """3009: the rights of one user."""
        subject = checked_subject(request.text("subject"))
        known = self.table_log.tables.access.acls.get(subject)
        if known is None:
            raise RequestRefused(ResponseCode.POLICY_NOT_EXIST, f"there are no rights of {subject}")
        return known.to_json()

    async def list_acls(self, _: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """3010: the rights of users whose subject contains a filter, for resources that contain another one."""
        subject, resource = request.text("subjectFilter", ""), request.text("resourceFilter", "")
        found: list[bytes] = []
        async for acls in in_slices(sorted(self.table_log.tables.access.acls.items()), ACLS_PER_TURN):
            found += (
                dumps(acl.to_json())
                for name, acl in acls
                if subject in name and any(resource in str(each) for each in (*acl.custom, *acl.default))
            )
        return request.response(body=b"[%b]" % b",".join(found[:LISTED_MAX]) if found else b"")


def _changing(change: Callable[[RemotingCommand], None]) -> Callable[[ServerConnection, RemotingCommand], RemotingCommand]:
    def handle(_connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        try:
            change(request)
        except (BadUser, BadPolicy, TypeError) as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{error}; nothing was changed") from error
        return request.response()

    return handle


def _reading(read: Callable[[RemotingCommand], Any]) -> Callable[[ServerConnection, RemotingCommand], RemotingCommand]:
    def handle(_connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        try:
            content = read(request)
        except BadPolicy as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        return request.response(body=dumps(content) if content else b"")

    return handle


def _user_name(request: RemotingCommand) -> str:
    if not (name := request.text("username", "")):
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _refused(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, remark)
