"""`python -m harness.processes.edge`: whole requests at a name server, a controller and a pair of brokers with many topics.

Strangers, which are hostile clients, draw requests of every code (`requests.py`) and send them in runs to all four servers,
with and without reading the answers. They send random bytes to the port for slaves, and answer what a broker asks its clients.
Meanwhile an ordinary client sends and reads. The run fails if a turn of an event loop takes more than `TURN_MS_MAX` of CPU
time, memory exceeds the stated bounds, a log has an unexpected error, or something is no longer served at the end. With
`--full-states` the tables of the brokers are filled first (`full_states.py`), and acts that use them are drawn.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import attrs
import orjson
import trio

from ledgermq.message.json import loads
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.server import ServerLimits
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import History
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports
from ledgermq.world.network import Address, TcpNetwork

from .full_states import ACTS, SETTINGS, FullStates, Sizes, with_metrics
from .load import PULL_SETTINGS, QUEUES, Load
from .report import VIOLATIONS_SHOWN_MAX, Report, close_directory, drawn_seed, print_line
from .requests import (
    BROKER,
    CONTROLLER,
    HEAVY_BROKER,
    HEAVY_CONTROLLER,
    HEAVY_NAMESRV,
    NAMESRV,
    SEND_FIELDS,
    Whole,
    draw_answer,
    draw_heavy,
    draw_request,
)
from .servers import ServerProcess, running_broker, running_controller, running_namesrv

TOPICS = 10_000
TURN_MS_MAX = 100
"""The most CPU time of one turn of an event loop, in milliseconds; a longer turn fails the run."""
RESIDENT_BYTES_MAX = ServerLimits().partial_bytes_max + ServerLimits().all_unsent_bytes_max + (512 << 20)
"""The most memory of a server: its bounds for all connections, and 512 MiB for its tables and one request."""
OLD_GARBAGE_MAX = 1000
"""The most old objects in cycles that a server may leave, for instance of connections that ended just now."""
WORKERS = 6
RUN_MAX = 40
COPIES, COPIES_SHARE = 300, 0.02
"""One run in fifty is one request repeated `COPIES` times, for instance for a message of four megabytes."""
HEAVY_SHARE = 0.05
"""One run in twenty consists of requests that take long for their size."""
LARGE_BYTES, LARGE_SHARE = 4_000_000, 4
"""The size of a stored message that strangers query, and the weight of that query when a request code is drawn."""
READ_SECONDS = 0.5
"""How long a stranger waits for answers; some do not arrive, such as those to held pulls."""
PROBE_SECONDS = 0.02
ASK_SECONDS = 5.0
SAMPLE_SECONDS = 0.25
SETTLE_SECONDS = 90.0
SECRET = "shared-by-the-pair"  # noqa: S105 - used by servers of one run only


class NotSettled(Exception):
    """The name server or the slave does not know both brokers and the last topic, or no controller leads; it says which."""


@attrs.define(eq=False)
class Watched:
    """One server whose turns and memory are measured."""

    name: str
    server: ServerProcess
    turns: Path
    requests: tuple[Whole, ...]
    heavy: tuple[Whole, ...]
    resident_max: int = 0
    skipped: int = 0
    """How many characters of `turns` were written before the strangers started."""

    def long_turns(self) -> list[tuple[int, str, str]]:
        """The long turns as CPU milliseconds, kind and task, the longest first."""
        lines = self.turns.read_text()[self.skipped :].splitlines() if self.turns.exists() else []
        found = [json.loads(line) for line in lines]
        return sorted(((turn["cpu_ms"], turn["what"], turn["task"]) for turn in found), reverse=True)


@attrs.define(eq=False)
class EdgeRun:
    """What one run did and found."""

    violations: list[str] = attrs.field(factory=list[str])
    frames: Counter[str] = attrs.field(factory=Counter[str])
    """How many requests were sent to each server."""
    answers: Counter[int] = attrs.field(factory=Counter[int])
    acts: Counter[str] = attrs.field(factory=Counter[str])
    """How often each act on full states was carried out."""
    probes: int = 0
    longest: dict[str, list[tuple[int, str, str]]] = attrs.field(factory=dict[str, list[tuple[int, str, str]]])
    resident: dict[str, int] = attrs.field(factory=dict[str, int])
    garbage: dict[str, int] = attrs.field(factory=dict[str, int])
    """How many old objects of each server were garbage in cycles at the end."""
    seconds: float = 0.0

    def summary(self) -> str:
        """One line for the page of results."""
        memory = ", ".join(f"{name} {size / (1 << 20):.0f} MiB" for name, size in self.resident.items())
        steps = {name: max((ms for ms, what, _ in turns if what == "step"), default=0) for name, turns in self.longest.items()}
        turns = ", ".join(f"{name} {ms} ms" for name, ms in steps.items())
        return (
            f"{sum(self.frames.values())} requests ({dict(self.frames)}), {sum(self.answers.values())} answers in "
            f"{self.seconds:.0f} s; longest turns: {turns}; most memory: {memory}; "
            f"old garbage in cycles: {self.garbage}; {self.probes} messages of the probe; "
            f"{sum(self.acts.values())} acts on full states; "
            f"{len(self.violations)} violations"
        )


@attrs.define(eq=False)
class Edge:
    """Strangers and an ordinary client of four servers."""

    namesrv: Watched
    master: Watched
    slave: Watched
    controller: Watched
    rng: random.Random
    report: Report
    turn_ms_max: int = TURN_MS_MAX
    run: EdgeRun = attrs.field(factory=EdgeRun)
    load: Load = attrs.field(init=False)
    _opaque: int = 0

    def __attrs_post_init__(self) -> None:
        self.load = Load(History(sync_flush=False), self.rng, body_bytes_max=100)

    @property
    def servers(self) -> tuple[Watched, ...]:
        return self.namesrv, self.master, self.slave, self.controller

    async def prepare(self) -> None:
        """Create ten thousand topics, and wait until the slave and the name server have them."""
        async with connected(self.master.server.address, network=TcpNetwork()) as channel:
            for start in range(0, TOPICS, 1000):
                topics = [
                    {"topicName": f"kept-{n}", "readQueueNums": 4, "writeQueueNums": 4} for n in range(start, start + 1000)
                ]
                body = orjson.dumps({"topicConfigList": topics})
                answer = await channel.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body), 60)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            large = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(SEND_FIELDS), bytes(LARGE_BYTES))
            answer = await channel.call(large, 60)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        offset = str(int(answer.ext["msgId"][-16:], 16))
        for watched in (self.master, self.slave):
            watched.requests += (Whole(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}),) * LARGE_SHARE
        await self._settle()
        for watched in self.servers:
            watched.skipped = len(watched.turns.read_text()) if watched.turns.exists() else 0

    async def _settle(self) -> None:
        """Wait until the name server lists both brokers with the last topic, the slave has that topic, and a controller leads.

        Raises:
            NotSettled: they do not within `SETTLE_SECONDS`.
        """
        missing = "nothing was asked"
        with trio.move_on_after(SETTLE_SECONDS):
            while missing := await self._missing():  # noqa: ASYNC110 - other processes set no events here
                await trio.sleep(0.5)
            return
        raise NotSettled(missing)

    async def _missing(self) -> str:
        """What is missing; empty if name server and slave know both brokers and the last topic, and a controller leads."""
        topic = {"topic": f"kept-{TOPICS - 1}"}
        try:
            async with connected(self.namesrv.server.address, network=TcpNetwork()) as channel:
                route = await channel.call(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic), 60)
            async with connected(self.slave.server.address, network=TcpNetwork()) as channel:
                copied = await channel.call(RemotingCommand(RequestCode.GET_TOPIC_CONFIG, topic), 60)
            async with connected(self.controller.server.address, network=TcpNetwork()) as channel:
                group = await channel.call(RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO), 60)
        except RemotingError as error:
            return f"an answer: {error!r}"
        if route.code != ResponseCode.SUCCESS:
            return f"the topic at the name server, which answers {route.code}: {route.remark}"
        if copied.code != ResponseCode.SUCCESS:
            return f"the topic at the slave, which answers {copied.code}: {copied.remark}"
        if group.ext.get("isLeader") != "true":
            return f"the leader of the controllers, of which {group.ext} is known"
        listed = {address for each in loads(route.body)["brokerDatas"] for address in each["brokerAddrs"].values()}
        unlisted = {str(self.master.server.address), str(self.slave.server.address)} - listed
        return f"{sorted(unlisted)} at the name server, which lists {sorted(listed)}" if unlisted else ""

    async def attack(self, seconds: float, full: FullStates | None = None) -> None:
        """Run the strangers for this many seconds, and meanwhile acts on the full states, if there are any."""
        began = time.monotonic()
        async with trio.open_nursery() as around:
            if full is not None:
                around.start_soon(self._use, full)
            around.start_soon(self._probe)
            around.start_soon(self._ask_for_routes)
            around.start_soon(self._sample)
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as strangers:
                    for _ in range(WORKERS):
                        strangers.start_soon(self._stranger)
                    strangers.start_soon(self._stranger_of_slaves)
            around.cancel_scope.cancel()
        self.run.seconds = time.monotonic() - began

    async def _use(self, full: FullStates) -> None:
        """Draw acts on the full states, one after the other, until cancelled."""
        while True:
            try:
                act = self.rng.choice(ACTS)
                await act(full)
                self.run.acts[act.__name__] += 1
            except* RemotingError:  # a stranger has deleted something, or the broker closed a connection with too many answers
                await full.mend()
            await trio.sleep(self.rng.random())

    async def _stranger(self) -> None:
        while True:
            watched = self.rng.choice(self.servers)
            try:
                await self._one_connection(watched)
            except OSError as error:
                self._violated(f"{watched.name}: {error!r}")
                await trio.sleep(1)

    async def _one_connection(self, watched: Watched) -> None:
        stream = await trio.open_tcp_stream(watched.server.address.host, watched.server.address.port)
        received = bytearray()
        async with stream:
            for _ in range(self.rng.choice((1, 1, 3))):
                frames: list[bytes] = []
                for _ in range(self.rng.randint(1, RUN_MAX)):
                    self._opaque = self._opaque + 1 & 0x3FFFFFFF
                    frames.append(draw_request(self.rng, watched.requests, self._opaque))
                if self.rng.random() < HEAVY_SHARE:
                    frames = [draw_heavy(self.rng, watched.heavy, self._opaque) for _ in range(self.rng.randint(1, 4))]
                elif self.rng.random() < COPIES_SHARE:
                    frames = frames[:1] * COPIES
                self.run.frames[watched.name] += len(frames)
                with suppress(trio.BrokenResourceError), trio.move_on_after(30):
                    if self.rng.random() < 0.05:  # this stranger does not read answers
                        with trio.move_on_after(READ_SECONDS):
                            await stream.send_all(b"".join(frames))
                        await trio.sleep(READ_SECONDS)
                        return
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_send_what_goes, stream, b"".join(frames))
                        await self._take_answers(stream, len(frames), received)
                        nursery.cancel_scope.cancel()

    async def _take_answers(self, stream: trio.SocketStream, expected: int, received: bytearray) -> None:
        with suppress(trio.BrokenResourceError), trio.move_on_after(READ_SECONDS) as waiting:
            while expected > 0:
                more = await stream.receive_some(1 << 18)
                if not more:
                    return
                waiting.deadline = trio.current_time() + READ_SECONDS
                received += more
                at = 0
                while len(received) - at >= 8 and len(received) - at >= 4 + (size := int.from_bytes(received[at : at + 4])):
                    code, opaque, is_answer = _head_of(bytes(received[at + 4 : at + 4 + size]))
                    at += 4 + size
                    if is_answer:
                        expected -= 1
                        self.run.answers[code] += 1
                    elif self.rng.random() < 0.7:
                        with suppress(trio.BusyResourceError):
                            await stream.send_all(draw_answer(self.rng, opaque))
                del received[:at]

    async def _stranger_of_slaves(self) -> None:
        """Send random bytes to the port for slaves, which follows that for clients."""
        address = self.master.server.address
        while True:
            with suppress(OSError, trio.BrokenResourceError):
                stream = await trio.open_tcp_stream(address.host, address.port + 1)
                async with stream:
                    content = self.rng.choice((b"\xff" * 1000, bytes(16), self.rng.randbytes(5000), b"\x01" + bytes(70_000)))
                    await stream.send_all(content)
                    with trio.move_on_after(READ_SECONDS):
                        await stream.receive_some(1000)
            await trio.sleep(READ_SECONDS)

    async def _probe(self) -> None:
        try:
            async with connected(self.master.server.address, network=TcpNetwork()) as channel:
                while True:
                    await self._probe_once(channel)
                    await trio.sleep(PROBE_SECONDS)
        except RemotingError as error:
            self._violated(f"the probe failed: {error}")

    async def _probe_once(self, channel: Channel) -> None:
        queue = QUEUES[self.run.probes % len(QUEUES)]
        answer = await self.load.send(channel, self.load.numbered(queue))
        if answer.code != ResponseCode.SUCCESS:
            self._violated(f"the probe was answered {answer.code}: {answer.remark}")
        await self.load.read_on(channel, queue)
        self.run.probes += 1

    async def _ask_for_routes(self) -> None:
        """Ask for the last topic again and again; it may not be missing for longer than `SETTLE_SECONDS`."""
        known, reported = trio.current_time(), False
        while True:
            if not (missing := await self._missing()):
                known, reported = trio.current_time(), False
            elif not reported and trio.current_time() > known + SETTLE_SECONDS:
                self._violated(f"for {SETTLE_SECONDS:.0f} s this was missing: {missing}")
                reported = True
            await trio.sleep(ASK_SECONDS)

    async def _sample(self) -> None:
        while True:
            for watched in self.servers:
                watched.resident_max = max(watched.resident_max, watched.server.resident_bytes)
            await trio.sleep(SAMPLE_SECONDS)

    def _violated(self, violation: str) -> None:
        self.run.violations.append(violation)
        self.report(violation)

    async def judge(self) -> None:
        """Check that everything is still served, and read the servers' logs and long turns."""
        try:
            await self._settle()
        except NotSettled as error:
            self._violated(f"{SETTLE_SECONDS:.0f} s after the strangers left, this is missing: {error}")
        try:
            snapshot = await self.load.look(self.master.server.address)
        except RemotingError as error:
            self._violated(f"the master does not answer any more: {error}")
        else:
            snapshot.epoch += 1  # the checkers then require everything acknowledged until now
            self.load.history.snapshots.append(snapshot)
            for violation in check_history(self.load.history) + self.load.skipped:
                self._violated(violation)
        for watched in self.servers:
            self._judge_one(watched)
            await self._judge_garbage(watched)
            if (status := await watched.server.stop()) != 0:
                self._violated(f"{watched.name} stopped with exit status {status}")

    async def _judge_garbage(self, watched: Watched) -> None:
        """Check that what has grown old in a server is not left in cycles, which it does not collect."""
        path = watched.turns.with_suffix(".garbage")
        watched.server.process.send_signal(signal.SIGUSR1)
        with trio.fail_after(ASK_SECONDS * 6):
            while not path.exists() or not path.read_text():  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.1)
        found = json.loads(path.read_text())
        self.run.garbage[watched.name] = found["objects"]
        if found["objects"] > OLD_GARBAGE_MAX:
            self._violated(f"{watched.name}: {found['objects']} old objects are garbage in cycles: {found['kinds']}")

    def _judge_one(self, watched: Watched) -> None:
        turns = self.run.longest[watched.name] = watched.long_turns()
        for ms, what, task in turns:
            if what == "step" and ms > self.turn_ms_max:
                self._violated(f"{watched.name}: a turn of {ms} ms in {task}")
        self.run.resident[watched.name] = watched.resident_max
        if watched.resident_max > RESIDENT_BYTES_MAX:
            self._violated(f"{watched.name}: {watched.resident_max >> 20} MiB of memory")
        errors = {_essence(line) for line in watched.server.errors.splitlines() if _is_unexpected(line)}
        for line in sorted(errors)[:VIOLATIONS_SHOWN_MAX]:
            self._violated(f"{watched.name} logged {line}")


