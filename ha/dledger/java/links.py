"""Connections of the java dialect: remoting requests to and from peers, and requests of DLedger's own clients."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio
import trio.lowlevel

from ....remoting.channel import Channel, connected
from ....remoting.command import RemotingCommand, encode_frame
from ....remoting.dispatcher import Dispatcher
from ....remoting.errors import CallTimeout, RemotingError
from ....remoting.server import RemotingServer, ServerConnection
from ....world.clock import Clock
from ....world.events import get_logger
from ....world.network import Address, Network
from ...errors import HaProtocolError, HaRefused
from ...raft.units import NO_INDEX, LogIndex, PeerId
from . import bodies as java
from .messages import Answer, Answered, Code, HeartBeat, Message, Push, Reply, Request
from .state import refusal_of

log = get_logger(__name__)

CALL_SECONDS = 3.0
"""How long a request waits for its answer, as in DLedger; then the core gets no answer."""
RETRY_SECONDS = 0.2
"""Pause before a peer is dialled again, in seconds."""
REFUSAL_SHOWN_SECONDS = 9.0
"""For how long the status shows why a push of a leader was refused; a leader sends it again within a second."""


@attrs.define(eq=False)
class JavaLink:
    """The connections to one peer: one for votes and heartbeats, one for entries."""

    links: JavaLinks
    peer: PeerId
    address: Address
    channel: Channel | None = None
    bulk: Channel | None = None
    refusal: str | None = None
    refused_index: LogIndex = NO_INDEX
    """The index in the last `raft_entries_refused` of the log."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def connected(self) -> bool:
        return self.channel is not None

    async def run(self) -> None:
        """Keep both connections open until the scope is cancelled."""
        with self.scope:
            while True:
                try:
                    async with (
                        connected(self.address, network=self.links.network) as self.channel,
                        connected(self.address, network=self.links.network) as self.bulk,
                    ):
                        log.info("raft_peer_connected", peer=self.peer, address=str(self.address), lane=0)
                        while not self.channel.closed and not self.bulk.closed:  # noqa: ASYNC110 - no event reports it
                            await trio.sleep(RETRY_SECONDS)
                except* (RemotingError, OSError):
                    pass
                finally:
                    self.channel = self.bulk = None
                await trio.sleep(RETRY_SECONDS)

    async def ask(self, request: Request) -> None:
        """Send a request and deliver its answer, or the lack of one, to the node."""
        answer: Answer | None = None
        lane, channel = (1, self.bulk) if isinstance(request, Push) else (0, self.channel)
        try:
            if channel is not None:
                command = RemotingCommand(java.code_of(request), body=java.encode_request(self.links.group, request))
                received = await channel.call(command, CALL_SECONDS)
                if received.body:  # without a body, the handler was not reached or has failed
                    answer = java.read_answer(received.body)
                    self._note(answer)
        except (RemotingError, HaProtocolError) as error:
            if channel is not None and isinstance(error, CallTimeout) and error.silent:
                # After a long cut, TCP retries so rarely that the connection would stay silent for as long as the cut lasted.
                log.warning("silent_raft_peer_dialled_again", peer=self.peer, address=str(self.address), lane=lane)
                channel.close()
            if not isinstance(request, HeartBeat):
                log.debug("raft_request_unanswered", peer=self.peer, reason=str(error))
        if answer is None:
            await trio.lowlevel.checkpoint()
        try:
            self.links.deliver(Answered(request, answer))
        except HaRefused as error:
            self.links.refused(self.peer, self.address, error)
            self.links.deliver(Answered(request, None))

    def note_refused(self, push: Push) -> None:
        """Log that the peer refuses entries again and again, once for each first one."""
        if push.refused_index not in (NO_INDEX, self.refused_index):
            self.refused_index = push.refused_index
            log.error("raft_entries_refused", peer=self.peer, index=push.refused_index, reason=refusal_of(push.refused_index))

    def _note(self, answer: Answer) -> None:
        reasons = {
            Code.UNKNOWN_GROUP: "is of another group: correct dLegerGroup, or the addresses in dLegerPeers",
            Code.UNKNOWN_MEMBER: "has another id, or does not know this one: correct dLegerSelfId and dLegerPeers on all nodes",
        }
        reason = reasons.get(Code(answer.code)) if answer.code in reasons else None
        if reason is not None and self.refusal is None:
            log.error("raft_connection_refused", peer=self.peer, address=str(self.address), reason=f"the node there {reason}")
        self.refusal = None if reason is None else f"the node at {self.address} {reason}"


