"""`python -m harness.processes.soak`: half an hour of a service with a master and slave that are killed and paused.

Two name servers are killed and paused too; topics get more and fewer queues, lose their permissions, and are deleted and
created again. In the end each group must have handled every acknowledged message, ordered ones in their order by one member at
a time, and no message may have been delivered again long after the group committed it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import trio

from ledgermq import TopicExists, open_admin
from ledgermq.client.admin import Admin
from ledgermq.client.errors import ClientError
from ledgermq.testing.checkers import check_history
from ledgermq.testing.checkers.consumers import (
    everything_is_handled_at_least_once,
    nothing_committed_is_handed_out_again,
    nothing_is_acknowledged_before_it_was_handled,
    ordered_queues_are_handled_in_order,
    ordered_queues_have_one_owner,
)
from ledgermq.testing.checkers.messages import acknowledged_puts_keep_their_order
from ledgermq.testing.history import Commit, Deletion, End, Queue
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports
from ledgermq.world.events import ROOT_LOGGER
from ledgermq.world.real import real_world

from ..outcome import Outcome
from ..stored_offsets import queue_offset_faults
from .journal import Journal
from .report import VIOLATIONS_SHOWN_MAX, Report, close_directory, drawn_seed, print_line
from .servers import ServerProcess, broker_arguments, running
from .services import DELETED, DELETED_GROUP, ORDERED, PLAIN, SUBSCRIPTIONS, ThreadService, TrioService

QUEUES, QUEUES_MAX = 4, 8
BETWEEN_FAULTS_SECONDS = (5.0, 20.0)
DOWN_SECONDS = (0.5, 15.0)
HANGS_SECONDS = (1.0, 40.0)
SETTLE_SECONDS = 240.0
"""A message that is not handled this long after the last fault fails the run."""
LOOK_SECONDS = 2.0
COPIES_MAX = 3
"""The most copies of a message: a send stores one, and each of its two retries may store another."""
CHECKERS = (
    everything_is_handled_at_least_once,
    nothing_is_acknowledged_before_it_was_handled,
    ordered_queues_are_handled_in_order,
    ordered_queues_have_one_owner,
    nothing_committed_is_handed_out_again,
    acknowledged_puts_keep_their_order,
)
PAIR_SETTINGS: dict[str, object] = {
    "brokerClusterName": "soak",
    "haSecret": "soak",
    "slaveTimeout": 1000,
    "haSendHeartbeatInterval": 400,
    "haHousekeepingInterval": 2000,
    "registerNameServerPeriod": 10_000,
    "flushDiskType": "SYNC_FLUSH",
}


@attrs.define(eq=False)
class Server:
    """A server process that can be killed and started again on the same port."""

    name: str
    directory: Path
    arguments: Sequence[str]
    process: ServerProcess | None = None
    _down: trio.Event = attrs.field(factory=trio.Event)

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process and wait until it is killed."""
        self._down = trio.Event()
        async with running(self.directory, *self.arguments) as process:
            await process.up()
            self.process = process
            task_status.started()
            await self._down.wait()

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        process, self.process = self.process, None
        assert process is not None
        await process.kill()
        self._down.set()


