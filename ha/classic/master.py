"""The master's side of the HA port: accept slaves, send them the log, track what they hold (RocketMQ HAService, HAConnection).

Each slave has a reader and a writer task. A writer that waits for its slave's socket delays nobody else: producers wake writers
and never wait for one. Log bytes go from the segment's map to the socket; no work is done per message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from math import inf

import attrs
import trio
from trio.abc import Listener

from ...message.checksum import crc32
from ...store.log.commitlog import CommitLog
from ...store.offline import LogFile
from ...world.clock import Clock
from ...world.disk import Disk
from ...world.events import get_logger
from ...world.network import Address, Network, Stream, closing
from ...world.randomness import Randomness
from ...world.ticks import next_tick
from ...world.workers import Workers
from ..envelopes import NODE_SIZE, NONCE_SIZE
from ..errors import HaError, WrongDialect
from .acks import Acknowledgements
from .authenticated import AuthenticatedMaster
from .autoswitch import AutoSwitchMaster
from .bare import BareMaster
from .epochs import EpochList
from .files import EpochFile
from .layout import NodeIdentity
from .protocol import MasterCore, MasterFact, SlaveJoined
from .rate import Rate
from .settings import HaSettings

log = get_logger(__name__)

RECEIVE_BYTES = 64 * 1024
UNSENT_BYTES_MAX = 2 * 1024 * 1024
"""The size of a socket's send buffer. The writer is woken when half of it is sent; the rest keeps a fast slave busy."""
SWEEP_SECONDS = 0.5
"""Interval, in seconds, at which silent slaves are disconnected and due heartbeats are sent."""
STRANGERS_MAX = 64
"""How many connections may be open that have not joined; a further one closes the oldest, so that slaves can always join."""
FAREWELL_SECONDS = 1.0
"""Time-out for sending the reason of a refusal; then the connection is closed without it."""
EPOCH_RETRY_SECONDS = 5.0
"""Pause, in seconds, before saving the list of epochs is tried again."""
TWIN_SECONDS = 60.0
"""For this time after a connection replaced another one of the same node, a third one is refused unless it is silent."""
FRAMES_TOGETHER = 16
"""How many full frames of RocketMQ's dialects are sent in one call."""
AT_ONCE_BYTES_MAX = 256 * 1024
"""Up to this size a put is sent in its own turn. It exceeds one receive of a producer; more may not fit into the socket."""
COLD_BYTES = 1024 * 1024 * 1024
"""Bytes for a slave that is further behind may have left the page cache, so a worker thread reads them, and not from a map: one
of a sector that the disk does not give would end the process."""


@attrs.frozen
class SlaveStatus:
    """The master's state of one slave."""

    address: Address
    broker_id: int | None
    """The broker id of the slave; None for a bare slave, which does not send it."""
    appended: int
    flushed: int
    lag_bytes: int
    sent: int
    """The end of the log bytes that were sent on its connection."""
    sent_per_second: int
    """The bytes per second of the last few seconds."""
    last_ack_seconds: float
    """How many seconds ago its last report was received."""
    in_sync: bool


