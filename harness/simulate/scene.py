"""The parts of a simulated run of whole nodes: machines, the processes on them, and what clients share.

A process runs until it is stopped, killed or loses power, and may be started again on what its disk has then.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, Generic, TypeVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import Namesrv, open_namesrv
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.dispatcher import Dispatcher, Handler, RunHandler, WaitingHandler
from ledgermq.remoting.server import ServerConnection
from ledgermq.testing.history import End, History, Put
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.world import Machine
from ledgermq.world.network import Address
from ledgermq.world.real import World

NAMESRV = Address("10.0.0.1", 9876)
BROKER_PORT = 10911

Server = TypeVar("Server")


@attrs.define(eq=False)
class Process(Generic[Server]):
    """A server process on its machine."""

    machine: Machine
    serve: Callable[[World], AbstractAsyncContextManager[Server]]
    on_start: Callable[[Server], None] = lambda _: None
    server: Server | None = None
    """The server while it serves; None as soon as its end begins, even if it still stops cleanly."""
    ended_by: End | None = None
    """How the process ended; None while it runs."""
    ended_at: float = -inf
    """When it was last told to end."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _dead: bool = False

    @property
    def host(self) -> str:
        return self.machine.host

    @property
    def clock(self) -> SimClock:
        return self.machine.clock

    @property
    def starts(self) -> bool:
        """Whether the process runs and `server` is not yet set; it may serve requests already."""
        return self.server is None and self.ended_by is None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the server, serve until the process is ended, and close the server."""
        self.ended_by = None
        self._scope, self._stop, self._ended, self._dead = trio.CancelScope(), trio.Event(), trio.Event(), False
        try:
            with self._scope:
                async with self.serve(self.machine.world()) as self.server:
                    self.on_start(self.server)
                    task_status.started()
                    await self._stop.wait()
            left_open = [] if self._dead else self.machine.fabric.left_open(self.host)
            assert not left_open, f"{self.host} has stopped cleanly and left open: {', '.join(left_open)}"
        except BaseException:
            if not self._dead:  # errors of a killed process are ignored
                raise
        finally:
            self.server = None
            self._ended.set()

    async def end(self, end: End) -> None:
        """End the process by a clean stop, a kill or a power cut."""
        self.ended_by, self.ended_at = end, trio.current_time()
        self.server = None  # a process that stops cleanly still works, but it no longer counts as serving
        if end is End.CLEAN:
            self._dead = False
            self._stop.set()
        else:
            self.crash(end)
            self._scope.cancel()
        await self._ended.wait()

    def crash(self, end: End) -> None:
        """Cut the process, or its whole machine, off from disk and network; `end` then ends it."""
        self._dead = True
        if end is End.POWER:
            self.machine.power_cut()
        else:
            self.machine.kill()


@attrs.define(eq=False)
class Node:
    """A broker: its configuration, and the process that runs with it."""

    machine: Machine
    config: BrokerConfig
    on_start: Callable[[Node, Broker], None] = lambda _node, _broker: None
    process: Process[Broker] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.process = Process(
            self.machine,
            lambda world: open_broker(self.config, world),
            lambda broker: self.on_start(self, broker),
        )

    @property
    def broker(self) -> Broker | None:
        """The broker, while it serves."""
        return self.process.server

    @property
    def host(self) -> str:
        return self.machine.host

    @property
    def clock(self) -> SimClock:
        return self.machine.clock

    @property
    def address(self) -> Address:
        return Address(self.host, BROKER_PORT)


@attrs.define(eq=False)
class Scene:
    """All machines of one run, the trace of its events, and what its clients share."""

    rng: random.Random
    fabric: SimFabric
    history: History
    life_seconds: float
    worker_seconds_max: float = 0.0
    nodes: list[Node] = attrs.field(factory=list[Node])
    name_servers: list[Process[Namesrv]] = attrs.field(factory=list[Process[Namesrv]])
    client_hosts: list[str] = attrs.field(factory=list[str])
    trace: list[str] = attrs.field(factory=list[str])
    spare: Node | None = None
    """A broker with another broker name, on which no faults are injected."""
    mended: trio.Event = attrs.field(factory=trio.Event)
    """Set when faults of the surroundings must end."""
    healed: bool = False
    """Whether all faults have ended."""
    requests: Counter[str] = attrs.field(factory=Counter[str])
    """Requests that servers handled without refusing them, by the name of their code."""
    _number: int = 0

    @property
    def epoch(self) -> int:
        """The number of lives of nodes that have ended."""
        return len(self.history.ends)

    @property
    def master(self) -> Node:
        """The node that is, or was last, started as the master."""
        return next(node for node in self.nodes if node.config.broker_id == 0)

    @property
    def slaves(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.master]

    @property
    def copying(self) -> list[Node]:
        """The nodes that tell members a copy of the master's offsets, which may be old, while the master cannot be reached."""
        return self.slaves

    @property
    def serving(self) -> Broker | None:
        """The broker that accepts messages now, or None."""
        return self.master.broker

    def is_master(self, node: Node) -> bool:
        """Whether the node has the tables that all other nodes copy."""
        return node is self.master

    def pause_seconds(self, share: float) -> float:
        """A random pause of a client, up to this share of a node's life."""
        return self.life_seconds * self.rng.random() * share

    def read_seconds(self) -> float:
        """A random pause of a reader of a slave between two reads."""
        return self.life_seconds * self.rng.random() * 0.01

    @property
    def asked(self) -> Node:
        """The node to which an administrator sends the next request."""
        return self.master

    def copies(self, put: Put) -> int | None:
        """How many nodes have a message at the moment when its producer is answered; None if that cannot be judged."""
        # A node that stops cleanly still replicates for a while, and one that starts does before `server` is set.
        stops = any(node.process.ended_by is End.CLEAN or node.process.starts for node in self.nodes)
        # A copy may be lost with a node that has ended since the message was sent, and an answer may have been in transit then.
        ended = any(node.process.ended_at >= put.sent_at for node in self.nodes)
        if ended or self.history.copies == 1 or stops:
            return None
        return sum(_holds(node, put) for node in self.nodes)

    @property
    def namesrv(self) -> str:
        """The list of name servers in the format of settings of clients and brokers."""
        return ";".join(str(Address(process.host, NAMESRV.port)) for process in self.name_servers)

    def note(self, what: str, seconds: float | None = None) -> None:
        """Add a line to the trace, with the time, which must be given outside of the event loop."""
        self.trace.append(f"{trio.current_time() if seconds is None else seconds:10.4f} {what}")

    def next_number(self) -> int:
        """A number for a message, unique in this run."""
        self._number += 1
        return self._number

    def machine(self, host: str) -> Machine:
        machine = Machine.of(host, self.fabric, random.Random(self.rng.getrandbits(64)))  # noqa: S311 - never secrets
        machine.worker_seconds_max = self.worker_seconds_max
        return machine

    def client_world(self) -> World:
        """The world of a client on a new machine."""
        host = f"10.0.2.{len(self.client_hosts)}"
        self.client_hosts.append(host)
        return self.machine(host).world()

    def name_server(self, host: str) -> Process[Namesrv]:
        """A name server on a new machine; it keeps its KV configuration on its disk."""
        config = NamesrvConfig(listen_port=NAMESRV.port, bind_address=host, kv_config_path="kv.json")
        process = Process(self.machine(host), lambda world: open_namesrv(config, world))
        process.on_start = lambda server: self.count_requests(server.dispatcher)
        return process

    def count_requests(self, dispatcher: Dispatcher) -> None:
        """Count the requests that a server handles from now on without refusing them."""
        handlers: dict[int, Handler] = dispatcher._handlers  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        runs: dict[int, RunHandler] = dispatcher._runs  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        waiting: dict[int, WaitingHandler] = dispatcher._waiting  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        for code, handler in handlers.items():
            handlers[code] = self._counted(code, handler)
        for code, run in runs.items():
            runs[code] = self._counted_run(run)
        for code, wait in waiting.items():
            waiting[code] = self._counted_wait(code, wait)

    def _counted(self, code: int, handler: Handler) -> Handler:
        def handle(connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
            answer = handler(connection, request)
            self.requests[RequestCode(code).name] += 1
            return answer

        return handle

    def _counted_run(self, run: RunHandler) -> RunHandler:
        def handle(connection: ServerConnection, requests: list[RemotingCommand]) -> int:
            taken = run(connection, requests)
            self.requests.update(RequestCode(request.code).name for request in requests[:taken])
            return taken

        return handle

    def _counted_wait(self, code: int, wait: WaitingHandler) -> WaitingHandler:
        async def handle(connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
            answer = await wait(connection, request)
            self.requests[RequestCode(code).name] += 1
            return answer

        return handle


def _holds(node: Node, put: Put) -> bool:
    if node.broker is None:
        return False
    log = node.broker.store.log
    if not log.min_offset <= put.physical_offset < log.max_offset:
        return False
    view = log.slice_from(put.physical_offset, log.max_offset - put.physical_offset)
    return b"%d;" % put.number in bytes(view[:200])


def difference(mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> str:
    """The entries of two tables that differ."""
    keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
    return ", ".join(f"{key}: {mine.get(key)} and {theirs.get(key)}" for key in keys)


def tables_of(node: Node) -> dict[str, Mapping[Any, Any]]:
    """The tables that must be equal on every node of a group once all of its log is derived."""
    broker = node.broker
    assert broker is not None
    store, offsets = broker.store, broker.offsets
    return {
        "offsets": {key: offsets.query(key[1], key[0], key[2]) for key in sorted(offsets.entries())},
        "locks": {(group, *row[:-1]): row[-1] for group, _ in broker.locks.groups() for row in broker.locks.rows_of(group)},
        "positions of delayed messages": broker.delay.offsets(),
        # A leader makes a queue before it appends the queue's first message, which may never be committed.
        "queue ends": {key: end for key in sorted(store.queues.table) if (end := store.max_offset(*key))},
        "topics": {name: config.to_json() for name, config in sorted(broker.topics.topics.items())},
        "groups": {name: config.to_json() for name, config in sorted(broker.groups.groups.items())},
        "forbidden topics": dict(broker.groups.forbidden),
        "users": dict(broker.tables.access.users),
        "rights": dict(broker.tables.access.acls),
    }
