"""The trio shell that every client stands on: connections, name servers, routes, heartbeats, and what servers ask of us.

One session belongs to one producer, consumer or admin client and ends with it: leaving `open_session` leaves no task and no
socket behind (RocketMQ `MQClientInstance`, without its sharing). Times come from RocketMQ: routes and heartbeats every 30 s.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

import attrs
import orjson
import trio

from ..remoting.channel import Channel, start_channel
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import CallTimeout, ConnectionLost
from ..world.events import get_logger
from ..world.network import Address
from ..world.real import World
from ..world.tls import ClientTls, TlsNetwork
from .arguments import check_text
from .background import background_nursery
from .errors import (
    ClientError,
    Closed,
    InvalidArgument,
    NoAnswer,
    NoRoute,
    NoRouteReason,
    TopicNotExist,
    Unreachable,
    WrongEventLoop,
    refusal,
)
from .name_servers import NameServers, parse_name_servers
from .route import AUTO_CREATE_TOPIC, RouteTable, TopicRoute, parse_route
from .subscription import Member, heartbeat

log = get_logger(__name__)

CALL_SECONDS = 3.0
CONNECT_SECONDS = 3.0
ROUTE_POLL_SECONDS = 30.0
HEARTBEAT_SECONDS = 30.0
FAREWELL_SECONDS = 1.0
"""What a client takes at most to say goodbye, even when it is cancelled."""

REST_SECONDS = 5.0
"""How long an address that refused a connection is avoided by readers that have another."""

SILENCE_SECONDS = 3.0
"""After so long without a word from a member that is asked for messages it has to answer a heartbeat."""
SILENCE_LOOK_SECONDS = 1.0

PeerHandler = Callable[[Channel, RemotingCommand], RemotingCommand | None]


@attrs.define(eq=False)
class Session:
    """One client of the cluster."""

    world: World
    name_servers: tuple[Address, ...]
    nursery: trio.Nursery
    instance: str
    """Tells clients of one host apart, in their client id."""
    routes: RouteTable = attrs.field(factory=RouteTable)
    topics: set[str] = attrs.field(factory=set[str])
    """Topics whose routes are kept up to date."""
    producer_groups: set[str] = attrs.field(factory=set[str])
    members: list[Member] = attrs.field(factory=list[Member])
    handlers: dict[int, PeerHandler] = attrs.field(factory=dict[int, PeerHandler])
    """What servers may ask of us, by request code."""
    on_route: list[Callable[[TopicRoute], None]] = attrs.field(factory=list[Callable[[TopicRoute], None]])
    """Called with every route that is new."""
    local_host: str | None = None
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    route_poll_seconds: float = ROUTE_POLL_SECONDS
    closed: bool = False
    _servers: NameServers = attrs.field(init=False)
    _refreshes: dict[str, _Refresh] = attrs.field(factory=lambda: dict[str, _Refresh]())  # noqa: PLW0108 - it comes below
    """Routes that are being asked for, by topic."""
    _channels: dict[Address, Channel] = attrs.field(factory=dict[Address, Channel])
    _resting: dict[Address, float] = attrs.field(factory=dict[Address, float])
    _doubted: set[Address] = attrs.field(factory=set[Address])
    """Brokers that have to answer a heartbeat."""
    _hanging: set[Address] = attrs.field(factory=set[Address])
    """Those that did not, until they do."""

    def __repr__(self) -> str:
        return f"<Session {self.client_id} at {self.name_servers_text}>"

    def __attrs_post_init__(self) -> None:
        self._servers = NameServers(self.name_servers, self.ask)

    @property
    def name_servers_text(self) -> str:
        """The name servers as they are given to a client."""
        return ";".join(map(str, self.name_servers))

    @property
    def client_id(self) -> str:
        """How brokers and other members know us: `ip@instance`."""
        return f"{self.local_host or '127.0.0.1'}@{self.instance}"

    def channel_to(self, address: Address) -> Channel:
        """The connection to `address`, which may still be coming about: calls through it go out in their order.

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
            connect_seconds=CONNECT_SECONDS,
        )
        return channel

    async def channel(self, address: Address) -> Channel:
        """The open connection to `address`, opened if need be; all who wait for it share one attempt.

        Raises:
            Unreachable: no connection came about.
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
        """Ask `address` and return its answer, whatever its code.

        Raises:
            Unreachable: no connection. Nothing was asked.
            NoAnswer: asked, but no answer came.
            Closed: the client is closed, or was meanwhile.
        """
        try:
            return await self.channel_to(address).call(command, timeout_seconds)
        except (CallTimeout, ConnectionLost) as error:
            raise self.failure_of(address, error) from error

    def failure_of(self, address: Address, error: CallTimeout | ConnectionLost) -> ClientError:
        """What a failed call means to its caller; a connection that may be dead is looked after."""
        if self.closed:
            return Closed("the client was closed meanwhile", may_have_been_stored=error.sent)
        if isinstance(error, CallTimeout):
            self._doubt_silent(address, error)
            return NoAnswer(str(address), str(error)) if error.sent else Unreachable(str(address), "no connection in time")
        return NoAnswer(str(address), str(error)) if error.sent else Unreachable(str(address), error.reason)

    async def ask(self, address: Address, command: RemotingCommand, timeout_seconds: float = CALL_SECONDS) -> RemotingCommand:
        """Ask `address` and return its answer; raises like `call`, and `Refused` for a code that is not success."""
        answer = await self.call(address, command, timeout_seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, str(address))
        return answer

    async def ask_name_server(self, command: RemotingCommand, timeout_seconds: float = CALL_SECONDS) -> RemotingCommand:
        """Ask the name servers until one answers success; see `NameServers.ask`."""
        return await self._servers.ask(command, timeout_seconds)

    async def refresh_route(self, topic: str) -> TopicRoute:
        """Ask for the route of `topic`, remember it, and notify `on_route` if it is new; all who ask at once share one answer.

        Raises:
            NoRoute: unknown topic, or no name server. What was known stays known.
            Closed: the client is closed, or was meanwhile.
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
        """Ask for a route in a task of its own, so that it goes on when one of those who wait for it gives up."""

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
        """The route by which a first send creates `topic`, made from that of the template topic.

        Raises:
            NoRoute: brokers do not create topics, or there are none.
        """
        try:
            template = await self.refresh_route(AUTO_CREATE_TOPIC)
        except NoRoute as error:
            if error.reason is NoRouteReason.TOPIC_UNKNOWN:
                known = await self.ask_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
                # The body is not strict JSON; whether it names any broker shows without reading it.
                no_broker = b'"brokerName"' not in known.body
                reason = NoRouteReason.NO_BROKER if no_broker else NoRouteReason.TOPIC_UNKNOWN
                raise NoRoute(topic, reason) from error
            raise NoRoute(topic, error.reason, str(error)) from error
        return template.as_template_for(topic)

    def let_rest(self, address: Address) -> None:
        """Note that `address` did not take a connection, so that readers look elsewhere for a while."""
        self._resting[address] = trio.current_time() + REST_SECONDS

    def resting(self) -> frozenset[Address]:
        """Addresses that are better left alone now."""
        if self._resting:
            now = trio.current_time()
            self._resting = {address: until for address, until in self._resting.items() if until > now}
        return frozenset(self._hanging | self._resting.keys()) if self._resting or self._hanging else frozenset()

    def open_channels(self) -> list[Channel]:
        """Connections to brokers that are open now."""
        return [
            channel
            for address, channel in self._channels.items()
            if channel.connected and not channel.closed and address not in self.name_servers
        ]

    async def heartbeat_everywhere(self) -> None:
        """Tell all brokers that we are here, and wait for their answers; failures are logged."""
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
        """Keep the routes of `topics` up to date until cancelled; what a name server does not know (now) is kept."""
        while True:
            await trio.sleep(self.route_poll_seconds)
            for topic in sorted(self.topics):
                try:
                    await self.refresh_route(topic)
                except NoRoute as error:
                    log.warning("route_not_refreshed", topic=topic, reason=error.reason.name)
                except Closed:
                    return
            if self.topics <= self.routes.routes.keys():
                self.routes.forget(AUTO_CREATE_TOPIC)  # it served its turn, and would keep its brokers alive in the table
            self._close_offline_channels()

    async def watch_members(self) -> None:
        """Notice members that hang while readers wait for them, until cancelled.

        For as long as a pull may be held, a broker that hangs looks like one that holds it. Where readers have another member
        to turn to, a heartbeat tells the two apart.
        """
        while True:
            await trio.sleep(SILENCE_LOOK_SECONDS)
            since = trio.current_time() - SILENCE_SECONDS
            for channel in self.open_channels() if self.members else ():
                silent = channel.waiting and channel.received_at <= since
                if silent and self.routes.has_other_members(channel.address):
                    self._watch(channel.address)

    def _doubt_silent(self, address: Address, error: CallTimeout) -> None:
        """After a call without an answer: find out whether a connection that has been silent since is dead.

        A peer that vanished without a word, or a middlebox that forgot the connection, leaves it open for ever on this side.
        """
        channel = self._channels.get(address)
        if channel is None or not error.silent or self.closed:
            return
        if address in self.name_servers or not error.sent:
            channel.close()  # name servers answer at once or not at all
        else:
            self._watch(address)

    def _watch(self, address: Address) -> None:
        if address not in self._doubted and not self.closed:
            self._doubted.add(address)
            self.nursery.start_soon(self._doubt, address)

    async def _doubt(self, address: Address) -> None:
        """Close a connection whose peer does not answer a heartbeat; readers leave that broker alone until it does."""
        if not await self._answers(address):
            log.warning("hanging_broker_left", broker=str(address), silence_seconds=SILENCE_SECONDS + CALL_SECONDS)
            while self.members and self.routes.has_other_members(address):
                self._hanging.add(address)
                await trio.sleep(SILENCE_LOOK_SECONDS)
                if await self._answers(address):
                    log.info("hanging_broker_answered", broker=str(address))
                    break
            self._hanging.discard(address)
        self._doubted.discard(address)

    async def _answers(self, address: Address) -> bool:
        """Whether a broker answers a heartbeat; if not, calls that wait there end with the connection."""
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
        """Tell the brokers we are connected to that we leave."""
        groups = [("producerGroup", group) for group in sorted(self.producer_groups)]
        groups += [("consumerGroup", member.group) for member in self.members]
        async with trio.open_nursery() as nursery:
            for channel in self.open_channels():
                nursery.start_soon(self._unregister, channel, groups)

    async def _unregister(self, channel: Channel, groups: list[tuple[str, str]]) -> None:
        for name, group in groups:
            command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, name: group})
            try:
                await channel.call(command, FAREWELL_SECONDS)
            except (CallTimeout, ConnectionLost) as error:
                log.debug("unregister_failed", broker=str(channel.address), reason=str(error))
                return

    async def send_heartbeat(self, address: Address) -> None:
        """Tell one broker that we are here; failures are logged."""
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
        # With the channel first, so that the client id has our own address in it.
        channel = await self.channel(address)
        body = orjson.dumps(heartbeat(self.client_id, sorted(self.producer_groups), self.members))
        return await channel.call(RemotingCommand(RequestCode.HEART_BEAT, body=body), CALL_SECONDS)

    def _take_route(self, route: TopicRoute) -> None:
        if self.routes.update(route):
            log.debug("route_changed", topic=route.topic, brokers=[broker.name for broker in route.brokers])
            for tell in self.on_route:
                tell(route)

    def _close_offline_channels(self) -> None:
        known = {*self.name_servers, *self.routes.members()}
        for address, channel in list(self._channels.items()):
            if address not in known:
                log.info("offline_broker_dropped", broker=str(address))
                channel.close()

    def _channel_connected(self, channel: Channel) -> None:
        self._resting.pop(channel.address, None)
        if channel.local is not None:
            self.local_host = self.local_host or channel.local.host
        if channel.address not in self.name_servers:
            self.nursery.start_soon(self.send_heartbeat, channel.address)

    def _channel_closed(self, channel: Channel) -> None:
        address = channel.address
        if self._channels.get(address) is channel:
            del self._channels[address]
        if not channel.connected and not self.closed:
            self.let_rest(address)
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
    """One question for a route; without an answer it ends when the client is closed."""

    ended: trio.Event = attrs.field(factory=trio.Event)
    route: TopicRoute | None = None
    failure: Callable[[], ClientError] = _was_closed
    cause: Exception | None = None


