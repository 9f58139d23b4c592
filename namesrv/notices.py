"""Notifies brokers that another broker of their name now has the lowest id (RocketMQ NOTIFY_MIN_BROKER_ID_CHANGE, 905).

As in RocketMQ a notice is sent over a new connection to the broker's port, because brokers accept no requests over the one on
which they register. A broker that cannot be reached learns of the change at its next registration.
"""

from __future__ import annotations

import attrs
import trio

from ..remoting.codes import RequestCode
from ..remoting.command import ONEWAY_FLAG, RemotingCommand, encode_frame
from ..world.events import get_logger
from ..world.network import Address, Network
from .routes import MinIdChange

log = get_logger(__name__)

NOTICE_SECONDS = 3.0
"""How long sending one notice may take before it is given up and logged."""
NOTICES_MAX = 64
"""How many notices may be on their way; each has a task and a connection, and further ones are not sent."""


@attrs.define(eq=False)
class Notices:
    """Sends each notice in a task of its own."""

    network: Network
    nursery: trio.Nursery
    _on_their_way: int = 0

    def send(self, change: MinIdChange) -> None:
        """Notify the brokers that `change` concerns; any peer can register brokers, so only so many at a time."""
        for at, address in enumerate(change.recipients):
            if self._on_their_way >= NOTICES_MAX:
                rest, reason = len(change.recipients) - at, f"{NOTICES_MAX} notices are on their way already"
                log.warning("brokers_not_notified", broker=change.broker_name, brokers=rest, reason=reason)
                return
            self._on_their_way += 1
            self.nursery.start_soon(self._send, address, change)

    async def _send(self, text: str, change: MinIdChange) -> None:
        try:
            await self._deliver(text, change)
        finally:
            self._on_their_way -= 1

    async def _deliver(self, text: str, change: MinIdChange) -> None:
        ext = {"minBrokerId": str(change.broker_id), "brokerName": change.broker_name, "minBrokerAddr": change.address}
        if change.offline_address:
            ext["offlineBrokerAddr"] = change.offline_address
        if change.ha_address:
            ext["haBrokerAddr"] = change.ha_address
        frame = encode_frame(RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext, flag=ONEWAY_FLAG))
        try:
            with trio.fail_after(NOTICE_SECONDS):
                stream = await self.network.open_stream(Address.parse(text))
                async with stream:
                    await stream.send_all(frame)
        except (OSError, ValueError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.warning("broker_not_notified", broker=change.broker_name, address=text, reason=str(error))
