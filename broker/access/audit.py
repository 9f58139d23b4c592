"""The log of refused requests: who wanted what, from where. It has a logger of its own, `ledgermq.broker.access.audit`.

Any peer can cause refusals, so the lines have bounded values, and many refusals at once are counted and not written one by one.
"""

from __future__ import annotations

import attrs

from ...remoting.codes import RequestCode
from ...remoting.command import RemotingCommand
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.logs import RateLimit, shortened

log = get_logger(__name__)

USER_CHARACTERS_MAX = 100


@attrs.define(eq=False, repr=False)
class Audit:
    """Writes a line for each refusal, up to a rate."""

    clock: Clock
    _limit: RateLimit = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._limit = RateLimit(self.clock.monotonic)

    def refused(self, connection: ServerConnection, request: RemotingCommand, reason: str) -> None:
        """Log that a request was not carried out."""
        left_out = self._limit.admit("request_refused")
        if left_out is None:
            return
        code = request.code
        log.warning(
            "request_refused",
            user=shortened(request.ext.get(ACCESS_KEY, ""), USER_CHARACTERS_MAX),
            request=RequestCode(code).name if code in _CODES else str(code),
            remote=str(connection.remote),
            reason=reason,
            more_refused=left_out,
        )


_CODES = frozenset(int(code) for code in RequestCode)