def _check_event_loop() -> None:
    if trio.lowlevel.in_trio_run():
        return
    asyncio = sys.modules.get("asyncio")
    in_asyncio = asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - the one that never raises
    raise WrongEventLoop("asyncio runs this task" if in_asyncio else "no event loop of trio runs here")


@asynccontextmanager
async def open_session(
    namesrv: str | Iterable[str], world: World, *, instance_name: str | None = None, tls: bool | ClientTls = False
) -> AsyncGenerator[Session]:
    """A session for the length of an `async with` block.

    Args:
        namesrv: `host:port`, several joined by `;`, or a sequence of them.
        world: the outside.
        instance_name: replaces the random part of the client id.
        tls: whether every connection is encrypted, to name servers too; `True` believes any certificate, as RocketMQ does.

    Raises:
        WrongEventLoop: trio does not run this task.
        InvalidArgument: an address or a name that cannot be.
    Cancellation: says goodbye to the brokers within `FAREWELL_SECONDS`, then closes everything.
    """
    _check_event_loop()
    if instance_name is not None:
        check_text("instance_name", instance_name)
    if not isinstance(tls, bool | ClientTls):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from the application
        raise InvalidArgument(f"tls must be True, False or a ClientTls (got {tls!r})")
    name_servers = parse_name_servers(namesrv)
    if tls:
        settings = ClientTls() if tls is True else tls
        world = attrs.evolve(world, network=TlsNetwork(world.network, settings, world.workers))
    lots = world.randomness
    instance = instance_name or f"{lots.getrandbits(16)}#{lots.getrandbits(48)}"
    async with background_nursery() as nursery:
        # Clients spread over the name servers, each staying with one that answers.
        first = lots.randrange(len(name_servers))
        session = Session(world, name_servers[first:] + name_servers[:first], nursery, instance)
        nursery.start_soon(session.poll_routes)
        nursery.start_soon(session.send_heartbeats)
        nursery.start_soon(session.watch_members)
        try:
            yield session
        finally:
            session.closed = True
            with trio.CancelScope(shield=True, deadline=trio.current_time() + FAREWELL_SECONDS):
                await session.unregister()