@attrs.define(eq=False)
class JavaLinks:
    """All connections of one node."""

    group: str
    own: PeerId
    network: Network
    clock: Clock
    deliver: Callable[[Message], None]
    """Called with each received message; it raises HaRefused if that must be ignored and an operator has to act."""
    clients: ForeignClients | None = None
    """Answers METADATA, APPEND and GET."""
    outgoing: dict[tuple[PeerId, int], JavaLink] = attrs.field(factory=dict[tuple[PeerId, int], JavaLink])
    serves: dict[PeerId, str] = attrs.field(factory=dict[PeerId, str])
    """Empty: DLedger's nodes do not say where their brokers serve clients."""
    _last_refusal: tuple[str, float] = ("", -math.inf)
    """The last reason why a push was refused until an operator acts, and when that was."""
    _nursery: trio.Nursery | None = None

    def follow_members(self, addresses: Mapping[PeerId, Address]) -> None:
        """Keep connections to these peers, and close those to others."""
        for key, link in list(self.outgoing.items()):
            if addresses.get(key[0]) != link.address:
                link.scope.cancel()
                del self.outgoing[key]
        for peer, address in addresses.items():
            if peer != self.own and (peer, 0) not in self.outgoing:
                link = self.outgoing[peer, 0] = JavaLink(self, peer, address)
                if self._nursery is not None:
                    self._nursery.start_soon(link.run)

    def send(self, message: Message) -> None:
        """Send a request to its receiver, or an answer on the connection of its request."""
        if isinstance(message, Reply):
            if message.reason is not None:
                self._note_refusal(message.reason)
            connection, response = message.request.token
            response.body = java.encode_reply(self.group, message)
            connection.push(encode_frame(response))
        elif not isinstance(message, Answered) and self._nursery is not None:
            link = self.outgoing.get((message.to, 0))
            if link is not None:
                if isinstance(message, Push):
                    link.note_refused(message)
                self._nursery.start_soon(link.ask, message)

    def _note_refusal(self, reason: str) -> None:
        """Log why pushes of a leader are refused, once for each reason; the leader sends them again and again."""
        if reason != self._last_refusal[0]:
            log.error("leader_entries_refused", reason=reason)
        self._last_refusal = reason, self.clock.monotonic()

    def refusals(self) -> tuple[str, ...]:
        """Why pushes of a leader are refused at present."""
        reason, last = self._last_refusal
        return (reason,) if self.clock.monotonic() - last < REFUSAL_SHOWN_SECONDS else ()

    async def run(self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; `started` returns the port.

        Raises:
            OSError: the port is in use.
        """
        listeners = list(await self.network.open_listeners(host, port))
        dispatcher = Dispatcher()
        for code in (java.VOTE, java.HEART_BEAT, java.PUSH, java.LEADERSHIP_TRANSFER):
            dispatcher.register(code, self._take, body_bytes_max=java.BODY_BYTES_MAX)
        for code in (java.METADATA, java.APPEND_ENTRY, java.GET):
            dispatcher.register(code, self._serve, body_bytes_max=java.BODY_BYTES_MAX)
        server = RemotingServer(dispatcher, self.network, self.clock)
        async with trio.open_nursery() as nursery:
            self._nursery = dispatcher.nursery = nursery
            try:
                for link in self.outgoing.values():
                    nursery.start_soon(link.run)
                await nursery.start(server.serve, listeners)
                task_status.started(self.network.listener_port(listeners[0]))
                await trio.sleep_forever()
            finally:
                self._nursery = None  # a node that is ending sends and dials no more; its last write may end after this

    def _take(self, connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        """Deliver a request of a peer to the node, unless it is refused."""
        fields = java.read_object(command.body)
        refused = self._refused(command, fields)
        if refused is not None:
            return refused
        request = java.read_request(command.code, fields, self.own, (connection, command.response(200)))
        try:
            self.deliver(request)
        except HaRefused as error:
            self.refused(request.sender, connection.remote, error)
            return command.response(200, body=java.encode_fields({"code": int(Code.UNEXPECTED_ARGUMENT)}))
        return None

    def refused(self, peer: PeerId, address: Address, error: HaRefused) -> None:
        """Log why a request or an answer of a peer was ignored."""
        log.error("raft_connection_refused", peer=peer, address=str(address), reason=str(error))

    def _refused(self, command: RemotingCommand, fields: Mapping[str, Any]) -> RemotingCommand | None:
        """Refuse a request for another node or group, which every handler of DLedger checks first."""
        if fields.get("remoteId") != self.own:
            code = Code.UNKNOWN_MEMBER
        elif fields.get("group") != self.group:
            code = Code.UNKNOWN_GROUP
        else:
            return None
        answer = {key: fields[key] for key in ("group", "leaderId", "localId", "remoteId", "term") if key in fields}
        return command.response(200, body=java.encode_fields({**answer, "code": int(code)}))

    def _serve(self, connection: ServerConnection, command: RemotingCommand) -> RemotingCommand | None:
        fields = java.read_object(command.body)
        refused = self._refused(command, fields)
        if refused is not None or self.clients is None:
            return refused

        response = command.response(200)  # the request may be large, and is not kept while a majority is awaited

        def answer(content: Mapping[str, Any]) -> None:
            response.body = java.encode_fields(content)
            connection.push(encode_frame(response))

        if command.code == java.METADATA:
            answer(self.clients.metadata())
        elif command.code == java.GET:
            answer(self.clients.get(fields))
        else:
            self.clients.append(fields, answer)
        return None


@attrs.define(eq=False)
class ForeignClients:
    """Answers the requests of DLedger's own clients: for the leader, for one entry, and to append one."""

    group: str
    own: PeerId
    leader: Callable[[], PeerId | None]
    addresses: Callable[[], Mapping[PeerId, Address]]
    entry: Callable[[LogIndex], memoryview | None]
    """Returns the committed entry of an index, or None."""
    propose: Callable[[bytes, Callable[[int, LogIndex, int], None]], None]
    """Appends a body; the callback gets a code, an index and a position."""

    def _base(self, code: int) -> dict[str, Any]:
        base = {"code": int(code), "group": self.group, "localId": self.own, "term": -1}
        return base | ({"leaderId": leader} if (leader := self.leader()) is not None else {})

    def metadata(self) -> dict[str, Any]:
        """Return the members of the group and its leader."""
        return self._base(Code.SUCCESS) | {"peers": {peer: str(address) for peer, address in self.addresses().items()}}

    def get(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return one committed entry, as the leader only; a Java node returns any entry that it has."""
        if self.leader() != self.own:
            return self._base(Code.NOT_LEADER) | {"entries": []}
        try:
            entry = self.entry(int(fields.get("beginIndex", NO_INDEX)))
        except (TypeError, ValueError) as error:
            raise HaProtocolError(f"beginIndex is a number: {error}") from error
        if entry is None:
            return self._base(Code.INDEX_OUT_OF_RANGE) | {"entries": []}
        return self._base(Code.SUCCESS) | {"entries": [java.entry_fields(entry)]}

    def append(self, fields: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        """Append one body and answer when a majority has it."""
        try:
            body = b64decode(fields.get("body") or "", validate=True)
        except (TypeError, ValueError) as error:
            raise HaProtocolError(f"the body of an entry is base64: {error}") from error

        def done(code: int, index: LogIndex, position: int) -> None:
            answer(self._base(code) | {"index": index, "pos": position})

        self.propose(body, done)
