"""Notifies replicas that they have another master, or another SyncStateSet (RocketMQ NOTIFY_BROKER_ROLE_CHANGED, 1008).

As in RocketMQ a notice is sent over a new connection to the broker's port, one-way. A replica that it does not reach learns of
the change when it asks the next time.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from ...remoting.codes import RequestCode
from ...remoting.command import ONEWAY_FLAG, RemotingCommand, encode_frame
from ...world.events import get_logger
from ...world.network import Address, Network
from .state import BrokerSet

log = get_logger(__name__)

NOTICE_SECONDS = 3.0
"""How long sending one notice may take before it is given up and logged."""


@attrs.define(eq=False)
class Notices:
    """Sends each notice in a task of its own."""

    network: Network
    nursery: trio.Nursery

    def send(self, one: BrokerSet, recipients: Iterable[int]) -> None:
        """Notify replicas of a broker name, by their ids."""
        code, body = RequestCode.NOTIFY_BROKER_ROLE_CHANGED, one.sync_state_set.body()
        frame = encode_frame(RemotingCommand(code, one.mastership.ext(), body, flag=ONEWAY_FLAG))
        for broker_id in recipients:
            self.nursery.start_soon(self._send, one.name, one.replicas[broker_id].address, frame)

    async def _send(self, name: str, address: str, frame: bytes) -> None:
        try:
            with trio.fail_after(NOTICE_SECONDS):
                stream = await self.network.open_stream(Address.parse(address))
                async with stream:
                    await stream.send_all(frame)
        except (OSError, ValueError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.warning("replica_not_notified", broker=name, address=address, reason=str(error))
