"""Who may ask a controller: everybody, or with `authenticationEnabled` only those who have the secret of its nodes."""

from __future__ import annotations

import attrs

from ...remoting.codes import ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY, Credentials, is_signed
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.logs import RateLimit

log = get_logger(__name__)


@attrs.define(eq=False, repr=False)
class NodeAccess:
    """Satisfies `AccessCheck`: a node of the group may send every request, and everybody else none."""

    node: Credentials
    """With what the nodes sign, which is made from their secret."""
    clock: Clock
    _limit: RateLimit = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._limit = RateLimit(self.clock.monotonic)

    def refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        if request.ext.get(ACCESS_KEY) == self.node.access_key and is_signed(request, self.node.secret_key):
            return None
        if (left_out := self._limit.admit("request_refused")) is not None:
            log.warning(
                "controller_request_refused", remote=str(connection.remote), request=request.code, more_refused=left_out
            )
        return RequestRefused(
            ResponseCode.NO_PERMISSION,
            "this controller has authenticationEnabled=true and takes requests that are signed with its haSecret only: give "
            "brokers the same haSecret, and commands $LEDGERMQ_HA_SECRET. Nothing was done",
        )
