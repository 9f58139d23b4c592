"""Registration of this broker with its name servers (RocketMQ BrokerOuterAPI, registerBrokerAll).

Each name server has its own task, so that a dead one delays no other. The task registers all topics when it connects and in
every period, and changed topics as soon as they change. A lost name server is tried again with growing pauses. The answers give
a replica the address of its master, and a master the list of ordered topics.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import orjson
import trio

from ..message.data_version import DataVersion
from ..message.errors import JsonError
from ..message.flags import PERM_READ_WRITE
from ..message.json import loads
from ..message.layout import CRC_MASK
from ..remoting.channel import Channel, open_channel
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, wire_fields
from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RemotingError
from ..remoting.registration import CHANGED_TOPICS_ALONE, LEFT_OUT_TOPICS, REPLACED_ADDRESS
from ..remoting.server import ServerConnection
from ..world.clock import Clock
from ..world.events import get_logger
from ..world.network import Address, Network
from ..world.supervision import keep_running
from .json_values import object_of
from .live_config import LiveConfig
from .role import LiveRole
from .tables.topics import TopicTable

log = get_logger(__name__)

PERIOD_MS_MIN, PERIOD_MS_MAX = 10_000, 60_000
"""The bounds of `registerNameServerPeriod` in milliseconds; a value outside is replaced by the nearer bound."""
FIRST_PAUSE_SECONDS = 0.5
"""The pause before a lost name server is tried again; it doubles up to the period."""
CONNECT_SECONDS = 3.0
"""How long opening a connection to a name server may take."""
SEARCH_SECONDS = 1.0
"""How often a replica registers while it does not know its master's address."""
START_SECONDS = 1.0
"""The longest time that a start waits for the first registrations; with slower name servers the broker registers later."""
KNOWN_SECONDS = 1.0
"""The longest time that an answer waits until the name servers know the topic that its request created."""
STOP_SECONDS = 0.3
"""The longest time that a stop waits for all name servers together to unregister the broker."""
ANNOUNCED_AGAIN_SECONDS = (1.0, 3.0, 7.0, 15.0, 31.0)
"""When a topic that was created again after its deletion is registered once more, in seconds after that. An administrator
deletes a topic at the brokers and then at the name servers, where the new topic loses its route with the old one."""
DELETED_KEPT_MAX = 1000
"""How many deleted topics are remembered for that; then the oldest is forgotten."""
NOTICED_SECONDS = 1.0
"""The shortest time between two registrations that peers ask for by NOTIFY_MIN_BROKER_ID_CHANGE, which needs no proof."""


@attrs.define(eq=False)
class _Link:
    """The connection to one name server, and what has to be registered there."""

    address: Address
    changed: set[str] = attrs.field(factory=set[str])
    """Topics whose changes have not been sent yet."""
    changes: int = 0
    """How often topics have changed."""
    known_changes: int = 0
    """The number of changes that the last accepted registration had."""
    asked_again: bool = False
    """Whether a full registration is due now, to report a change or to get its answer."""
    wake: trio.Event = attrs.field(factory=trio.Event)
    tried: trio.Event = attrs.field(factory=trio.Event)
    """Set after the first attempt, whether it succeeded or not."""
    is_registered: bool = False
    channel: Channel | None = None
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """The attempt to connect that goes on, or the pause before the next one."""
    _progress: trio.Event = attrs.field(factory=trio.Event)

    def registered(self, changes: int, *, accepted: bool) -> None:
        """Record the answer to a registration that was sent after this number of changes, or the loss of the name server."""
        self.is_registered = accepted
        if accepted:
            self.known_changes = changes
        self._progress.set()
        self._progress = trio.Event()

    def knows(self, changes: int) -> bool:
        """Whether the name server has accepted this number of changes; one that is lost or refuses counts as if it had."""
        return not self.is_registered or self.known_changes >= changes

    async def known(self) -> None:
        """Wait until the name server knows all changes until now."""
        changes = self.changes
        while not self.knows(changes):
            await self._progress.wait()


