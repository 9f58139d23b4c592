"""The master's side of the HA port: accept slaves, push the log to each, keep the books (RocketMQ HAService, HAConnection).

One reader and one writer task per slave. A writer that waits for its slave's socket costs nobody else anything: producers only
wake writers, they never wait for one. Log bytes go from the segment's map into the socket; nothing is done per message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from math import inf

import attrs
import trio
from trio.abc import Listener

from ...message.checksum import crc32
from ...store.commitlog import CommitLog
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.network import Address, Network, Stream
from ...world.randomness import Randomness
from ...world.ticks import next_tick
from ...world.workers import Workers
from ..errors import HaError, WrongDialect
from .acks import Acknowledgements
from .authenticated import AuthenticatedMaster
from .bare import BareMaster
from .epochs import EpochList
from .files import EpochFile
from .layout import NONCE_SIZE, NodeIdentity
from .protocol import MasterCore, MasterFact, SlaveJoined
from .rate import Rate
from .settings import OURS, HaSettings

log = get_logger(__name__)

RECEIVE_BYTES = 64 * 1024
UNSENT_BYTES_MAX = 2 * 1024 * 1024
"""Enough that a slave that reads in bulk finds more while the writer is woken, which is when half of it has left."""
SWEEP_SECONDS = 0.5
"""How often silence is looked for, and heartbeats become due."""
STRANGERS_MAX = 64
"""Connections that have not joined yet; one more ends the oldest, so that strangers cannot keep slaves out."""
FAREWELL_SECONDS = 1.0
EPOCH_RETRY_SECONDS = 5.0
TWIN_SECONDS = 60.0
"""How long a connection that took the place of a living one of the same node keeps it, unless it falls silent."""
FRAMES_TOGETHER = 16
AT_ONCE_BYTES_MAX = 256 * 1024
"""What one connection's receive brings fits in; more may not fit into a socket, and then more puts are sent together anyway."""
COLD_BYTES = 1024 * 1024 * 1024
"""A slave that is further behind reads what may have left the page cache: a worker thread touches those bytes first."""


@attrs.frozen
class SlaveStatus:
    """One slave as the master sees it."""

    address: Address
    broker_id: int | None
    """None for a bare slave, which does not say."""
    appended: int
    flushed: int
    lag_bytes: int
    sent: int
    """End of what has been handed to its connection."""
    sent_per_second: int
    """Bytes, over the last seconds."""
    last_ack_seconds: float
    """Since its last report."""
    in_sync: bool