async def _send_what_goes(stream: trio.SocketStream, content: bytes) -> None:
    with suppress(trio.BrokenResourceError, trio.BusyResourceError):
        await stream.send_all(content)


def _head_of(frame: bytes) -> tuple[int, int, bool]:
    """Parse a frame without its length; returns code, opaque and whether it is an answer."""
    if frame[0]:
        code, opaque, flag = (int.from_bytes(frame[at : at + size], signed=True) for at, size in ((4, 2), (9, 4), (13, 4)))
        return code, opaque, bool(flag & 1)
    header = orjson.loads(frame[4 : 4 + int.from_bytes(frame[1:4])])
    return header["code"], header["opaque"], bool(header["flag"] & 1)


def _is_unexpected(line: str) -> bool:
    return '"trace"' in line or "Traceback" in line or "task_failed" in line


def _essence(line: str) -> str:
    """A logged line without the fields that differ each time."""
    try:
        event = json.loads(line)
    except ValueError:
        return line[:400]
    return json.dumps({key: value for key, value in event.items() if key not in ("timestamp", "remote", "not_logged")})[:600]


@asynccontextmanager
async def _opened(
    directory: Path, rng: random.Random, report: Report, more: Mapping[str, object]
) -> AsyncGenerator[tuple[Edge, Address]]:
    """Start the servers; also gives the address at which the master serves its metrics."""
    turns = {name: directory / f"{name}.turns" for name in ("namesrv", "controller", "master", "slave")}
    async with AsyncExitStack() as opened:
        (port,) = opened.enter_context(reserved_ports("127.0.0.1", 1, BROKER_PORTS))
        (metrics_port,) = opened.enter_context(reserved_ports("127.0.0.1", 1))
        start = opened.enter_async_context
        namesrv = await start(running_namesrv(directory / "namesrv", turns["namesrv"]))
        controller = await start(running_controller(directory / "controller", turns["controller"]))
        common = {
            **PULL_SETTINGS,
            "namesrvAddr": str(namesrv.address),
            "haSecret": SECRET,
            "listenPort": 0,
            "diskMaxUsedSpaceRatio": 95,
            "cleanFileForciblyEnable": "false",
            **more,
        }
        settings = {**common, "listenPort": port, **with_metrics(metrics_port)}
        master = await start(running_broker(directory / "master" / "store", settings, turns["master"]))
        follows = {**common, "brokerRole": "SLAVE", "brokerId": 1}
        slave = await start(running_broker(directory / "slave" / "store", follows, turns["slave"]))
        edge = Edge(
            Watched("namesrv", namesrv, turns["namesrv"], NAMESRV, HEAVY_NAMESRV),
            Watched("master", master, turns["master"], BROKER, HEAVY_BROKER),
            Watched("slave", slave, turns["slave"], BROKER, HEAVY_BROKER),
            Watched("controller", controller, turns["controller"], CONTROLLER, HEAVY_CONTROLLER),
            rng,
            report,
        )
        yield edge, Address("127.0.0.1", metrics_port)


