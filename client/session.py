"""The trio shell under every client: connections, name servers, routes, heartbeats, and requests from servers.

One session belongs to one producer, consumer or admin client and ends with it: leaving `open_session` leaves no task and no
socket behind (RocketMQ `MQClientInstance`, but not shared). As in RocketMQ, routes and heartbeats are due every 30 s.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf

import attrs
import orjson
import trio

from ..message.send_number import KNOWS_NUMBERS_FIELD
from ..remoting.channel import Channel, start_channel
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import CallTimeout, ConnectionLost
from ..remoting.signature import Credentials
from ..world.events import get_logger
from ..world.network import Address
from ..world.real import World
from ..world.tls import ClientTls, TlsNetwork
from . import environment
from .arguments import check_text
from .background import background_nursery
from .errors import (
    ClientError,
    Closed,
    InvalidArgument,
    NoAnswer,
    NoRoute,
    NoRouteReason,
    NotSupported,
    TopicNotExist,
    Unreachable,
    WrongEventLoop,
    refusal,
)
from .name_servers import DEFAULT_NAMESRV_PORT, NameServers, parse_name_servers
from .repeated import Repeated
from .route import AUTO_CREATE_TOPIC, RouteTable, TopicRoute, parse_route
from .subscription import Member, heartbeat

log = get_logger(__name__)

CALL_SECONDS = 3.0
ROUTE_POLL_SECONDS = 30.0
HEARTBEAT_SECONDS = 30.0
HEARTBEATS_MISSED_MAX = 2.5
"""After this many intervals without an answer a client is not healthy; brokers forget it after four."""
CLOSE_SECONDS = 1.0
"""The time limit for unregistering from the brokers when a client is closed, even when it is cancelled."""

AVOID_SECONDS = 5.0
"""For this time after an address could not be connected, readers that have another member avoid it."""

SILENCE_SECONDS = 3.0
"""A member with a pending pull that has sent nothing for this time must answer a heartbeat."""
SILENCE_CHECK_SECONDS = 1.0

PeerHandler = Callable[[Channel, RemotingCommand], RemotingCommand | None]


@attrs.define(eq=False)
class Session:
    """The connections and routes of one client."""

    world: World
    name_servers: tuple[Address, ...]
    nursery: trio.Nursery
    instance: str
    """The part of the client id that distinguishes the clients of one host."""
    routes: RouteTable = attrs.field(factory=RouteTable)
    topics: set[str] = attrs.field(factory=set[str])
    """The topics whose routes are polled."""
    producer_groups: set[str] = attrs.field(factory=set[str])
    members: list[Member] = attrs.field(factory=list[Member])
    handlers: dict[int, PeerHandler] = attrs.field(factory=dict[int, PeerHandler])
    """The handlers of requests from servers, by request code."""
    on_route: list[Callable[[TopicRoute], None]] = attrs.field(factory=list[Callable[[TopicRoute], None]])
    """The functions to call with every new or changed route."""
    credentials: Credentials | None = None
    """What signs all requests; None if they are not signed."""
    local_host: str | None = None
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    route_poll_seconds: float = ROUTE_POLL_SECONDS
    closed: bool = False
    _servers: NameServers = attrs.field(init=False)
    _refreshes: dict[str, _Refresh] = attrs.field(factory=lambda: dict[str, _Refresh]())  # noqa: PLW0108 - it comes below
    """The route requests in progress, by topic."""
    _missed_routes: dict[str, NoRouteReason] = attrs.field(factory=dict[str, NoRouteReason])
    """Topics whose last poll found no route, and why; each reason is logged once."""
    _channels: dict[Address, Channel] = attrs.field(factory=dict[Address, Channel])
    _avoided: dict[Address, float] = attrs.field(factory=dict[Address, float])
    _suspected: set[Address] = attrs.field(factory=set[Address])
    """Brokers that are being checked with a heartbeat."""
    _hanging: set[Address] = attrs.field(factory=set[Address])
    """Brokers that did not answer it, until they do."""
    repeated: Repeated = attrs.field(factory=Repeated)
    """What fails again and again in the loops of this client, by event, broker or topic, and reason."""
    heartbeat_at: float = -inf
    """When a broker last answered a heartbeat, by trio's clock."""
    knows_numbers: set[Address] = attrs.field(factory=set[Address])
    """Brokers that recognise repeated sends by their numbers, as they said in answers to heartbeats."""

    def __repr__(self) -> str:
        return f"<Session {self.client_id} at {self.name_servers_text}>"

    def __attrs_post_init__(self) -> None:
        self._servers = NameServers(self.name_servers, self.ask)

    @property
    def name_servers_text(self) -> str:
        """The addresses of the name servers, joined by `;`."""
        return ";".join(map(str, self.name_servers))

    @property
    def client_id(self) -> str:
        """The id by which brokers and other members identify us: `ip@instance`."""
        return f"{self.local_host or '127.0.0.1'}@{self.instance}"

    def channel_to(self, address: Address) -> Channel:
        """The connection to `address`, which may still be connecting; calls through it are sent in order.

        Raises:
            Closed: the client is closed.
        """
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        if self.closed:
            raise Closed("the client is closed")
        channel = self._channels[address] = start_channel(
            address,
            network=self.world.network,
            nursery=self.nursery,
            on_request=self._answer_peer,
            on_close=self._channel_closed,
            on_connect=self._channel_connected,
            credentials=self.credentials,
        )
        return channel

    async def channel(self, address: Address) -> Channel:
        """The open connection to `address`, opened if necessary; all waiting tasks share one attempt.

        Raises:
            Unreachable: the connection could not be opened.
            Closed: the client is closed.
        """
        channel = self.channel_to(address)
        if not channel.connected:
            try:
                await channel.wait_connected()
            except ConnectionLost as error:
                raise self.failure_of(address, error) from error
        return channel

    async def call(self, address: Address, command: RemotingCommand, timeout_seconds: float = CALL_SECONDS) -> RemotingCommand:
        """Send a request to `address` and return its answer, of any code.

        Raises:
            Unreachable: there is no connection. The request was not sent.
            NoAnswer: the request was sent, but no answer came.
            Closed: the client is closed, or was closed during the call.
        """
        try:
            return await self.channel_to(address).call(command, timeout_seconds)
        except (CallTimeout, ConnectionLost) as error:
            raise self.failure_of(address, error) from error

    def failure_of(self, address: Address, error: CallTimeout | ConnectionLost) -> ClientError:
        """The error that a failed call raises; a connection that may be dead is checked."""
        if self.closed:
            return Closed("the client was closed meanwhile", may_have_been_stored=error.sent)
        if isinstance(error, CallTimeout):
            self._suspect_silent(address, error)
            return NoAnswer(str(address), error.call) if error.sent else Unreachable(str(address), "no connection in time")
        detail = f"the connection was lost: {error.reason}"
        return NoAnswer(str(address), detail) if error.sent else Unreachable(str(address), error.reason)

    async def ask(self, address: Address, command: RemotingCommand, timeout_seconds: float = CALL_SECONDS) -> RemotingCommand:
        """Send a request to `address` and return its answer; raises as `call`, and `Refused` for a code other than success."""
        answer = await self.call(address, command, timeout_seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, str(address))
        return answer

    async def ask_name_server(self, command: RemotingCommand, timeout_seconds: float = CALL_SECONDS) -> RemotingCommand:
        """Ask the name servers until one answers success; see `NameServers.ask`."""
        try:
            while True:
                servers = self._servers
                try:
                    return await servers.ask(command, timeout_seconds)
                except (Unreachable, NoAnswer):
                    if servers is self._servers:
                        raise  # otherwise the application has named other ones meanwhile
        except NotSupported as error:
            if command.code not in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
                raise
            kind = "it is a broker or a controller and no name server"
            remark = f"{kind}; name servers listen on port {DEFAULT_NAMESRV_PORT} by default"
            raise NotSupported(error.code, remark, error.address) from error

    def update_name_servers(self, namesrv: str | Iterable[str]) -> None:
        """Ask other name servers from now on, at once for all routes in use; see `Producer.update_name_servers`."""
        if self.closed:
            raise Closed("the client is closed")
        addresses = parse_name_servers(namesrv)
        before, self.name_servers = self.name_servers, addresses
        self._servers = NameServers(addresses, self.ask)
        log.info("name_servers_changed", name_servers=self.name_servers_text)
        for address in set(before) - set(addresses):
            if address in self._channels:
                self._channels[address].close()
        self.nursery.start_soon(self._refresh_routes)

    async def refresh_route(self, topic: str) -> TopicRoute:
        """Fetch and store the route of `topic`, and call `on_route` if it has changed; concurrent calls share one request.

        Raises:
            NoRoute: the topic is unknown, or no name server answers. The stored route is kept.
            Closed: the client is closed, or was closed during the call.
        """
        if self.closed:
            raise Closed("the client is closed")
        refresh = self._refreshes.get(topic)
        if refresh is None:
            refresh = self._refreshes[topic] = _Refresh()
            self.nursery.start_soon(self._refresh, topic, refresh)
        await refresh.ended.wait()
        if refresh.route is None:
            raise refresh.failure() from refresh.cause
        return refresh.route

    async def _refresh(self, topic: str, refresh: _Refresh) -> None:
        """Fetch a route in a task of its own, so that it continues when a waiting caller is cancelled."""

        def failed(reason: NoRouteReason, cause: Exception, detail: str = "") -> None:
            refresh.failure, refresh.cause = lambda: NoRoute(topic, reason, detail), cause

        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        try:
            answer = await self.ask_name_server(command)
            route = parse_route(topic, orjson.loads(answer.body))
        except TopicNotExist as error:
            failed(NoRouteReason.TOPIC_UNKNOWN, error)
        except ClientError as error:
            failed(NoRouteReason.NAME_SERVER_UNREACHABLE, error, str(error))
        except (ValueError, KeyError, TypeError) as error:
            failed(NoRouteReason.NAME_SERVER_UNREACHABLE, error, f"its answer is not a route: {error}")
        else:
            refresh.route = route
        finally:
            del self._refreshes[topic]
            refresh.ended.set()
        if refresh.route is not None:
            self._take_route(refresh.route)

    async def route_to_create(self, topic: str) -> TopicRoute:
        """The route for the first send to `topic`, which creates it; made from the route of the template topic.

        Raises:
            NoRoute: the brokers do not create topics, or there are no brokers.
        """
        try:
            template = await self.refresh_route(AUTO_CREATE_TOPIC)
        except NoRoute as error:
            if error.reason is NoRouteReason.TOPIC_UNKNOWN:
                known = await self.ask_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
                # The body is not strict JSON, so we only search it for a broker name.
                no_broker = b'"brokerName"' not in known.body
                reason = NoRouteReason.NO_BROKER if no_broker else NoRouteReason.TOPIC_UNKNOWN
                raise NoRoute(topic, reason) from error
            raise NoRoute(topic, error.reason, str(error)) from error
        return template.as_template_for(topic)

    def avoid(self, address: Address) -> None:
        """Record that `address` could not be connected, so that readers avoid it for `AVOID_SECONDS`."""
        self._avoided[address] = trio.current_time() + AVOID_SECONDS

    def avoided(self) -> frozenset[Address]:
        """The addresses that readers should avoid now."""
        if self._avoided:
            now = trio.current_time()
            self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        return frozenset(self._hanging | self._avoided.keys()) if self._avoided or self._hanging else frozenset()

    def open_channels(self) -> list[Channel]:
        """The open connections to brokers."""
        return [
            channel
            for address, channel in self._channels.items()
            if channel.connected and not channel.closed and address not in self.name_servers
        ]

    def problems(self) -> list[str]:
        """What keeps this client from the brokers that it knows, in sentences; none if it knows no broker."""
        if not self.routes.members():
            return []
        if not self.open_channels():
            return ["no broker is connected"]
        silence = trio.current_time() - self.heartbeat_at
        if silence > HEARTBEATS_MISSED_MAX * self.heartbeat_seconds:
            return ["no broker has answered a heartbeat" + (f" for {silence:.0f} s" if silence < inf else "")]
        return []

    async def heartbeat_everywhere(self) -> None:
        """Send a heartbeat to all brokers, and wait for their answers; failures are logged."""
        addresses = self.routes.members() if self.members else self.routes.masters()
        async with trio.open_nursery() as nursery:
            for address in dict.fromkeys(addresses):
                nursery.start_soon(self.send_heartbeat, address)

    async def send_heartbeats(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await trio.sleep(self.heartbeat_seconds)
            await self.heartbeat_everywhere()

    async def poll_routes(self) -> None:
        """Refresh the routes of `topics` until cancelled; a route that a name server does not know (now) is kept."""
        while True:
            await trio.sleep(self.route_poll_seconds)
            await self._refresh_routes()

    async def _refresh_routes(self) -> None:
        for topic in sorted(self.topics):
            try:
                await self.refresh_route(topic)
                self._missed_routes.pop(topic, None)
            except NoRoute as error:
                if error.reason is NoRouteReason.TOPIC_UNKNOWN and topic not in self.routes.routes:
                    continue  # it does not exist yet, such as the retry topic of a group without failures
                if self._missed_routes.get(topic) is not error.reason:
                    log.warning("route_not_refreshed", topic=topic, reason=error.reason.name)
                    self._missed_routes[topic] = error.reason
            except Closed:
                return
        if self.topics <= self.routes.routes.keys():
            self.routes.forget(AUTO_CREATE_TOPIC)  # not needed any more, and it would keep its brokers in the table
        self._close_offline_channels()

    async def watch_members(self) -> None:
        """Detect members that hang while readers wait for them, until cancelled.

        A broker that hangs looks like one that holds a pull. If readers have another member to read from, a heartbeat
        distinguishes the two.
        """
        while True:
            await trio.sleep(SILENCE_CHECK_SECONDS)
            since = trio.current_time() - SILENCE_SECONDS
            for channel in self.open_channels() if self.members else ():
                silent = channel.waiting and channel.received_at <= since
                if silent and self.routes.has_other_members(channel.address):
                    self._watch(channel.address)

    def _suspect_silent(self, address: Address, error: CallTimeout) -> None:
        """Check whether a connection is dead on which nothing came since a call that got no answer.

        If the peer vanished or a middlebox dropped the connection silently, it would stay open on this side for ever.
        """
        channel = self._channels.get(address)
        if channel is None or not error.silent or self.closed:
            return
        if address in self.name_servers or not error.sent:
            channel.close()  # a name server that does not answer at once will not answer at all
        else:
            self._watch(address)

    def _watch(self, address: Address) -> None:
        if address not in self._suspected and not self.closed:
            self._suspected.add(address)
            self.nursery.start_soon(self._suspect, address)

    async def _suspect(self, address: Address) -> None:
        """Close a connection whose peer does not answer a heartbeat; readers avoid that broker until it does."""
        if not await self._answers(address):
            log.warning("hanging_broker_left", broker=str(address), silence_seconds=SILENCE_SECONDS + CALL_SECONDS)
            while self.members and self.routes.has_other_members(address):
                self._hanging.add(address)
                await trio.sleep(SILENCE_CHECK_SECONDS)
                if await self._answers(address):
                    log.info("hanging_broker_answered", broker=str(address))
                    break
            self._hanging.discard(address)
        self._suspected.discard(address)

    async def _answers(self, address: Address) -> bool:
        """Whether a broker answers a heartbeat; if not, its connection is closed, which fails all pending calls."""
        try:
            await self._call_heartbeat(address)
        except (CallTimeout, ConnectionLost) as error:
            channel = self._channels.get(address)
            if channel is not None and (isinstance(error, ConnectionLost) or error.silent):
                channel.close()
            return False
        except ClientError:
            return False
        return True

    async def unregister(self) -> None:
        """Unregister our groups from all connected brokers."""
        groups = [("producerGroup", group) for group in sorted(self.producer_groups)]
        groups += [("consumerGroup", member.group) for member in self.members]
        async with trio.open_nursery() as nursery:
            for channel in self.open_channels():
                nursery.start_soon(self._unregister, channel, groups)

    async def _unregister(self, channel: Channel, groups: list[tuple[str, str]]) -> None:
        for name, group in groups:
            command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, name: group})
            try:
                await channel.call(command, CLOSE_SECONDS)
            except (CallTimeout, ConnectionLost) as error:
                log.debug("unregister_failed", broker=str(channel.address), reason=str(error))
                return

    async def send_heartbeat(self, address: Address) -> None:
        """Send a heartbeat to one broker; failures are logged."""
        if not self.producer_groups and not self.members:
            return
        try:
            answer = await self._call_heartbeat(address)
        except (ClientError, CallTimeout, ConnectionLost) as error:
            log.warning("heartbeat_failed", broker=str(address), reason=str(error))
            if isinstance(error, CallTimeout) and error.silent and address in self._channels:
                self._channels[address].close()
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning("heartbeat_refused", broker=str(address), code=answer.code, remark=answer.remark)

    async def _call_heartbeat(self, address: Address) -> RemotingCommand:
        # We connect first, because the client id contains our address on the connection.
        channel = await self.channel(address)
        body = orjson.dumps(heartbeat(self.client_id, sorted(self.producer_groups), self.members))
        answer = await channel.call(RemotingCommand(RequestCode.HEART_BEAT, body=body), CALL_SECONDS)
        if answer.code == ResponseCode.SUCCESS:
            self.heartbeat_at = trio.current_time()
        if answer.ext.get(KNOWS_NUMBERS_FIELD) == "true":
            self.knows_numbers.add(address)
        else:
            self.knows_numbers.discard(address)
        return answer

    def _take_route(self, route: TopicRoute) -> None:
        if self.routes.update(route):
            log.debug("route_changed", topic=route.topic, brokers=[broker.name for broker in route.brokers])
            for listener in self.on_route:
                listener(route)

    def _close_offline_channels(self) -> None:
        known = {*self.name_servers, *self.routes.members()}
        for address, channel in list(self._channels.items()):
            if address not in known and not channel.waiting:  # an administrator asks brokers that are in no route here
                log.info("offline_broker_dropped", broker=str(address))
                channel.close()

    def _channel_connected(self, channel: Channel) -> None:
        self._avoided.pop(channel.address, None)
        if channel.local is not None:
            self.local_host = self.local_host or channel.local.host
        if channel.address not in self.name_servers and not self.closed:
            self.nursery.start_soon(self.send_heartbeat, channel.address)

    def _channel_closed(self, channel: Channel) -> None:
        address = channel.address
        if self._channels.get(address) is channel:
            del self._channels[address]
        if not channel.connected and not self.closed:
            self.avoid(address)
            if self.members and self.routes.has_other_members(address):
                self._watch(address)

    def _answer_peer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        handler = self.handlers.get(request.code)
        if handler is None:
            remark = f"request code {request.code} is not supported by this client"
            return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return handler(channel, request)


