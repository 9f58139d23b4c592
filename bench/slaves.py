"""More brokers beside the first of a cluster: slaves, and masters of other names.

Each is a `Cluster` without a name server of its own: it registers with the first one's.
"""

import contextlib
import json
import time
from collections.abc import Generator, Mapping, Sequence

from harness import started
from processes import ProcessFailedError
from raw_sender import RawSender
from servers import Cluster, Side, free_port, new_store

SECRET = "bench"  # noqa: S105 - between brokers of one machine that live for minutes
_GET_BROKER_RUNTIME_INFO = 28
_FOLLOW_SECONDS_MAX = 120


def replicated(side: Side, role: str) -> dict[str, str]:
    """Keys of broker.conf for one of two brokers whose puts wait for both."""
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
            masters |= stack.enter_context(started((side,), {**(settings or {}), **replicated(side, "SYNC_MASTER")}))
            slaves[side] = stack.enter_context(beside(masters[side], replicated(side, "SLAVE")))
            # Until its slave has come a master answers at once, or refuses.
            with RawSender(masters[side].broker_address) as sender:
                sender.fill(1)
            await_equal(masters[side], slaves[side])
        yield masters, slaves


@contextlib.contextmanager
def beside(first: Cluster, settings: Mapping[str, str]) -> Generator[Cluster]:
    """Run one more broker that registers with the name server of `first`."""
    more = Cluster(first.side, new_store(), first.namesrv_port, free_port(4) + 2, {**first.settings, **settings})
    try:
        more.start_broker()
        yield more
    finally:
        more.discard()


def log_end(cluster: Cluster) -> int:
    """Return where the broker's log ends; -1 while a broker that has just been started cannot tell."""
    return log_and_dispatch_end(cluster)[0]


def log_and_dispatch_end(cluster: Cluster) -> tuple[int, int]:
    """Return where the broker's log ends and up to where its queues tell of it; -1 twice while it cannot tell."""
    with cluster.connect() as connection:
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
        if time.perf_counter() > deadline:
            process = slave.running_broker
            raise ProcessFailedError(process.name, f"did not follow within {_FOLLOW_SECONDS_MAX} s", process.log)
        time.sleep(0.05)