async def fuzz_edge(
    directory: Path,
    seconds: float,
    seed: int,
    report: Report = lambda _: None,
    turn_ms_max: int = TURN_MS_MAX,
    full: Sizes | None = None,
) -> EdgeRun:
    """Start all servers, fill the tables of the brokers to these sizes, run strangers against them, and judge."""
    rng = random.Random(seed)  # noqa: S311 - draws requests
    async with _opened(directory, rng, report, SETTINGS if full is not None else {}) as (edge, metrics):
        edge.turn_ms_max = turn_ms_max
        await edge.prepare()
        report(f"{TOPICS} topics are there")
        async with trio.open_nursery() as nursery:
            states = None
            if full is not None:
                states = FullStates(edge.master.server.address, nursery, full, report, metrics)
                await states.fill()
                states.report = lambda _: None  # strangers change what acts find
            await edge.attack(seconds, states)
            nursery.cancel_scope.cancel()
        await edge.judge()
        return edge.run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.edge", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long strangers send (3600)")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    parser.add_argument("--directory", type=Path, help="where stores and logs go; a temporary one by default")
    parser.add_argument("--turn-ms", type=int, default=TURN_MS_MAX, help=f"the longest turn that is allowed ({TURN_MS_MAX})")
    parser.add_argument("--full-states", action="store_true", help="fill the tables of the brokers up to their bounds first")
    chosen = parser.parse_args(arguments)
    full = Sizes() if chosen.full_states else None
    seed = drawn_seed(chosen.seed)
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-edge-", dir=chosen.directory))
    print_line(f"seed {seed}, in {directory}")
    run = trio.run(fuzz_edge, directory, float(chosen.seconds), seed, print_line, chosen.turn_ms, full)
    for name, turns in run.longest.items():
        for ms, what, task in turns[:8]:
            print_line(f"  {name}: {what} of {ms} ms {task}")
    print_line(f"answers by code: {dict(sorted(run.answers.items()))}")
    print_line(f"seed {seed}: {run.summary()}")
    return close_directory(directory, run.violations)


if __name__ == "__main__":
    sys.exit(main())