@attrs.define(eq=False)
class Soak:
    """One service, its servers, and the faults of one run."""

    directory: Path
    rng: random.Random
    service: TrioService | ThreadService
    seconds: float
    report: Report
    servers: dict[str, Server]
    outcome: Outcome = attrs.field(init=False)
    queues: int = QUEUES

    def __attrs_post_init__(self) -> None:
        self.outcome = Outcome(self.journal.history)

    @property
    def journal(self) -> Journal:
        return self.service.journal

    async def run(self, strike: Callable[[trio.Nursery], Awaitable[None]] | None = None) -> Outcome:
        """Run the service under faults, then judge; a given `strike` replaces the drawn faults, and ends by itself."""
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for server in self.servers.values():
                await nursery.start(server.live)
            await self._make_topics()
            ended = trio.Event()
            nursery.start_soon(self._run_service, ended)
            nursery.start_soon(self._look_at_commits)
            if strike is not None:
                await strike(nursery)
            else:
                with trio.move_on_after(self.seconds):
                    await self._strike(nursery)
            self._progress("no more faults")
            for server in self.servers.values():
                if server.process is None:
                    await nursery.start(server.live)
            await self._change(lambda admin: admin.update_topic(PLAIN, queues=QUEUES_MAX, perm=6))
            self.service.stopping.set()
            await self._settle()
            if isinstance(self.service, ThreadService):
                self.service.ended.set()
                await ended.wait()
                self.outcome.violations += self.service.failures
            nursery.cancel_scope.cancel()
        self.outcome.violations += self.judge()
        for name in ("master", "slave"):
            faults = queue_offset_faults(real_world().disk, str(self.servers[name].directory / "store"))
            self.outcome.violations += [f"{name}: {fault}" for fault in faults]
        self.outcome.faults.update({f"sends failed by {name}": count for name, count in self.journal.errors.items()})
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    async def _run_service(self, ended: trio.Event) -> None:
        service = self.service
        if isinstance(service, TrioService):
            await service.run()
        else:
            await trio.to_thread.run_sync(service.run)
        ended.set()

    # ---------------------------------------------------------------- faults

    async def _strike(self, nursery: trio.Nursery) -> None:
        # A kill of the master counts twice.
        faults: list[Callable[[], Awaitable[None]]] = [
            *(partial(self._kill_for_a_while, nursery, name) for name in (*self.servers, "master")),
            *(partial(self._hang, name) for name in self.servers),
            self._change_queues,
            self._forbid_writing,
            self._delete,
        ]
        while True:
            await trio.sleep(self.rng.uniform(*BETWEEN_FAULTS_SECONDS))
            with trio.CancelScope(shield=True):
                await self.rng.choice(faults)()

    async def _kill_for_a_while(self, nursery: trio.Nursery, name: str) -> None:
        await self.kill(nursery, name, self.rng.uniform(*DOWN_SECONDS))

    async def kill(self, nursery: trio.Nursery, name: str, seconds: float) -> None:
        """Kill a server, if it runs, and start it again after this many seconds."""
        server, history = self.servers[name], self.journal.history
        if server.process is None:
            return
        self._report_fault(f"kill {name}")
        await server.kill()
        if name == "master":
            history.ends.append(End.KILL)
            history.ended_at.append(time.monotonic())
        await trio.sleep(seconds)
        await nursery.start(server.live)

    async def _hang(self, name: str) -> None:
        process = self.servers[name].process
        if process is not None:
            self._report_fault(f"hang {name}")
            await process.pause(self.rng.uniform(*HANGS_SECONDS))

    async def _change_queues(self) -> None:
        """Change the number of queues for writing; all queues stay readable."""
        self.queues = self.rng.randint(1, QUEUES_MAX)
        self._report_fault(f"{self.queues} queues")
        await self._change(
            lambda admin: admin.update_topic(PLAIN, read_queues=QUEUES_MAX, write_queues=self.queues), until_answered=False
        )

    async def _forbid_writing(self) -> None:
        self._report_fault("forbid writing")
        await self._change(lambda admin: admin.update_topic(PLAIN, perm=4), until_answered=False)
        await trio.sleep(self.rng.uniform(*DOWN_SECONDS) / 2)
        await self._change(lambda admin: admin.update_topic(PLAIN, perm=6))

    async def _delete(self) -> None:
        self._report_fault("delete a topic")
        deletion = Deletion(DELETED, time.monotonic(), 0)
        self.journal.history.deletions.append(deletion)
        await self._change(lambda admin: admin.delete_topic(DELETED))
        deletion.answered_at = time.monotonic()
        await self._change(lambda admin: admin.create_topic(DELETED, queues=2))

    def _report_fault(self, what: str) -> None:
        self.outcome.faults[what] += 1
        self._progress(what)

    def _progress(self, what: str) -> None:
        history = self.journal.history
        acknowledged = sum(put.acknowledged for put in history.puts)
        self.report(f"{time.strftime('%H:%M:%S')} {what}; {acknowledged} acknowledged, {len(history.handlings)} deliveries")

    async def _make_topics(self) -> None:
        await self._change(lambda admin: admin.create_topic(PLAIN, read_queues=QUEUES_MAX, write_queues=QUEUES))
        await self._change(lambda admin: admin.create_topic(ORDERED, queues=QUEUES))
        await self._change(lambda admin: admin.create_topic(DELETED, queues=2))

    async def _change(self, change: Callable[[Admin], Awaitable[object]], *, until_answered: bool = True) -> None:
        """Let an administrator change something; if `until_answered`, repeat until the change is answered."""
        while True:
            try:
                async with open_admin(self.service.namesrv) as admin:
                    await change(admin)
                    return
            except TopicExists:
                return  # a send has created it again
            except ClientError as error:
                self.outcome.faults[f"changes that failed by {type(error).__name__}"] += 1
            if not until_answered:
                return
            await trio.sleep(1)

    # ---------------------------------------------------------------- observations

    async def _look_at_commits(self) -> None:
        async with open_admin(self.service.namesrv) as admin:
            while True:
                await trio.sleep(LOOK_SECONDS)
                for group, topic in SUBSCRIPTIONS:
                    epoch = len(self.journal.history.ends)
                    stats = {}
                    with suppress(ClientError), trio.move_on_after(LOOK_SECONDS):
                        stats = await admin.group_stats(group, topic)
                    now = time.monotonic()
                    for queue, position in stats.items():
                        commit = Commit(now, group, (topic, int(queue.queue_id)), position.consumer_offset, epoch)
                        if position.consumer_offset > 0 and epoch == len(self.journal.history.ends):
                            self.record(commit)

    def record(self, commit: Commit) -> None:
        """Record a look at the committed offset of a group.

        A slave that members ask instead of the master has it, too, long before deliveries count as repeated.
        """
        self.journal.history.member_commits.append(commit)
        self.journal.history.common_commits.append(commit)

    async def _settle(self) -> None:
        with trio.move_on_after(SETTLE_SECONDS):
            while lacking := self._lacking():
                self._progress(f"{len(lacking)} are lacking, such as {lacking[0]}")
                await trio.sleep(5)

    def _lacking(self) -> list[str]:
        return [*everything_is_handled_at_least_once(self.journal.history), *self._lacking_of_deleted()]

    def _lacking_of_deleted(self) -> list[str]:
        history = self.journal.history
        last = max((one.answered_at for one in history.deletions), default=0.0)
        finished = {one.number for one in history.handlings if one.done and one.group == DELETED_GROUP}
        wanted = [put for put in history.puts if put.queue[0] == DELETED and put.acknowledged and put.sent_at > last]
        missing = [put.number for put in wanted if put.number not in finished]
        return [f"message {number}, sent after the last deletion, was not handled" for number in missing]

    def judge(self) -> list[str]:
        """Every violation in what the service has recorded."""
        history, now = self.journal.history, time.monotonic()
        for one in history.handlings:
            one.ended = min(one.ended, now)
        found = [*check_history(history, CHECKERS), *self._lacking_of_deleted(), *self.journal.sends_over_time]
        places: dict[int, set[tuple[Queue, int]]] = {}
        for one in history.handlings:
            if one.queue[0] in (PLAIN, ORDERED):
                places.setdefault(one.number, set()).add((one.queue, one.queue_offset))
        copies = {number: len(some) for number, some in places.items() if len(some) > COPIES_MAX}
        return found + [f"message {number} is stored at {count} places" for number, count in copies.items()]