@attrs.define(eq=False, kw_only=True, repr=False)
class Registration:
    """Keeps one broker registered with all its name servers."""

    config: LiveConfig
    network: Network
    clock: Clock
    role: LiveRole
    topics: TopicTable
    address: str
    """The address at which clients reach this broker, `host:port`."""
    ha_address: Callable[[], str]
    """The address at which slaves fetch the log, `host:port`."""
    is_removed: Callable[[], bool] = lambda: False
    """Whether the broker's group has removed it, so that no client should look for it."""
    _links: list[_Link] = attrs.field(init=False)
    _deleted: dict[str, float] = attrs.field(factory=dict[str, float])
    """Topics that were deleted, and when, oldest first; those that have been created again since are in `_again`."""
    _again: dict[str, float] = attrs.field(factory=dict[str, float])
    """Topics that were created again after their deletion, and when; they are announced at the `ANNOUNCED_AGAIN_SECONDS`."""
    _created_again: trio.Event = attrs.field(factory=trio.Event)
    _restricted: tuple[DataVersion, int, bytes] | None = None
    """The body for all topics without a permission that the broker does not give, with its version and permission."""
    _noticed: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self._links = [_Link(address) for address in self.config.now.name_servers]
        self.topics.on_change.append(self.topics_changed)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handler."""
        dispatcher.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self.min_id_changed)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Register these topics with every name server in the next turn of the event loop."""
        names = list(names)
        self._note_deletions(names)
        for link in self._links:
            link.changed.update(names)
            link.changes += 1
            link.wake.set()

    def _note_deletions(self, names: list[str]) -> None:
        """Remember which of the changed topics were deleted, and which of them have been created again."""
        if len(names) > DELETED_KEPT_MAX or self.role.is_replica:
            return  # a whole table was copied or touched
        now = self.clock.monotonic()
        for name in names:
            if name not in self.topics.topics:
                self._deleted.pop(name, None)
                self._again.pop(name, None)
                self._deleted[name] = now
            elif name in self._deleted and now - self._deleted.pop(name) < ANNOUNCED_AGAIN_SECONDS[-1]:
                self._again[name] = now
                self._created_again.set()
        while len(self._deleted) > DELETED_KEPT_MAX:
            del self._deleted[next(iter(self._deleted))]

    async def _announce_again(self) -> None:
        """Register topics that were created again after their deletion once more, until cancelled."""
        while True:
            await self._created_again.wait()
            self._created_again = trio.Event()
            checked = self.clock.monotonic()
            while self._again:
                await trio.sleep(ANNOUNCED_AGAIN_SECONDS[0])
                now = self.clock.monotonic()
                due = [
                    name
                    for name, since in self._again.items()
                    if any(checked < since + seconds <= now for seconds in ANNOUNCED_AGAIN_SECONDS)
                ]
                checked = now
                if due and not self.role.is_replica:
                    self.topics.announce(due)
                self._again = {name: at for name, at in self._again.items() if at + ANNOUNCED_AGAIN_SECONDS[-1] > now}

    def is_known(self) -> bool:
        """Whether `known` would return at once."""
        return all(link.knows(link.changes) for link in self._links)

    async def known(self) -> None:
        """Wait until the name servers with which the broker is registered know the topics of now, at most `KNOWN_SECONDS`.

        Who has sent to a new topic, or has created it, may then ask for its route.
        """
        with trio.move_on_after(KNOWN_SECONDS):
            for link in self._links:
                await link.known()

    def min_id_changed(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """905: a name server reports that another broker of this name now has the lowest id.

        Any peer can send this, and only slaves act on it: they ask their own name servers for the master's address.
        """
        if self.role.is_replica and request.ext.get("brokerName") == self.config.now.broker_name:
            log.debug(
                "min_broker_id_changed", broker_id=request.ext.get("minBrokerId"), address=request.ext.get("minBrokerAddr")
            )
            self._noticed.set()
        return request.response()

    async def _follow_notices(self) -> None:
        """Register again when a name server has sent notice of another lowest id, until cancelled."""
        while True:
            await self._noticed.wait()
            self._noticed = trio.Event()
            self.register_again()
            await trio.sleep(NOTICED_SECONDS)

    def register_again(self) -> None:
        """Register in full with every name server now; what may take long, because one was lost, begins anew."""
        for link in self._links:
            link.asked_again = True
            link.wake.set()
            link.patience.cancel()

    @property
    def registered_with(self) -> list[Address]:
        """The name servers with which this broker is registered."""
        return [link.address for link in self._links if link.is_registered]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stay registered until cancelled; report the start once every name server was tried or `START_SECONDS` have passed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    nursery.start_soon(keep_running, f"registration with {link.address}", partial(self._keep, link))
                nursery.start_soon(keep_running, "registration of topics created again", self._announce_again)
                nursery.start_soon(keep_running, "registration after notices", self._follow_notices)
                with trio.move_on_after(START_SECONDS):
                    for link in self._links:
                        await link.tried.wait()
                task_status.started()

    async def _keep(self, link: _Link) -> None:
        pause = FIRST_PAUSE_SECONDS
        logged = False
        while True:
            reason = ""
            async with trio.open_nursery() as nursery:
                try:
                    await self._serve(link, nursery)
                except RemotingError as error:
                    reason = str(error)
                nursery.cancel_scope.cancel()
            if link.is_registered:
                pause, logged = FIRST_PAUSE_SECONDS, False
            link.registered(0, accepted=False)
            if not logged:
                log.warning("name_server_lost", address=str(link.address), reason=reason)
                logged = True
            link.tried.set()
            with trio.move_on_after(pause) as link.patience:
                await trio.sleep_forever()
            pause = min(pause * 2, self.period_seconds)

    @property
    def period_seconds(self) -> float:
        return min(max(self.config.now.register_name_server_period, PERIOD_MS_MIN), PERIOD_MS_MAX) / 1000

    async def _serve(self, link: _Link, nursery: trio.Nursery) -> None:
        """Stay registered over one connection; raise the error that ends the connection."""
        channel: Channel | None = None
        while channel is None:
            with trio.CancelScope() as link.patience:
                channel = link.channel = await open_channel(
                    link.address,
                    network=self.network,
                    nursery=nursery,
                    on_close=lambda _: link.wake.set(),
                    connect_seconds=CONNECT_SECONDS,
                )
        while True:
            changes = link.changes
            link.changed.clear()
            if self.is_removed():
                link.asked_again = False
                if link.is_registered:
                    await self._unregister_from(channel)
                    link.registered(changes, accepted=False)
            elif link.asked_again or not link.is_registered or await self._is_outdated(channel):
                link.asked_again = False
                accepted = await self._register(channel)
                if accepted and not link.is_registered:
                    log.info("broker_registered", address=str(link.address), topics=len(self.topics.topics))
                link.registered(changes, accepted=accepted)
            link.tried.set()
            # A slave that does not know its master yet registers again soon, because the master may just be starting.
            searching = self.role.is_replica and not self.role.master_address
            with trio.move_on_after(SEARCH_SECONDS if searching else self.period_seconds):
                await self._send_changes(link, channel)

    async def _send_changes(self, link: _Link, channel: Channel) -> None:
        """Register topics when they change, until a full registration is requested."""
        while True:
            await link.wake.wait()
            link.wake = trio.Event()
            if link.asked_again:
                return
            if channel.closed or (link.changed and not self.is_removed()):
                names, link.changed, changes = link.changed, set(), link.changes
                try:
                    link.registered(changes, accepted=await self._register(channel, sorted(names)))
                except BaseException:
                    link.changed |= names
                    raise

    async def _is_outdated(self, channel: Channel) -> bool:
        """Ask whether the name server needs the whole table again; the request also counts as a heartbeat there."""
        if self.config.now.force_register or self.role.is_replica:
            return True  # a slave needs the answer to a full registration
        body = orjson.dumps(self._version.to_json())
        answer = await self._call(channel, RemotingCommand(RequestCode.QUERY_DATA_VERSION, self._identity(), body))
        return answer.code != ResponseCode.SUCCESS or answer.boolean("changed", default=True)

    async def _register(self, channel: Channel, names: Iterable[str] | None = None) -> bool:
        """Register all topics, or only `names`; if the name server refuses these, register all. Return whether it accepted.

        Raises:
            RemotingError: there was no answer.
        """
        body = b'{"filterServerList":[],"topicConfigSerializeWrapper":%b}' % self._wrapper(names)
        ext = {
            **self._identity(),
            **wire_fields(
                {
                    "haServerAddr": self.ha_address(),
                    "bodyCrc32": zlib.crc32(body) & CRC_MASK,
                    "compressed": False,
                    # Who says that it is no acting master is taken for a broker of 5.x: topics of a slave with the lowest id
                    # are listed, so that it can be read although a name server has restarted after its master died.
                    "enableActingMaster": False,
                    CHANGED_TOPICS_ALONE: None if names is None else True,
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
            # Either this broker has replaced the other, or one has the other's name and id by mistake; clients are sent to the
            # one that registered last.
            log.warning(
                "other_broker_has_our_name",
                broker=self.config.now.broker_name,
                broker_id=self.config.now.broker_id,
                replaced_address=replaced,
                name_server=str(channel.address),
            )
        if (left_out := answer.ext.get(LEFT_OUT_TOPICS)) is not None:
            log.warning("topics_not_registered", topics=left_out, name_server=str(channel.address))
        if names is None:
            self._learn(answer)
        return True

    def _wrapper(self, names: Iterable[str] | None) -> bytes:
        topics, allowed = self.topics, self.config.now.broker_permission
        if allowed & PERM_READ_WRITE == PERM_READ_WRITE:
            return topics.wrapper(names, self._version)
        # If the broker may not be read or written, its topics are registered without that permission, so that clients avoid it.
        kept = self._restricted
        if names is None and kept is not None and kept[:2] == (self._version, allowed):
            return kept[2]
        table = {
            name: {**topics.topics[name].to_json(), "perm": topics.topics[name].perm & (allowed | ~PERM_READ_WRITE)}
            for name in (topics.topics if names is None else names)
            if name in topics.topics
        }
        encoded = orjson.dumps({"dataVersion": self._version.to_json(), "topicConfigTable": table})
        if names is None:
            self._restricted = self._version, allowed, encoded
        return encoded

    @property
    def _version(self) -> DataVersion:
        """The version of the registered topics; on the leader of a DLedger group its state version is the leader's term.

        A leader that was deposed may register once more before it knows that. Name servers refuse it in the place of its
        successor, because of the older state; else clients would find no master until the successor's next period.
        """
        version, term = self.topics.version, self.role.state.term if self.role.takes_puts else 0
        return attrs.evolve(version, state_version=term) if term else version

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
        """Stop registering, and unregister from every name server that answers within `STOP_SECONDS`."""
        with trio.move_on_after(STOP_SECONDS):
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    if link.is_registered and link.channel is not None:
                        nursery.start_soon(self._unregister_from, link.channel)
        # Only now, because a name server treats the end of the connection that registered as the loss of the broker.
        self._scope.cancel()

    async def _unregister_from(self, channel: Channel) -> None:
        try:
            await self._call(channel, RemotingCommand(RequestCode.UNREGISTER_BROKER, self._identity()))
        except RemotingError as error:
            log.info("not_unregistered", address=str(channel.address), reason=str(error))
