"""How name servers come to know this broker (RocketMQ BrokerOuterAPI, registerBrokerAll).

One task per name server, so that a dead one delays nobody: register in full on connecting and every period, and the changed
topics alone as soon as they change. A lost name server is tried again with growing pauses. What a name server answers (who the
master is, which topics are ordered) is taken over.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import orjson
import trio

from ..message.errors import JsonError
from ..message.flags import PERM_READ_WRITE
from ..message.json import loads
from ..remoting.channel import Channel, open_channel
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, wire_fields
from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RemotingError
from ..remoting.server import ServerConnection
from ..world.events import get_logger
from ..world.network import Address, Network
from ..world.supervision import keep_running
from .json_values import object_of
from .live_config import LiveConfig
from .role import LiveRole
from .topics import TopicTable

log = get_logger(__name__)

PERIOD_MS_MIN, PERIOD_MS_MAX = 10_000, 60_000
FIRST_PAUSE_SECONDS = 0.5
CONNECT_SECONDS = 3.0
SEARCH_SECONDS = 1.0
START_SECONDS = 1.0
"""How long a start waits for the first registrations; name servers that are slower are registered with later."""
STOP_SECONDS = 0.3
"""How long a stop gives all name servers together to take the broker off their routes."""
_CRC_MASK = 0x7FFFFFFF
REPLACED_ADDRESS = "replacedBrokerAddr"
"""What our name servers answer with: the address that had our name and id until now."""


@attrs.define(eq=False)
class _Link:
    """The way to one name server."""

    address: Address
    changed: set[str] = attrs.field(factory=set[str])
    """Topics that it has not been told of."""
    asked_again: bool = False
    """Whether it is to be registered with in full now, for what it answers."""
    wake: trio.Event = attrs.field(factory=trio.Event)
    tried: trio.Event = attrs.field(factory=trio.Event)
    """Set after the first attempt, however it went."""
    is_registered: bool = False
    channel: Channel | None = None


@attrs.define(eq=False, kw_only=True)
class Registration:
    """Keeps one broker registered with all its name servers."""

    config: LiveConfig
    network: Network
    role: LiveRole
    topics: TopicTable
    address: str
    """Where clients reach this broker, `host:port`."""
    ha_address: Callable[[], str]
    """Where slaves fetch the log, `host:port`."""
    _links: list[_Link] = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self._links = [_Link(address) for address in self.config.now.name_servers]
        self.topics.on_change.append(self.topics_changed)

    def register(self, dispatcher: Dispatcher) -> None:
        """Enter the handler."""
        dispatcher.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self.min_id_changed)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Tell every name server about these topics as soon as the event loop turns."""
        for link in self._links:
            link.changed.update(names)
            link.wake.set()

    def min_id_changed(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """905: a name server says that another broker of this name has the lowest id now.

        Anybody could say so, and it matters to slaves alone: they ask their own name servers who the master is.
        """
        if self.role.is_replica and request.ext.get("brokerName") == self.config.now.broker_name:
            log.debug(
                "min_broker_id_changed", broker_id=request.ext.get("minBrokerId"), address=request.ext.get("minBrokerAddr")
            )
            self.register_again()
        return request.response()

    def register_again(self) -> None:
        """Register in full with every name server now."""
        for link in self._links:
            link.asked_again = True
            link.wake.set()

    @property
    def registered_with(self) -> list[Address]:
        """Name servers that know this broker."""
        return [link.address for link in self._links if link.is_registered]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stay registered until cancelled; started once every name server has been tried, or `START_SECONDS` have passed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    nursery.start_soon(keep_running, f"registration with {link.address}", partial(self._keep, link))
                with trio.move_on_after(START_SECONDS):
                    for link in self._links:
                        await link.tried.wait()
                task_status.started()

    async def _keep(self, link: _Link) -> None:
        pause = FIRST_PAUSE_SECONDS
        told = False
        while True:
            reason = ""
            async with trio.open_nursery() as nursery:
                try:
                    await self._serve(link, nursery)
                except RemotingError as error:
                    reason = str(error)
                nursery.cancel_scope.cancel()
            if link.is_registered:
                pause, told = FIRST_PAUSE_SECONDS, False
            link.is_registered = False
            if not told:
                log.warning("name_server_lost", address=str(link.address), reason=reason)
                told = True
            link.tried.set()
            await trio.sleep(pause)
            pause = min(pause * 2, self.period_seconds)

    @property
    def period_seconds(self) -> float:
        return min(max(self.config.now.register_name_server_period, PERIOD_MS_MIN), PERIOD_MS_MAX) / 1000

    async def _serve(self, link: _Link, nursery: trio.Nursery) -> None:
        """Stay registered over one connection; ends with the error that ends the connection."""
        channel = link.channel = await open_channel(
            link.address,
            network=self.network,
            nursery=nursery,
            on_close=lambda _: link.wake.set(),
            connect_seconds=CONNECT_SECONDS,
        )
        while True:
            link.changed.clear()
            if link.asked_again or not link.is_registered or await self._is_outdated(channel):
                link.asked_again = False
                accepted = await self._register(channel)
                if accepted and not link.is_registered:
                    log.info("broker_registered", address=str(link.address), topics=len(self.topics.topics))
                link.is_registered = accepted
            link.tried.set()
            # A slave that nobody has told yet where its master is asks again soon: the master may be starting just now.
            searching = self.role.is_replica and not self.role.master_address
            with trio.move_on_after(SEARCH_SECONDS if searching else self.period_seconds):
                await self._tell_changes(link, channel)

    async def _tell_changes(self, link: _Link, channel: Channel) -> None:
        """Register changed topics as they change, until the whole table is asked for."""
        while True:
            await link.wake.wait()
            link.wake = trio.Event()
            if link.asked_again:
                return
            if channel.closed or link.changed:
                names, link.changed = link.changed, set()
                try:
                    link.is_registered = await self._register(channel, names)
                except BaseException:
                    link.changed |= names
                    raise

    async def _is_outdated(self, channel: Channel) -> bool:
        """Ask whether the name server needs the whole table again; asking keeps the broker alive there."""
        if self.config.now.force_register or self.role.is_replica:
            return True  # a slave lives on what a full registration answers
        body = orjson.dumps(self.topics.version.to_json())
        answer = await self._call(channel, RemotingCommand(RequestCode.QUERY_DATA_VERSION, self._identity(), body))
        return answer.code != ResponseCode.SUCCESS or answer.boolean("changed", default=True)

    async def _register(self, channel: Channel, names: Iterable[str] | None = None) -> bool:
        """Register all topics, or some; if the name server does not take some, all. Returns whether it took them.

        Raises:
            RemotingError: no answer.
        """
        body = b'{"filterServerList":[],"topicConfigSerializeWrapper":%b}' % self._wrapper(names)
        ext = {
            **self._identity(),
            **wire_fields(
                {
                    "haServerAddr": self.ha_address(),
                    "bodyCrc32": zlib.crc32(body) & _CRC_MASK,
                    "compressed": False,
                }
            ),
        }
        answer = await self._call(channel, RemotingCommand(RequestCode.REGISTER_BROKER, ext, body))
        if answer.code != ResponseCode.SUCCESS:
            if names is not None:
                return await self._register(channel)
            log.warning("registration_refused", address=str(channel.address), code=answer.code, remark=answer.remark)
            return False
        if (replaced := answer.ext.get(REPLACED_ADDRESS)) is not None:
            # Either of the two has the other's name and id by mistake: clients are sent to whoever registered last.
            log.warning(
                "other_broker_has_our_name",
                broker=self.config.now.broker_name,
                broker_id=self.config.now.broker_id,
                replaced_address=replaced,
                name_server=str(channel.address),
            )
        if names is None:
            self._learn(answer)
        return True

    def _wrapper(self, names: Iterable[str] | None) -> bytes:
        topics, allowed = self.topics, self.config.now.broker_permission
        if allowed & PERM_READ_WRITE == PERM_READ_WRITE:
            return topics.wrapper(names)
        # A broker that may not be read or written says so in every topic, so that clients leave it alone.
        table = {
            name: attrs.evolve(topics.topics[name], perm=topics.topics[name].perm & (allowed | ~PERM_READ_WRITE)).to_json()
            for name in (topics.topics if names is None else names)
            if name in topics.topics
        }
        return orjson.dumps({"dataVersion": topics.version.to_json(), "topicConfigTable": table})

    def _learn(self, answer: RemotingCommand) -> None:
        if self.role.is_replica and (answer.ext.get("masterAddr") or answer.ext.get("haServerAddr")):
            self._learn_master(answer.ext.get("masterAddr", ""), answer.ext.get("haServerAddr", ""))
        if not answer.body:
            return
        try:
            body = loads(answer.body)
        except JsonError as error:
            log.warning("registration_answer_unreadable", reason=str(error))
            return
        if not self.role.is_replica:
            self.topics.mark_ordered(object_of(object_of(body).get("table")))

    def _learn_master(self, address: str, ha_address: str) -> None:
        try:
            for text in (address, ha_address):
                if text:
                    Address.parse(text)
        except ValueError as error:
            log.warning("master_address_refused", address=address, ha_address=ha_address, reason=str(error))
            return
        self.role.learn_master(address, ha_address)

    def _identity(self) -> dict[str, str]:
        return {
            "brokerName": self.config.now.broker_name,
            "brokerAddr": self.address,
            "clusterName": self.config.now.broker_cluster_name,
            "brokerId": str(self.role.broker_id),
        }

    async def _call(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        return await channel.call(command, self.config.now.register_broker_timeout_mills / 1000)

    async def unregister(self) -> None:
        """Stop registering, and take the broker off the routes of every name server that can be reached at once."""
        with trio.move_on_after(STOP_SECONDS):
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    if link.is_registered and link.channel is not None:
                        nursery.start_soon(self._unregister_from, link.channel)
        # Only now: a name server takes the end of the connection it registered on for the loss of the broker.
        self._scope.cancel()

    async def _unregister_from(self, channel: Channel) -> None:
        try:
            await self._call(channel, RemotingCommand(RequestCode.UNREGISTER_BROKER, self._identity()))
        except RemotingError as error:
            log.info("not_unregistered", address=str(channel.address), reason=str(error))