@contextmanager
def servers_of(directory: Path) -> Generator[dict[str, Server]]:
    """Two name servers, a master and its slave, on ports that are reserved for the length of the `with` block."""
    with reserved_ports("127.0.0.1", 2) as names, reserved_ports("127.0.0.1", 2, BROKER_PORTS) as brokers:
        yield _servers_on(names, brokers, directory)


def _servers_on(names: Sequence[int], brokers: Sequence[int], directory: Path) -> dict[str, Server]:
    namesrv = ";".join(f"127.0.0.1:{port}" for port in names)
    servers: dict[str, Server] = {}
    for at, port in enumerate(names):
        name = f"namesrv-{at}"
        arguments = ("namesrv", "--log-level", "warning", "--host", "127.0.0.1", "--port", str(port))
        servers[name] = Server(name, directory / name, arguments)
    for name, role, broker_id, port in zip(("master", "slave"), ("SYNC_MASTER", "SLAVE"), (0, 1), brokers, strict=True):
        settings = PAIR_SETTINGS | {
            "namesrvAddr": namesrv,
            "brokerRole": role,
            "brokerId": broker_id,
            "listenPort": port,
        }
        servers[name] = Server(name, directory / name, broker_arguments(directory / name / "store", settings))
    return servers


def namesrv_of(servers: Mapping[str, Server]) -> str:
    """The list of name servers in the format of client settings."""
    return ";".join(f"127.0.0.1:{each.arguments[-1]}" for name, each in servers.items() if name.startswith("namesrv"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.soak", description=__doc__)
    parser.add_argument("--service", choices=("trio", "threads"), default="trio", help="which service (trio)")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long it runs under faults (30)")
    parser.add_argument("--rate", type=float, default=2.0, help="messages a second of each of its ten senders (2)")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    parser.add_argument("--directory", type=Path, help="where the stores go; a temporary one by default")
    chosen = parser.parse_args(arguments)
    seed = drawn_seed(chosen.seed)
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-soak-", dir=chosen.directory))
    print_line(f"seed {seed}, {chosen.service}, in {directory}")
    logging.getLogger(ROOT_LOGGER).setLevel(logging.ERROR)  # killed servers cause many warnings
    rng = random.Random(seed)  # noqa: S311 - draws faults
    kind = TrioService if chosen.service == "trio" else ThreadService
    with servers_of(directory) as servers:
        service = kind(namesrv_of(servers), Journal(rng), rng, directory, chosen.rate)
        service.journal.history.subscriptions.update(SUBSCRIPTIONS)
        outcome = trio.run(Soak(directory, rng, service, chosen.minutes * 60, print_line, servers).run)
    for violation in outcome.violations[:VIOLATIONS_SHOWN_MAX]:
        print_line(f"  {violation}")
    print_line(f"seed {seed}, {chosen.service}: {outcome.summary()}")
    print_line(f"{len(outcome.history.handlings)} deliveries handled, {len(outcome.history.member_commits)} looks at commits")
    return close_directory(directory, outcome.violations)


if __name__ == "__main__":
    sys.exit(main())