@attrs.define(eq=False, repr=False)
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
    """When it replaced another open connection of the same node, by the monotonic clock."""
    sent: Rate = attrs.field(factory=Rate)
    _rest: bytes = b""
    """The rest of a frame that was sent only in part; the writer sends it."""
    _parked: bool = False
    """Whether the writer has sent everything and waits for more."""
    _file: LogFile | None = None

    async def run(self) -> None:
        """Serve until either side closes the connection."""
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
                    # The writer sends nothing before the slave has joined, and the core answers nothing afterwards.
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
        """Log why the master closes a connection."""
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
        except OSError as error:
            log.error("ha_log_not_readable", remote=str(self.remote), physical_offset=self.core.next_offset, reason=str(error))
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
        if service.log.max_offset - core.next_offset > COLD_BYTES:
            body, crc = await service.workers.run(_read_cold, self._file_at(core.next_offset), core.next_offset, len(body))
        elif core.checksummed:
            crc = crc32(body)
        header = core.frame(len(body), crc, service.clock.monotonic())
        service.sent_end = max(service.sent_end, core.next_offset)
        parts: list[bytes | memoryview] = [header, body]
        if len(body) == size and not core.checksummed:
            # RocketMQ's small frames are sent many at once, because each costs a system call and a wake-up of the slave.
            while len(parts) < 2 * FRAMES_TOGETHER and (body := service.log.slice_from(core.next_offset, core.next_size())):
                parts += (core.frame(len(body), 0, service.clock.monotonic()), body)
            service.sent_end = max(service.sent_end, core.next_offset)
        await stream.send_parts(parts)
        return True

    def transfer_now(self) -> bool:
        """Send what was just appended in this turn of the event loop, if the slave has confirmed everything before it.

        A lone put then waits for no other task. If more is under way, the writer sends it together with later puts.

        Returns: whether the whole log has been sent.
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

    def _file_at(self, offset: int) -> LogFile:
        """The file of the log that has a physical offset; the last one is remembered."""
        file = self._file
        if file is None or not file.start <= offset < file.start + file.size:
            found = next(each for each in self.service.log.files() if each.start <= offset < each.start + each.size)
            file = self._file = LogFile(self.service.disk, found.path, found.start, found.size)
        return file


def _read_cold(file: LogFile, offset: int, size: int) -> tuple[memoryview, int]:
    """Read bytes that may have left the page cache, and their CRC-32; blocks, and raises as `LogFile.read`."""
    body = memoryview(file.read(offset - file.start, size))
    return body, crc32(body)


@attrs.define(eq=False, repr=False)
class HAService:
    """All slaves of one master."""

    log: CommitLog
    disk: Disk
    network: Network
    clock: Clock
    workers: Workers
    secrets: Randomness
    """Unpredictable randomness, for nonces."""
    settings: HaSettings
    identity: NodeIdentity
    epoch_file: EpochFile
    acks: Acknowledgements
    epochs: EpochList = attrs.field(factory=EpochList)
    epoch: int | None = None
    """The epoch for which a controller has elected this master; None where none elects."""
    port: int = 0
    """The port to which slaves connect, once `run` has started."""
    on_refusal: Callable[[str | None], None] = lambda _: None
    """Called with why nothing may be appended now, and with None when all may be."""
    on_fresh_slave: Callable[[int], None] | None = None
    """Called with the physical offset from which on a slave with an empty log is sent the log."""
    sent_end: int = 0
    """The most that a slave can hold of this log: the end at recovery, or what was sent since."""
    growth: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    """Writers that have sent everything and wait for more."""
    connections: dict[HAConnection, None] = attrs.field(factory=dict[HAConnection, None])
    """The open connections, oldest first."""
    _owners: dict[Hashable, HAConnection] = attrs.field(factory=dict[Hashable, HAConnection])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Begin an epoch, then serve slaves until cancelled; the log must have been recovered.

        Raises:
            OSError: the port is taken, or the file of epochs cannot be read. Nothing is served.
            CorruptEpochs: see there. Nothing is served.
        """
        listeners = list(await self._listen())
        self.port = self.network.listener_port(listeners[0])
        recovered_end = self.sent_end = self.log.max_offset
        async with closing(listeners):
            kept = await self.workers.run(self.epoch_file.load)
            begun = await self._begin_epoch(kept, recovered_end)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep)
                nursery.start_soon(self._serve, listeners, kept, recovered_end, begun)
                settings = self.settings
                log.info("ha_service_started", port=self.port, protocol=settings.protocol, replicas=settings.replicas)
                task_status.started()

    async def _listen(self) -> Sequence[Listener[Stream]]:
        host, port = self.settings.listen_host, self.settings.listen_port
        try:
            return await self.network.open_listeners(host, port)
        except OSError as error:
            reason = f"{error.strerror or error}: the HA port {port}, which haListenPort sets, is for slaves"
            raise OSError(error.errno, reason) from error

    async def _serve(self, listeners: list[Listener[Stream]], kept: EpochList, recovered_end: int, begun: bool) -> None:
        while not begun:
            # On a full disk the broker must still start, so that it can be read. Slaves wait in the backlog meanwhile, and
            # nothing is appended: after a crash it would count as part of an earlier epoch, which other nodes have as well.
            await trio.sleep(EPOCH_RETRY_SECONDS)
            begun = await self._begin_epoch(kept, recovered_end)
        await trio.serve_listeners(self._accept, listeners)

    async def _begin_epoch(self, kept: EpochList, log_end: int) -> bool:
        # Drawn anew each time: a node that runs on an older copy of its store begins an epoch where it has begun one before.
        writer = self.secrets.getrandbits(8 * NODE_SIZE).to_bytes(NODE_SIZE, "big")
        epochs = kept.begun(self.log.min_offset, log_end, writer, self.settings.replicas, self.epoch)
        try:
            await self.workers.run(self.epoch_file.save, epochs)
        except OSError as error:
            reason = error.strerror or str(error)
            log.error("ha_epoch_not_kept", reason=reason)
            self.on_refusal(f"the epoch of this master cannot be written down ({reason}), and nothing is stored before that")
            return False
        self.on_refusal(None)
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
                self.acks.leave(self._counted(connection))
                log.info("slave_left", remote=str(remote), appended=connection.appended)
            await trio.aclose_forcefully(stream)

    def _core(self, remote: Address) -> MasterCore:
        settings, now = self.settings, self.clock.monotonic()
        if settings.autoswitch:
            return AutoSwitchMaster(self.log, settings.limits, self._fresh_start, now, self.epochs)
        if settings.bare:
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
            elected=settings.elected,
        )

    def _twin_of(self, node: bytes, remote: Address) -> str | None:
        """Why a node may not join: two living nodes have its identity. None if it may.

        One node may leave an open connection behind when it connects again, but not twice within seconds.
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
        """Where a slave with an empty log begins: at RocketMQ's last segment, or at an earlier one of a waiting put."""
        if from_first or (self.settings.from_first and not self.settings.elected):
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
                    connection.sent.sample(now, connection.core.next_offset)
            self.growth.unpark_all()

    def log_grew(self) -> None:
        """Wake every writer, because the log has grown."""
        self.growth.unpark_all()

    def transfer_now(self) -> None:
        """Send new bytes in this turn, because a put waits for the slaves' acknowledgement."""
        for connection in self._owners.values():
            connection.transfer_now()

    def joined(self, connection: HAConnection, fact: SlaveJoined) -> None:
        """Register a slave that has joined and needs the log from an offset on."""
        # A slave of RocketMQ's controller mode counts once by its broker id; a bare one has no identity at all.
        connection.key = key = fact.node or fact.broker_id or connection
        former = self._owners.get(key)
        if former is not None:
            connection.replaced_at = self.clock.monotonic()
            # The node has connected again before its old connection ended; it counts once, by the new one.
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
        if fact.fresh and self.on_fresh_slave is not None:
            self.on_fresh_slave(fact.offset)
        if fact.node is None and not fact.learner:
            self.acks.claim(self._counted(connection), fact.offset)
        elif not fact.learner:
            self.acks.hold(self._counted(connection), fact.offset)
        self.growth.unpark_all()

    def reported(self, connection: HAConnection) -> None:
        """Count the report of a slave."""
        if self._owners.get(connection.key) is connection and connection.slave is not None and not connection.slave.learner:
            self.acks.hold(self._counted(connection), connection.appended)

    def _counted(self, connection: HAConnection) -> Hashable:
        """As whom the acknowledgements count a slave: controllers know brokers by their ids."""
        assert connection.slave is not None
        return connection.slave.broker_id if self.settings.elected else connection.key

    def slaves(self) -> list[SlaveStatus]:
        """The state of all slaves that have joined."""
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