def _was_closed() -> ClientError:
    return Closed("the client was closed meanwhile")


@attrs.define(eq=False)
class _Refresh:
    """One route request; without an answer it ends when the client is closed."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    route: TopicRoute | None = None
    failure: Callable[[], ClientError] = _was_closed
    cause: Exception | None = None


def _check_event_loop() -> None:
    if trio.lowlevel.in_trio_run():
        return
    asyncio = sys.modules.get("asyncio")
    in_asyncio = asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - the one that never raises
    running = "asyncio runs this task" if in_asyncio else "no event loop of trio runs here"
    raise WrongEventLoop(
        f"this client runs on trio, but {running}: open it in a task of trio.run(...), "
        "or use ledgermq.aio in asyncio and ledgermq.blocking in plain threads"
    )


@asynccontextmanager
async def open_session(
    namesrv: str | Iterable[str] | None,
    world: World,
    *,
    instance_name: str | None = None,
    tls: bool | ClientTls | None = None,
    credentials: Credentials | None = None,
) -> AsyncGenerator[Session]:
    """A session for the length of an `async with` block.

    Args:
        namesrv: as `parse_name_servers` reads it; None for what the environment says, as below.
        world: the network, clock, randomness and disk to use.
        instance_name: replaces the random part of the client id.
        tls: whether every connection is encrypted, also to name servers; `True` accepts any certificate, as RocketMQ does.
        credentials: what signs every request.

    Raises:
        WrongEventLoop: the caller is not a task of trio.
        InvalidArgument: an address or a name is invalid.
    Cancellation: unregisters from the brokers within `CLOSE_SECONDS`, then closes everything.
    """
    _check_event_loop()
    namesrv, tls = environment.NAMESRV.value(namesrv), environment.TLS_CONFIG.value(tls)
    instance_name, credentials = environment.instance_name_of(instance_name), environment.credentials_of(credentials)
    if instance_name is not None:
        check_text("instance_name", instance_name)
    if not isinstance(tls, bool | ClientTls):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from the application
        raise InvalidArgument(f"tls must be True, False or a ClientTls (got {tls!r})")
    if credentials is not None and not isinstance(credentials, Credentials):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"credentials must be Credentials(user, password) (got a {type(credentials).__name__})")
    if namesrv is None:
        raise InvalidArgument(f"a client needs name servers: give namesrv=HOST:PORT, or set ${environment.NAMESRV.name}")
    name_servers = parse_name_servers(namesrv)
    if tls:
        settings = ClientTls() if tls is True else tls
        world = attrs.evolve(world, network=TlsNetwork(world.network, settings, world.workers))
    rng = world.randomness
    instance = instance_name or f"{rng.getrandbits(16)}#{rng.getrandbits(48)}"
    async with background_nursery() as nursery:
        # Each client begins with a random name server, which balances them, and stays with one that answers.
        first = rng.randrange(len(name_servers))
        session = Session(world, name_servers[first:] + name_servers[:first], nursery, instance, credentials=credentials)
        nursery.start_soon(session.poll_routes)
        nursery.start_soon(session.send_heartbeats)
        nursery.start_soon(session.watch_members)
        try:
            yield session
        finally:
            session.closed = True
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await session.unregister()
