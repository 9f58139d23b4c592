"""Administration of a DLedger group through a broker: hand over leadership, change the members.

One request of our own, which is answered when the change is done. Only the leader can carry it out; any other node answers
which node leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from ...ha.dledger.members import change_members
from ...ha.dledger.node import DLedgerNode
from ...ha.errors import LeadershipLost
from ...ha.raft.errors import Refused
from ...ha.raft.units import PeerId
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...world.network import Address
from ..config import NODE_ID

CHANGE_SECONDS = 60.0
"""How long a request may take before it is answered with a time-out: a new voter has to catch up first."""
TRANSFER_SECONDS = 5.0
"""How long a transfer of leadership may take before it is answered with an error."""
POLL_SECONDS = 0.02
"""How often the leader is checked during a transfer."""


@attrs.define(eq=False)
class DLedgerAdministration:
    """The handler of the request, for one node."""

    node: DLedgerNode

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handler."""
        dispatcher.register_waiting(RequestCode.CHANGE_DLEDGER_GROUP, self.change)

    async def change(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """Carry out the request's `action` (transfer, add, learner or remove) for the node `peer`.

        Raises:
            RequestRefused: the group refuses the action, or it was not done in time; the remark says what is known.
        """
        actions: dict[str, Callable[[PeerId, RemotingCommand], Awaitable[None]]] = {
            "transfer": self._transfer,
            "add": self._add,
            "learner": self._add_learner,
            "remove": self._remove,
        }
        action, peer = request.text("action"), PeerId(request.text("peer"))
        if action not in actions:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"action is one of {', '.join(actions)} (got {action!r:.50})")
        try:
            with trio.fail_after(CHANGE_SECONDS):
                await actions[action](peer, request)
        except trio.TooSlowError:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{action} {peer} was not done within {CHANGE_SECONDS:g} s; {self._so_far(peer)}"
            ) from None
        except (Refused, LeadershipLost) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{action} {peer}: {error}") from error
        return request.response()

    def _so_far(self, peer: PeerId) -> str:
        """Return how far a change has come that was not finished in time, and what to do next."""
        if peer in self.node.replica.core.configuration.learners:
            return (
                f"{peer} is a learner now, and becomes no voter before it has caught up: look at `ledgermq dledger status`, "
                "then add it again or remove it"
            )
        return "it may still be done: look at `ledgermq dledger status`"

    async def _transfer(self, peer: PeerId, _request: RemotingCommand) -> None:
        replica = self.node.replica
        replica.transfer(peer)
        with trio.move_on_after(TRANSFER_SECONDS):
            while replica.is_leader or replica.leading.leader is None:  # noqa: ASYNC110 - an abandoned transfer sets no event
                await trio.sleep(POLL_SECONDS)
        if replica.leading.leader != peer:
            leader = replica.leading.leader or "no node that is known"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{peer} did not take over in time; {leader} leads")

    async def _add(self, peer: PeerId, request: RemotingCommand) -> None:
        await change_members(self.node.replica, {peer: _address(peer, request)}, {}, ())

    async def _add_learner(self, peer: PeerId, request: RemotingCommand) -> None:
        await change_members(self.node.replica, {}, {peer: _address(peer, request)}, ())

    async def _remove(self, peer: PeerId, _request: RemotingCommand) -> None:
        members = self.node.replica.core.configuration.members
        if peer not in members:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{peer} is no member: {', '.join(sorted(members))} are")
        await change_members(self.node.replica, {}, {}, [peer])


def _address(peer: PeerId, request: RemotingCommand) -> Address:
    """The address of a node to be let in, which must be one that a node can have, because the log keeps both."""
    if not NODE_ID.fullmatch(peer):
        refusal = f"a node is a letter and a number, such as n3 (got {peer!r:.100}); nothing was changed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, refusal)
    try:
        address = Address.parse(request.text("address"))
    except ValueError as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"address: {error}; nothing was changed") from error
    if not address.port:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"address: no node listens at {address}; nothing was changed")
    return address