@attrs.define(eq=False)
class HAConnection:
    """One accepted connection."""

    service: HAService
    stream: Stream
    remote: Address
    core: MasterCore
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    slave: SlaveJoined | None = None
    key: Hashable = None
    appended: int = 0
    flushed: int = 0
    last_ack: float = 0.0
    replaced_at: float = -inf
    """When it took the place of another connection of the same node that had not ended, by the monotonic clock."""
    sent: Rate = attrs.field(factory=Rate)
    _rest: bytes = b""
    """Of a frame that did not leave in one piece; the writer goes on with it."""
    _parked: bool = False
    """The writer has sent all there was."""

    async def run(self) -> None:
        """Serve until either side ends it."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read()
                nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        clock, core, stream = self.service.clock, self.core, self.stream
        try:
            while received := await stream.receive_some(RECEIVE_BYTES):
                facts, answer = core.receive(received, clock.monotonic())
                for fact in facts:
                    self._learn(fact)
                if answer:
                    # The writer sends nothing before the slave has joined, and the core answers nothing after it.
                    await stream.send_all(answer)
        except HaError as error:
            self.refused(error)
            await self._part()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _part(self) -> None:
        farewell = self.core.farewell()  # only before the slave has joined: the writer sends nothing then
        with trio.move_on_after(FAREWELL_SECONDS), contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if farewell:
                await self.stream.send_all(farewell)

    def _learn(self, fact: MasterFact) -> None:
        self.last_ack = self.service.clock.monotonic()
        if isinstance(fact, SlaveJoined):
            self.slave, self.appended = fact, fact.offset
            self.service.joined(self, fact)
        else:
            self.appended, self.flushed = fact.appended, fact.flushed
            self.service.reported(self)

    def refused(self, error: HaError) -> None:
        """Say why a connection is ended by us."""
        if isinstance(error, WrongDialect):
            log.error(
                "ha_peer_speaks_other_protocol", remote=str(self.remote), set_ha_protocol=error.dialect, reason=str(error)
            )
        else:
            log.error("ha_connection_refused", remote=str(self.remote), reason=str(error))

    async def _write(self) -> None:
        service = self.service
        try:
            while True:
                if self._rest:
                    rest, self._rest = self._rest, b""
                    await self.stream.send_all(rest)
                elif not (self.core.ready and await self._transfer()):
                    self._parked = True
                    try:
                        await service.growth.park()
                    finally:
                        self._parked = False
        except HaError as error:
            self.refused(error)
            self.scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.scope.cancel()

    async def _transfer(self) -> bool:
        """Send the next frame, if there is one, else a heartbeat when it is due; returns whether log bytes were sent."""
        service, core, stream = self.service, self.core, self.stream
        size = core.next_size()
        body = service.log.slice_from(core.next_offset, size)
        if not body:
            if beat := core.heartbeat(service.clock.monotonic()):
                await stream.send_all(beat)
            return False
        crc = 0
        if core.checksummed or service.log.max_offset - core.next_offset > COLD_BYTES:
            crc = await self._checksum(body)
        header = core.frame(len(body), crc, service.clock.monotonic())
        service.sent_end = max(service.sent_end, core.next_offset)
        parts: list[bytes | memoryview] = [header, body]
        if len(body) == size and not core.checksummed:
            # RocketMQ's small frames leave many at once: each would cost a system call and a wake-up of the slave.
            while len(parts) < 2 * FRAMES_TOGETHER and (body := service.log.slice_from(core.next_offset, core.next_size())):
                parts += (core.frame(len(body), 0, service.clock.monotonic()), body)
            service.sent_end = max(service.sent_end, core.next_offset)
        await stream.send_parts(parts)
        return True

    def transfer_now(self) -> bool:
        """Send what has just been appended within this turn of the loop, if the slave has confirmed all before it.

        A lone put then waits for no other task. Where more is under way, the writer sends it with what else has come meanwhile.

        Returns: whether all of the log has been sent.
        """
        core, master_log = self.core, self.service.log
        begin, size = core.next_offset, master_log.max_offset - core.next_offset
        idle = self._parked and not self._rest and begin == self.appended
        if not (idle and 0 < size <= AT_ONCE_BYTES_MAX and begin >= master_log.min_offset):
            return False
        body = master_log.slice_from(begin, min(size, core.next_size()))
        crc = crc32(body) if core.checksummed else 0
        frame = core.frame(len(body), crc, self.service.clock.monotonic()) + body
        self.service.sent_end = max(self.service.sent_end, core.next_offset)
        self._rest = frame[self.stream.send_now(frame) :]
        return len(body) == size and not self._rest

    async def _checksum(self, body: memoryview) -> int:
        """CRC-32 of `body`; where it may have left the page cache, a worker thread waits for the disk."""
        if self.service.log.max_offset - self.core.next_offset > COLD_BYTES:
            return await self.service.workers.run(crc32, body)
        return crc32(body)


@attrs.define(eq=False)
class HAService:
    """All slaves of one master."""

    log: CommitLog
    network: Network
    clock: Clock
    workers: Workers
    secrets: Randomness
    """Unpredictable: nonces come from it."""
    settings: HaSettings
    identity: NodeIdentity
    epoch_file: EpochFile
    acks: Acknowledgements
    epochs: EpochList = attrs.field(factory=EpochList)
    port: int = 0
    """Where slaves connect, once `run` has started."""
    sent_end: int = 0
    """End of what any slave can hold of this log: recovered, or sent since."""
    growth: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    """Writers that have sent all there is."""
    connections: dict[HAConnection, None] = attrs.field(factory=dict[HAConnection, None])
    """Open ones, oldest first."""
    _owners: dict[Hashable, HAConnection] = attrs.field(factory=dict[Hashable, HAConnection])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Begin an epoch, then serve slaves until cancelled; the log must have been recovered.

        Raises:
            OSError: the port is taken, or the file of epochs cannot be read. Nothing is served.
            CorruptEpochs: see there. Nothing is served.
        """
        listeners = list(await self._listen())
        self.port = self.network.listener_port(listeners[0])
        # The epoch begins where recovery ended, also if puts come before it could be written down: what lay behind that point
        # on a slave is not what comes now.
        recovered_end = self.sent_end = self.log.max_offset
        begun = await self._begin_epoch(recovered_end)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._serve, listeners, recovered_end, begun)
            log.info("ha_service_started", port=self.port, protocol=self.settings.protocol, replicas=self.settings.replicas)
            task_status.started()

    async def _listen(self) -> Sequence[Listener[Stream]]:
        host, port = self.settings.listen_host, self.settings.listen_port
        try:
            return await self.network.open_listeners(host, port)
        except OSError as error:
            reason = f"{error.strerror or error}: the HA port {port}, which haListenPort sets, is for slaves"
            raise OSError(error.errno, reason) from error

    async def _serve(self, listeners: list[Listener[Stream]], recovered_end: int, begun: bool) -> None:
        while not begun:
            # On a full disk the broker must still start, if only to be read from; slaves wait in the backlog meanwhile.
            await trio.sleep(EPOCH_RETRY_SECONDS)
            begun = await self._begin_epoch(recovered_end)
        await trio.serve_listeners(self._accept, listeners)

    async def _begin_epoch(self, log_end: int) -> bool:
        kept = await self.workers.run(self.epoch_file.load)
        epochs = kept.begun(self.log.min_offset, log_end, self.identity.node, self.settings.replicas)
        try:
            await self.workers.run(self.epoch_file.save, epochs)
        except OSError as error:
            log.error("ha_epoch_not_kept", reason=error.strerror or str(error))
            return False
        self.epochs = epochs
        last = epochs.last
        assert last is not None
        log.info("ha_epoch_begun", epoch=last.number, physical_offset=last.start, replicas=last.replicas)
        return True

    async def _accept(self, stream: Stream) -> None:
        stream.keep_unsent(UNSENT_BYTES_MAX)
        remote = stream.peer
        connection = HAConnection(self, stream, remote, self._core(remote))
        strangers = [one for one in self.connections if one.slave is None]
        if len(strangers) >= STRANGERS_MAX:
            log.warning("ha_strangers_limit_reached", remote=str(strangers[0].remote), strangers_max=STRANGERS_MAX)
            strangers[0].scope.cancel()
        self.connections[connection] = None
        try:
            await connection.run()
        finally:
            del self.connections[connection]
            if self._owners.get(connection.key) is connection:
                del self._owners[connection.key]
                self.acks.leave(connection.key)
                log.info("slave_left", remote=str(remote), appended=connection.appended)
            await trio.aclose_forcefully(stream)

    def _core(self, remote: Address) -> MasterCore:
        settings, now = self.settings, self.clock.monotonic()
        if settings.protocol != OURS:
            return BareMaster(self.log, settings.limits, self._fresh_start, lambda: self.sent_end, now)
        nonce = self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big")
        return AuthenticatedMaster(
            self.log,
            settings.limits,
            self._fresh_start,
            now,
            self.identity,
            settings.secret,
            nonce,
            self.epochs,
            lambda: min(self.acks.confirmed, self.log.readable_offset),  # an answer waits for the flush too
            lambda node: self._twin_of(node, remote),
        )

    def _twin_of(self, node: bytes, remote: Address) -> str | None:
        """Why a node that says who it is may not join: its identity has come by two connections, and the last one lives.

        One node alone may leave a connection behind that has not ended; it does not do so again within seconds.
        """
        former, now = self._owners.get(node), self.clock.monotonic()
        if former is None or now - former.last_ack >= self.settings.limits.heartbeat_seconds * 1.5:
            return None
        if now - former.replaced_at >= TWIN_SECONDS:
            return None
        return (
            f"the slaves at {former.remote} and {remote} have one identity, as a store and its copy have; the first one stays: "
            "stop one of them, and remove haIdentity.json from its store"
        )

    def _fresh_start(self, from_first: bool) -> int:
        """Where a slave with an empty log begins: RocketMQ's last segment, or an earlier one that a waiting put lies in."""
        if from_first or self.settings.from_first:
            return self.log.min_offset
        start = self.acks.unanswered_from(self.log.max_offset)
        return max(start - start % self.settings.limits.segment_size, self.log.min_offset)

    async def _sweep(self) -> None:
        while True:
            await next_tick(SWEEP_SECONDS)
            now = self.clock.monotonic()
            for connection in list(self.connections):
                silence = connection.core.silent_for(now)
                if silence is not None:
                    log.warning("silent_slave_closed", remote=str(connection.remote), silence_seconds=round(silence, 1))
                    connection.scope.cancel()
                elif connection.slave is not None:
                    connection.sent.look(now, connection.core.next_offset)
            self.growth.unpark_all()

    def log_grew(self) -> None:
        """The log has more to send: every writer sends it in its own turn."""
        self.growth.unpark_all()

    def transfer_now(self) -> None:
        """Send what there is to send at once: a put waits for the slaves' acknowledgement."""
        for connection in self._owners.values():
            connection.transfer_now()

    def joined(self, connection: HAConnection, fact: SlaveJoined) -> None:
        """A slave has said who it is and from where on it needs the log."""
        connection.key = key = connection if fact.node is None else fact.node
        former = self._owners.get(key)
        if former is not None:
            connection.replaced_at = self.clock.monotonic()
            # The node has come back before we noticed that it was gone; it counts once, by its new connection.
            log.info("slave_connection_replaced", remote=str(former.remote), new_remote=str(connection.remote))
            former.scope.cancel()
        self._owners[key] = connection
        if fact.node is not None and not self.settings.secret:
            log.warning("ha_secret_not_set", reason="anybody may join as a slave: set haSecret on all nodes")
        log.info(
            "slave_joined",
            remote=str(connection.remote),
            broker_id=fact.broker_id,
            physical_offset=fact.offset,
            lag_bytes=self.log.max_offset - fact.offset,
            fresh=fact.fresh,
        )
        if fact.node is None:
            self.acks.claim(key, fact.offset)
        else:
            self.acks.hold(key, fact.offset)
        self.growth.unpark_all()

    def reported(self, connection: HAConnection) -> None:
        """A slave has said how far it is."""
        if self._owners.get(connection.key) is connection:
            self.acks.hold(connection.key, connection.appended)

    def slaves(self) -> list[SlaveStatus]:
        """All slaves that have joined, as they are now."""
        now, end = self.clock.monotonic(), self.log.max_offset
        return [
            SlaveStatus(
                address=connection.remote,
                broker_id=connection.slave.broker_id,
                appended=connection.appended,
                flushed=connection.flushed,
                lag_bytes=end - connection.appended,
                sent=connection.core.next_offset,
                sent_per_second=connection.sent.per_second,
                last_ack_seconds=now - connection.last_ack,
                in_sync=end - connection.appended < self.acks.gap_max,
            )
            for connection in self._owners.values()
            if connection.slave is not None
        ]
