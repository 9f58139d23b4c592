"""`python -m harness.processes.stopped`: consumers of each kind as processes that signals stop at random moments.

One member of a group after the other is started and ended by SIGTERM or SIGINT, sometimes by two of them, and sometimes by
SIGKILL, while messages are sent. In its file each notes when it begins to handle a delivery and when it has finished.

1. In the end every message was handled to the end.
2. Of what a member had handled that one signal stopped, nothing is delivered again.
3. Such a member ends with status 0, soon after its slowest handler.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgermq import ConsumeFrom, Message, aio, blocking, open_consumer, open_producer
from ledgermq.client.received import RecordView

from .journal import HandlerFailed, number_of
from .report import VIOLATIONS_SHOWN_MAX, Report, close_directory, drawn_seed, print_line
from .servers import BOOT_SECONDS, running, running_broker, running_namesrv

GROUP, TOPIC, QUEUES = "stopped", "Stopped", 4
KINDS = ("trio", "asyncio", "threads")
HANDLERS = 4
HANDLING_SECONDS = (0.0, 0.02)
SLOW_SECONDS, SLOW_SHARE = 1.0, 0.005
"""Some handlers take so long that others finish far behind them."""
FAILING_SHARE = 0.005
SENT_PER_SECOND = 100
SIGNALS = (signal.SIGTERM, signal.SIGINT)
ENDS = ("one", "one", "one", "two", "kill")
"""How a member ends: by one signal, by two of them, or by SIGKILL."""
ORDERED_ENDS = ("one", "one", "two")
"""The locks of a member that is killed expire after a minute."""
AT_WORK_SECONDS = (0.0, 3.0)
"""After how much time a member is stopped, once it has begun to handle messages."""
EARLY_SHARE = 0.1
"""The share of members that are stopped before they have begun, perhaps while their program still starts."""
END_SECONDS = 30.0
REST_SECONDS = 120.0
"""A message that is not handled this long after the last one was sent fails the run."""


@attrs.define(eq=False)
class Member:
    """What one process has noted in its file."""

    name: str
    end: str
    status: int | None = None
    """Its exit status; None if it has not ended."""
    seconds: float = 0.0
    """How long it took from the first signal to its end."""
    begun: list[tuple[str, int]] = attrs.field(factory=list[tuple[str, int]])
    """Each delivery that it began to handle, by queue and offset."""
    handled: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])
    """The numbers of those that it handled to the end."""

    @property
    def in_order(self) -> bool:
        """Whether one signal stopped it in `run`; before that, a signal ends the program where it is."""
        return self.end == "one" and bool(self.begun)


def read_member(name: str, path: Path, end: str, status: int | None = None, seconds: float = 0.0) -> Member:
    """Read the file of a process; its last line may be cut off."""
    member = Member(name, end, status, seconds)
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            what, queue, offset, number = line.split()
            member.begun += [(queue, int(offset))] if what == "begun" else []
            member.handled |= {(queue, int(offset)): int(number)} if what == "handled" else {}
    return member


def judge(members: Sequence[Member], sent: Sequence[int]) -> list[str]:
    """The violations of the three properties, as sentences."""
    found: list[str] = []
    finished: dict[tuple[str, int], str] = {}
    for member in members:
        again = [each for each in member.begun if each in finished]
        found += [f"{queue}@{offset}, handled by {finished[queue, offset]}, came to {member.name}" for queue, offset in again]
        if member.in_order:
            finished |= dict.fromkeys(member.handled, member.name)
            if member.status != 0 or member.seconds > END_SECONDS:
                found.append(f"{member.name} ended with {member.status} after {member.seconds:.1f} s")
    handled = {number for member in members for number in member.handled.values()}
    return [*found, *(f"message {number} was not handled" for number in sent if number not in handled)]


# ------------------------------------------------------------------------------------------------------- the processes


@attrs.define(eq=False)
class Notes:
    """The file of one process, written line by line, so that a kill loses no line of before."""

    path: Path
    rng: random.Random

    def note(self, what: str, message: RecordView[Any]) -> None:
        line = f"{what} {message.queue.topic}:{message.queue.queue_id} {message.queue_offset} {number_of(message)}\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def begin(self, message: RecordView[Any]) -> float:
        """Note a delivery that has begun; returns how long to handle it."""
        self.note("begun", message)
        return SLOW_SECONDS if self.rng.random() < SLOW_SHARE else self.rng.uniform(*HANDLING_SECONDS)

    def end(self, message: RecordView[Any]) -> None:
        """Note a delivery that is handled to the end, unless its handler fails."""
        if self.rng.random() < FAILING_SHARE:
            raise HandlerFailed
        self.note("handled", message)


def be_member(kind: str, namesrv: str, notes: Notes, *, orderly: bool) -> None:
    """Consume until a signal, as the applications of the manual do."""
    options: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST, "orderly": orderly}

    async def on_trio() -> None:
        async def handle(message: RecordView[Any]) -> None:
            await trio.sleep(notes.begin(message))
            notes.end(message)

        async with open_consumer(namesrv, GROUP, TOPIC, **options) as consumer:
            await consumer.run(handle, concurrency=HANDLERS)

    async def on_asyncio() -> None:
        async def handle(message: RecordView[Any]) -> None:
            await asyncio.sleep(notes.begin(message))
            notes.end(message)

        async with aio.open_consumer(namesrv, GROUP, TOPIC, **options) as consumer:
            await consumer.run(handle, concurrency=HANDLERS)

    def handle(message: RecordView[Any]) -> None:
        time.sleep(notes.begin(message))
        notes.end(message)

    if kind == "trio":
        trio.run(on_trio)
    elif kind == "asyncio":
        asyncio.run(on_asyncio())
    else:
        with blocking.open_consumer(namesrv, GROUP, TOPIC, **options) as consumer:
            consumer.run(handle, concurrency=HANDLERS)


# ------------------------------------------------------------------------------------------------------------ the run


@attrs.define(eq=False)
class StoppedRun:
    """One run: its servers, its producer and its members."""

    directory: Path
    rng: random.Random
    orderly: bool
    report: Report
    sent: list[int] = attrs.field(factory=list[int])
    members: list[Member] = attrs.field(factory=list[Member])

    async def run(self, count: int) -> list[str]:
        """Start and stop `count` members, and then one that handles the rest; returns the violations."""
        settings: dict[str, object] = {"defaultTopicQueueNums": QUEUES, "messageDelayLevel": "1s 1s 1s 1s 1s"}
        async with running_namesrv(self.directory) as server:
            namesrv = str(server.address)
            async with running_broker(self.directory / "store", {**settings, "namesrvAddr": namesrv}):
                async with trio.open_nursery() as sending:
                    await sending.start(self._produce, namesrv)
                    for at in range(count):
                        await self._member(namesrv, f"member-{at}", self.rng.choice(ORDERED_ENDS if self.orderly else ENDS))
                    sending.cancel_scope.cancel()
                await self._member(namesrv, "last", "rest")
        return judge(self.members, self.sent)

    async def _member(self, namesrv: str, name: str, end: str) -> None:
        """Start a member, let it work and stop it."""
        rng, path, kind = self.rng, self.directory / name, self.rng.choice(KINDS)
        options = (f"--namesrv={namesrv}", f"--notes={path}", f"--seed={rng.randrange(1 << 32)}")
        order = ("--orderly",) if self.orderly else ()
        async with running(self.directory, f"--member={kind}", *options, *order, module="harness.processes.stopped") as server:
            if end == "rest":
                with trio.move_on_after(REST_SECONDS):
                    while judge([*self.members, read_member(name, path, end)], self.sent):  # noqa: ASYNC110
                        await trio.sleep(1)
            elif rng.random() >= EARLY_SHARE:
                with trio.fail_after(BOOT_SECONDS):
                    while not path.exists():  # noqa: ASYNC110 - only looking tells
                        await trio.sleep(0.01)
            await trio.sleep(rng.uniform(*AT_WORK_SECONDS))
            stopped_at = time.monotonic()
            server.process.send_signal(signal.SIGKILL if end == "kill" else rng.choice(SIGNALS))
            if end == "two":
                await trio.sleep(rng.uniform(0, SLOW_SECONDS))
                server.process.send_signal(rng.choice(SIGNALS))
            with trio.move_on_after(2 * END_SECONDS):
                await server.process.wait()
            member = read_member(name, path, end, server.process.returncode, time.monotonic() - stopped_at)
        self.members.append(member)
        found = f"{len(member.begun)} deliveries, {len(member.handled)} handled, status {member.status}"
        self.report(f"{name} of {kind}, {end}: {found} after {member.seconds:.2f} s, of {len(self.sent)} sent")

    async def _produce(self, namesrv: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with open_producer(namesrv) as producer:
            task_status.started()
            while True:
                numbers = range(len(self.sent), len(self.sent) + SENT_PER_SECOND // 10)
                await producer.send_many([Message(TOPIC, b"%d;" % number) for number in numbers])
                self.sent += numbers
                await trio.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, or be a member of the run of another process; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.stopped", description=__doc__)
    parser.add_argument("--members", type=int, default=60, help="how many members are stopped (60)")
    parser.add_argument("--orderly", action="store_true", help="consume in order, with locks")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    parser.add_argument("--directory", type=Path, help="where the store and the notes go; a temporary one by default")
    parser.add_argument("--member", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--namesrv", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    seed = drawn_seed(chosen.seed)
    rng = random.Random(seed)  # noqa: S311 - draws moments
    if chosen.member is not None:
        be_member(chosen.member, chosen.namesrv, Notes(chosen.notes, rng), orderly=chosen.orderly)
        return 0
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-stopped-", dir=chosen.directory))
    print_line(f"seed {seed}, in {directory}")
    violations = trio.run(StoppedRun(directory, rng, chosen.orderly, print_line).run, chosen.members)
    for violation in violations[:VIOLATIONS_SHOWN_MAX]:
        print_line(f"  {violation}")
    print_line(f"seed {seed}: {chosen.members} members were stopped, {len(violations)} violations")
    return close_directory(directory, violations)


if __name__ == "__main__":
    sys.exit(main())
