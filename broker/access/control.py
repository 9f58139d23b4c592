"""Checks the signature and the rights behind every request of a broker (RocketMQ's authentication and authorization of 5.x).

It decides and changes nothing. Refusals are logged by `audit`, whose logger is for them alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY, is_signed
from ...world.logs import shortened
from .audit import Audit
from .demands import ASKED, demands_of, named
from .policies import NO_POLICY, SUB, TOPIC, Demand
from .users import AccessTable, User, subject_of

OPEN_CODES = frozenset((RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, RequestCode.NOTIFY_BROKER_ROLE_CHANGED))
"""Requests that nobody signs: notices of name servers and controllers, which only make a broker ask them itself."""


@attrs.define(eq=False, repr=False, kw_only=True)
class AccessControl:
    """Satisfies `AccessCheck` with the users and rights of a table."""

    table: AccessTable
    cluster: str
    authorizes: bool
    """Whether rights are checked; otherwise whoever proves to be a user may do everything."""
    configured: Mapping[str, User]
    """Users of the configuration, by name; a user of the table with the same name has priority."""
    audit: Audit

    def refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        if request.code in OPEN_CODES:
            return None
        user = self._known(request)
        if not isinstance(user, str) and not is_signed(request, user.password):
            user = "check signature failed."
        return self._judged(connection, request, user)

    @property
    def version(self) -> object:
        return self.table.changes

    def later_refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        return self._judged(connection, request, self._known(request))

    def _judged(self, connection: ServerConnection, request: RemotingCommand, user: User | str) -> RequestRefused | None:
        """Why a user, or a sender who is none for the reason given, may not send a request."""
        if isinstance(user, str):
            return self._refused(connection, request, user)
        if user.is_super:
            return None
        if request.code not in ASKED and (self.authorizes or request.code == RequestCode.GET_ALL_ACCESS):
            remark = f"User:{user.name} is no super user, which request {request.code} needs"
            return self._refused(connection, request, remark)
        return self._lacks(connection, request, user, demands_of(request, self.cluster)) if self.authorizes else None

    def read_refusal(self, connection: ServerConnection, request: RemotingCommand, topic: str) -> RequestRefused | None:
        user = self.user_of(request)
        if user is None:  # it was deleted since the request came
            return self._refused(connection, request, f"User:{shortened(request.ext.get(ACCESS_KEY, ''), 100)} is not found.")
        if not self.authorizes or user.is_super:
            return None
        return self._lacks(connection, request, user, [named(TOPIC, topic, (SUB,))])

    def user_of(self, request: RemotingCommand) -> User | None:
        """The user in whose name a request comes."""
        name = request.ext.get(ACCESS_KEY, "")
        return self.table.users.get(name) or self.configured.get(name)

    def _known(self, request: RemotingCommand) -> User | str:
        """The enabled user in whose name a request comes, or why there is none, in RocketMQ's words."""
        name = request.ext.get(ACCESS_KEY, "")
        if not name:
            return "username cannot be null."
        user = self.user_of(request)
        if user is None:
            return f"User:{shortened(name, 100)} is not found."
        return user if user.is_enabled else f"User:{name} is disabled."

    def _lacks(
        self, connection: ServerConnection, request: RemotingCommand, user: User, demands: list[Demand]
    ) -> RequestRefused | None:
        source = connection.remote.host
        acl = self.table.acls.get(subject_of(user.name))
        for demand in demands:
            reason = NO_POLICY if acl is None else acl.refusal(demand, source)
            if reason is not None:
                resource = f"{demand.kind}:{shortened(demand.name, 300) or '*'}"
                remark = f"User:{user.name} has no permission to access {resource} from {source}, {reason}"
                return self._refused(connection, request, remark)
        return None

    def _refused(self, connection: ServerConnection, request: RemotingCommand, remark: str) -> RequestRefused:
        self.audit.refused(connection, request, remark)
        return RequestRefused(ResponseCode.NO_PERMISSION, remark)
