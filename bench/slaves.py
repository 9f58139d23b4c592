"""Additional brokers of a cluster: slaves, masters with other broker names, and replicas whose master a controller elects.

Each is a `Cluster` without its own name server, and registers with that of the first one. A pair is ready when its master
counts the slave as in sync and has answered a send with SUCCESS. Several JVMs start on the same cores at the same time, so
time-outs are long, and their errors contain what was waited for.
"""

import contextlib
import json
import sys
import time
from collections.abc import Generator, Mapping, Sequence

import attrs
from measuring import await_route, started
from processes import Process, ProcessFailedError
from raw_sender import RawSender
from servers import BROKER_NAME, Cluster, Side, free_port, new_store, started_controllers
from wire import Connection

SECRET = "bench"  # noqa: S105 - used between brokers of one benchmark only
_GET_BROKER_RUNTIME_INFO = 28
_GET_BROKER_HA_STATUS = 907
_CONTROLLER_GET_SYNC_STATE_DATA = 1006
_FOLLOW_SECONDS_MAX = 300
_FILE_SIZE = {"mappedFileSizeCommitLog": str(256 << 20)}
"""Two brokers map their logs at the same time."""
_PAIR = {
    **_FILE_SIZE,
    # A slave gets its master's address from a registration, by default every 30 s.
    "registerNameServerPeriod": "10000",
    # A pair is suspended while the other side is measured, and its connection must outlive that.
    "haHousekeepingInterval": "3600000",
}


def replicated(side: Side, role: str) -> dict[str, str]:
    """Keys of broker.conf for one of two brokers, where a put waits for both."""
    own = {"haSecret": SECRET, "syncFrom": "first"} if side == "ours" else {"inSyncReplicas": "2", "totalReplicas": "2"}
    return {"brokerRole": role, "brokerId": "1" if role == "SLAVE" else "0", **own}


@contextlib.contextmanager
def started_pairs(
    sides: Sequence[Side], settings: Mapping[str, str] | None = None
) -> Generator[tuple[dict[Side, Cluster], dict[Side, Cluster]]]:
    """Run one SYNC_MASTER of each side, with the benchmark's topic, and its slave; yields masters and slaves."""
    masters: dict[Side, Cluster] = {}
    slaves: dict[Side, Cluster] = {}
    with contextlib.ExitStack() as stack:
        for side in sides:
            began = time.perf_counter()
            masters |= stack.enter_context(started((side,), {**_PAIR, **(settings or {}), **replicated(side, "SYNC_MASTER")}))
            slaves[side] = stack.enter_context(beside(masters[side], replicated(side, "SLAVE")))
            await_in_sync(masters[side], slaves[side])
            await_equal(masters[side], slaves[side])
            print(f"  {side}: a pair in sync after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        yield masters, slaves


@attrs.frozen
class ElectedPair:
    """Two brokers of which controllers elect the master; the controllers are found by the address that brokers ask."""

    controllers: dict[str, Process]
    brokers: tuple[Cluster, Cluster]

    def await_in_sync(self) -> tuple[Cluster, Cluster]:
        """Wait until the controllers have confirmed both brokers in sync; returns the master and the other one."""
        first, second = self.brokers
        deadline = time.perf_counter() + _FOLLOW_SECONDS_MAX
        while not (master := self._master_of_both()):
            _check_following(second, deadline)
        return (first, second) if master == "{}:{}".format(*first.broker_address) else (second, first)

    def _master_of_both(self) -> str | None:
        for address in self.controllers:
            host, _, port = address.partition(":")
            with Connection((host, int(port))) as controller:
                answer = controller.ask(_CONTROLLER_GET_SYNC_STATE_DATA, {}, json.dumps([BROKER_NAME]).encode())
            found = json.loads(answer.body)["replicasInfoTable"].get(BROKER_NAME) if not answer.code else None
            if found and len(found["inSyncReplicas"]) == len(self.brokers):
                return str(found["masterAddress"])
        return None


@contextlib.contextmanager
def started_elected(side: Side, settings: Mapping[str, str] | None = None, *, controllers: int = 1) -> Generator[ElectedPair]:
    """Run two brokers of which controllers elect the master, both in sync, with the benchmark's topic."""
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(started_controllers(side, controllers))
        own = {"haSecret": SECRET} if side == "ours" else {"brokerId": "-1"}
        keys = {"enableControllerMode": "true", "controllerAddr": ";".join(group), **own, **(settings or {})}
        first = stack.enter_context(Cluster.prepare(side, {**_FILE_SIZE, **keys}))
        pair = ElectedPair(group, (first, stack.enter_context(beside(first, {}))))
        master, _ = pair.await_in_sync()
        with master.connect() as connection:
            await_route(master, connection)
        yield pair


@contextlib.contextmanager
def beside(first: Cluster, settings: Mapping[str, str]) -> Generator[Cluster]:
    """Run one more broker that registers with the name server of `first`."""
    more = Cluster(first.side, new_store(), first.namesrv_port, free_port(4) + 2, {**first.settings, **settings})
    try:
        more.start_broker()
        yield more
    finally:
        more.discard()


def await_in_sync(master: Cluster, slave: Cluster) -> None:
    """Wait until the master counts the slave as in sync, and then until it answers a send with SUCCESS."""
    deadline = time.perf_counter() + _FOLLOW_SECONDS_MAX
    while not _slaves_in_sync(master):
        _check_following(slave, deadline)
    # The master may still answer for a while that too few slaves are in sync.
    with RawSender(master.broker_address) as sender:
        while not sender.run(1, messages=1).messages:
            _check_following(slave, deadline)


def _slaves_in_sync(master: Cluster) -> int:
    with master.connect() as connection:
        answer = connection.ask(_GET_BROKER_HA_STATUS, {})
    return 0 if answer.code else int(json.loads(answer.body)["inSyncSlaveNums"])


def _check_following(slave: Cluster, deadline: float) -> None:
    process = slave.running_broker
    if process.popen.poll() is not None:
        raise ProcessFailedError(process.name, f"ended with status {process.popen.returncode}", process.log)
    if time.perf_counter() > deadline:
        raise ProcessFailedError(process.name, f"did not follow within {_FOLLOW_SECONDS_MAX} s", process.log)
    time.sleep(0.1)


def log_end(cluster: Cluster) -> int:
    """Return the end of the broker's log, or -1 while a broker that has just been started does not answer."""
    return log_and_dispatch_end(cluster)[0]


def log_and_dispatch_end(cluster: Cluster) -> tuple[int, int]:
    """Return the end of the broker's log and its dispatched offset; both are -1 while it does not answer."""
    with cluster.connect() as connection:
        return ends_over(connection)


def ends_over(connection: Connection) -> tuple[int, int]:
    """Return the same over an existing connection, because frequent new connections would load the broker."""
    answer = connection.ask(_GET_BROKER_RUNTIME_INFO, {})
    if answer.code:
        return -1, -1
    table = json.loads(answer.body)["table"]
    end = int(table["commitLogMaxOffset"])
    return end, end - int(table["dispatchBehindBytes"])


def await_equal(master: Cluster, slave: Cluster) -> None:
    """Wait until the slave's log is as long as the master's."""
    deadline = time.perf_counter() + _FOLLOW_SECONDS_MAX
    while (end := log_end(master)) < 0 or log_end(slave) != end:
        _check_following(slave, deadline)
