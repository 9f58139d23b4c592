"""`python -m harness.processes.fuzz`: malformed frames against a real broker, which must keep serving in bounded memory.

Each connection sends frames that must be answered or ignored, then one that must close it. Meanwhile some connections stop in
the middle of a frame and some send one very slowly, for the whole run; a probe sends and reads ordinary messages, which must
all be acknowledged and stored at the end.
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

import attrs
import orjson
import trio

from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import History

from ..outcome import Outcome
from .load import PULL_SETTINGS, QUEUES, Load
from .malformed import FRAME_SIZE_MAX, KINDS, Fate, Kind
from .report import VIOLATIONS_SHOWN_MAX, Report, drawn_seed, print_line
from .servers import ServerProcess, running_broker

WORKERS = 8
FRAMES_PER_RUN = 60
SILENT = 40
TRICKLES = 8
TRICKLE_SECONDS = 0.02
PROBE_SECONDS = 0.01
ANSWER_SECONDS = 60.0
"""A frame without an answer after this time counts as unanswered; a busy machine may need seconds."""
STEPS = 10
"""The frames are sent in this many equal parts. Memory is measured after each, when no frame is in flight; the first part fills
caches and creates topics and groups, so growth is counted from its end."""
SAMPLE_SECONDS = 0.5

_RUN = tuple(kind for kind in KINDS if kind.fate is not Fate.CLOSED)
_LAST = tuple(kind for kind in KINDS if kind.fate is Fate.CLOSED)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@attrs.define(eq=False)
class Traffic:
    """What was sent, and how the broker reacted."""

    frames: int = 0
    connections: int = 0
    answers: Counter[int] = attrs.field(factory=Counter[int])
    """How many answers had each code."""
    resident: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    """Frames sent and private memory in bytes at that moment, before the first step and after each."""
    resident_max: int = 0
    """The largest sample of memory, including those taken while frames were in flight."""
    probes: int = 0
    probe_seconds_max: float = 0.0

    @property
    def grown_bytes(self) -> int:
        """How much private memory grew after the first step."""
        sizes = self._after_first_step
        return max(sizes) - sizes[0]

    @property
    def steadily_grown_bytes(self) -> int:
        """How much it would have grown if it had grown in every step as in the median one.

        What is kept of each frame makes every step grow; the heap's reserve grows only when large frames find it too small.
        """
        steps = [after - before for before, after in pairwise(self._after_first_step)]
        return round(median(steps) * len(steps))

    @property
    def _after_first_step(self) -> list[int]:
        return [size for _, size in self.resident[1:]]

    def summary(self) -> str:
        mib = 1 << 20
        series = ", ".join(f"{size / mib:.1f}" for _, size in self.resident)
        return (
            f"{self.frames} malformed frames on {self.connections} connections; private memory at the start and after each "
            f"{self.frames // STEPS} frames: {series} MiB, {self.resident_max / mib:.1f} MiB at most; "
            f"{self.probes} messages of the probe, slowest {self.probe_seconds_max * 1000:.0f} ms"
        )


@attrs.define(eq=False)
class Fuzz:
    """One run against one broker."""

    broker: ServerProcess
    rng: random.Random
    report: Report = lambda _: None
    outcome: Outcome = attrs.field(factory=lambda: Outcome(History(sync_flush=False)))
    """The result of the run; its faults are the malformed frames by kind."""
    traffic: Traffic = attrs.field(factory=Traffic)
    load: Load = attrs.field(init=False)
    _opaque: int = 0

    def __attrs_post_init__(self) -> None:
        self.load = Load(self.outcome.history, self.rng, body_bytes_max=100)

    async def run(self, frames: int) -> None:
        """Send this many frames, and judge the result."""
        started = time.monotonic()
        async with trio.open_nursery() as around:
            for _ in range(SILENT):
                around.start_soon(self._fall_silent)
            for _ in range(TRICKLES):
                around.start_soon(self._trickle)
            around.start_soon(self._probe)
            around.start_soon(self._sample)
            self._look_at_memory()
            for step in range(1, STEPS + 1):
                await self._send_all(frames * step // STEPS)
                self._look_at_memory()
            around.cancel_scope.cancel()
        await self._check_probe()
        self.outcome.seconds = time.monotonic() - started

    def _look_at_memory(self) -> None:
        self.traffic.resident.append((self.traffic.frames, self.broker.resident_bytes))
        self.report(f"{self.traffic.frames} frames, {self.traffic.resident[-1][1] / (1 << 20):.1f} MiB")

    async def _send_all(self, frames: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._keep_going, frames)

    async def _keep_going(self, frames: int) -> None:
        while self.traffic.frames < frames:
            run = [self.rng.choice(_RUN) for _ in range(self.rng.randint(0, FRAMES_PER_RUN))]
            last = self.rng.choice(_LAST)
            self.traffic.frames += len(run) + 1
            self.traffic.connections += 1
            self.outcome.faults.update(kind.name for kind in (*run, last))
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    await self._one_connection(run, last)
            except trio.TooSlowError:
                self._violated(f"no answer or no end within {ANSWER_SECONDS} s: {[kind.name for kind in (*run, last)]}")
            except OSError as error:
                self._violated(f"{error!r} while sending {[kind.name for kind in (*run, last)]}")

    async def _one_connection(self, run: list[Kind], last: Kind) -> None:
        connection = await self._connect()
        with connection:
            expected: dict[int, str] = {}
            parts: list[bytes] = []
            for kind in run:
                self._opaque = self._opaque + 1 & 0x3FFFFFFF
                parts.append(kind.draw(self.rng, self._opaque))
                if kind.fate is Fate.ANSWERED:
                    expected[self._opaque] = kind.name
            async with trio.open_nursery() as nursery:
                # Concurrently with reading: the server may wait until we read its answers before it reads more.
                nursery.start_soon(_send_what_goes, connection, b"".join(parts))
                left = await self._take_answers(connection, expected)
            if left:
                self._violated(f"closed instead of answered: {left}")
                return
            await _send_what_goes(connection, last.draw(self.rng, 1))
            with suppress(ConnectionError):
                if await connection.recv(1 << 16):
                    self._violated(f"answered instead of closed: {last.name}")

    async def _take_answers(self, connection: trio.socket.SocketType, expected: dict[int, str]) -> list[str]:
        """Read until everything expected is answered; returns the kinds of the frames that were not."""
        received = bytearray()
        while expected:
            try:
                more = await connection.recv(1 << 18)
            except ConnectionError:
                break
            if not more:
                break
            received += more
            at = 0
            while len(received) - at >= 8 and len(received) - at >= 4 + (size := int.from_bytes(received[at : at + 4])):
                code, opaque = _code_and_opaque(bytes(received[at + 4 : at + 4 + size]))
                self.traffic.answers[code] += 1
                if expected.pop(opaque, None) is None:
                    self._violated(f"an answer with the opaque {opaque}, which nobody waits for")
                at += 4 + size
            del received[:at]
        return list(expected.values())

    def _violated(self, violation: str) -> None:
        self.outcome.violations.append(violation)
        self.report(violation)

    # ------------------------------------------------------------------------------------------------- concurrent clients

    async def _connect(self) -> trio.socket.SocketType:
        connection = trio.socket.socket()
        # Closing resets the connection and leaves no port in TIME_WAIT, since there are fewer ports than connections.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        try:
            await connection.connect((self.broker.address.host, self.broker.address.port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _fall_silent(self) -> None:
        with await self._connect() as connection:
            whole = self.rng.choice(_RUN).draw(self.rng, 1)
            await _send(connection, whole[: self.rng.randint(1, min(len(whole), 100) - 1)])
            await trio.sleep_forever()

    async def _trickle(self) -> None:
        with await self._connect() as connection:
            await _send(connection, struct.pack(">iI", FRAME_SIZE_MAX - 4, 100))
            while True:
                await _send(connection, b" " * self.rng.randint(1, 3))
                await trio.sleep(TRICKLE_SECONDS)

    async def _sample(self) -> None:
        while True:
            self.traffic.resident_max = max(self.traffic.resident_max, self.broker.resident_bytes)
            await trio.sleep(SAMPLE_SECONDS)

    async def _probe(self) -> None:
        try:
            async with connected(self.broker.address, network=self.load.network) as channel:
                while True:
                    began = time.monotonic()
                    queue = QUEUES[self.traffic.probes % len(QUEUES)]
                    answer = await self.load.send(channel, self.load.numbered(queue))
                    if answer.code != ResponseCode.SUCCESS:
                        self._violated(f"the probe was answered {answer.code}: {answer.remark}")
                    await self.load.read_on(channel, queue)
                    self.traffic.probe_seconds_max = max(self.traffic.probe_seconds_max, time.monotonic() - began)
                    self.traffic.probes += 1
                    await trio.sleep(PROBE_SECONDS)
        except RemotingError as error:
            self._violated(f"the probe failed: {error}")

    async def _check_probe(self) -> None:
        snapshot = await self.load.look(self.broker.address)
        snapshot.epoch += 1  # the checkers then require everything acknowledged until now
        self.load.history.snapshots.append(snapshot)
        violations = check_history(self.load.history) + self.load.skipped
        violations += await self.load.read_to_the_end(self.broker.address, snapshot)
        for violation in violations:
            self._violated(violation)


async def _send(connection: trio.socket.SocketType, content: bytes) -> None:
    at = 0
    while at < len(content):
        at += await connection.send(memoryview(content)[at:])


async def _send_what_goes(connection: trio.socket.SocketType, content: bytes) -> None:
    with suppress(ConnectionError):  # closed before everything was sent, which the reader detects
        await _send(connection, content)


def _code_and_opaque(frame: bytes) -> tuple[int, int]:
    """The code and opaque of an answer frame, which is given without its length."""
    if frame[0]:
        code, _, _, opaque = struct.unpack_from(">hbhi", frame, 4)
        return code, opaque
    header = orjson.loads(frame[4 : 4 + int.from_bytes(frame[1:4])])
    return header["code"], header["opaque"]


async def fuzz_broker(directory: Path, frames: int, seed: int, report: Report = lambda _: None) -> Fuzz:
    """Start a broker and send it malformed frames."""
    async with running_broker(directory / "store", PULL_SETTINGS) as broker:
        fuzz = Fuzz(broker, random.Random(seed), report)  # noqa: S311 - draws frames
        await fuzz.run(frames)
        violations = fuzz.outcome.violations
        if (status := await broker.stop()) != 0:
            violations.append(f"the broker stopped with exit status {status}")
        if logged := [line for line in broker.errors.splitlines() if '"level": "error"' in line]:
            violations += [f"{len(logged)} errors were logged, among them:", *sorted(set(logged))[:5]]
    return fuzz


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many malformed frames are sent (1000000)")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    chosen = parser.parse_args(arguments)
    seed = drawn_seed(chosen.seed)
    print_line(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="ledgermq-fuzz-") as directory:
        run = trio.run(fuzz_broker, Path(directory), int(chosen.frames), seed, print_line)
    outcome, traffic = run.outcome, run.traffic
    for violation in outcome.violations[:VIOLATIONS_SHOWN_MAX]:
        print_line(f"  {violation}")
    for name, number in sorted(outcome.faults.items()):
        print_line(f"{number:>9} {name}")
    print_line(f"answers by code: {dict(sorted(traffic.answers.items()))}")
    print_line(f"seed {seed}, {outcome.seconds:.0f} s, {len(outcome.violations)} violations: {traffic.summary()}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
