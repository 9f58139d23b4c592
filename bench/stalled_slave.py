"""How a slave affects the producers of an ASYNC_MASTER, which waits for no slave: without one, with one, with a stalled one.

Each run measures the same master in the three states, and in the first once more: a state is compared with the mean of the two
measurements without a slave in the same run. The stalled slave is suspended (SIGSTOP) with its connection open and all buffers
full; `behind MiB` is how much the master has written since. A slave that follows uses a part of the machine's cores.
"""

import argparse
import signal

from measuring import CpuMeter, Options, Report, Values, back_free_memory, take_turns, warm_up
from raw_sender import RawSender, lone_latencies
from servers import Cluster, Side, free_port, new_store
from slaves import await_equal, log_end, replicated

# By default a master closes the connection of a slave that was silent for 20 s; here the slave must stay connected.
_PATIENT = {"haHousekeepingInterval": "3600000"}
_FILL_BYTES = 64 << 20


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--window", type=int, default=64, help="sends in flight (default 64)")
    parser.add_argument("--lone", type=int, default=2000, help="lone sends of each measurement")


def main() -> None:
    options, found = Options.parse(__doc__ or "", seconds=6, warmup=15, extend=_extend)
    report = Report(f"raw socket, 1 KiB bodies, 8 queues, window {found.window}, ASYNC_MASTER", options.json_path)
    settings: dict[Side, dict[str, str]] = {side: {**_PATIENT, **_role(side, "ASYNC_MASTER")} for side in options.sides}
    clusters: dict[Side, Cluster] = {}
    slaves: dict[Side, Cluster] = {}
    try:
        for side in options.sides:
            master = clusters[side] = Cluster.prepare(side, settings[side])
            master.start()
            master.create_topic()
            more = {**settings[side], **_role(side, "SLAVE")}
            slaves[side] = Cluster(side, new_store(), master.namesrv_port, free_port(4) + 2, more)
        warm_up(clusters, options.warmup)

        def measure(side: Side) -> Values:
            return _measure(clusters[side], slaves[side], options.seconds, found.window, found.lone)

        take_turns(options, report, measure)
    finally:
        for cluster in (*slaves.values(), *clusters.values()):
            cluster.discard()
    report.show()


def _role(side: Side, role: str) -> dict[str, str]:
    return {**replicated(side, role), "inSyncReplicas": "1"}


def _measure(master: Cluster, slave: Cluster, seconds: float, window: int, lone_sends: int) -> Values:
    values: dict[str, float] = {}
    without = _state(master, seconds, window, lone_sends)
    slave.start_broker()
    try:
        await_equal(master, slave)
        followed = _state(master, seconds, window, lone_sends)
        slave.running_broker.signal(signal.SIGSTOP)
        stalled_at = log_end(master)
        with RawSender(master.broker_address) as sender:
            while log_end(master) < stalled_at + _FILL_BYTES:
                sender.fill(2000)
        stalled = _state(master, seconds, window, lone_sends)
        behind = log_end(master) - stalled_at
    finally:
        slave.running_broker.kill()
    again = _state(master, seconds, window, lone_sends)
    for name, value in without.items():
        alone = (value + again[name]) / 2
        values[f"no slave {name}"] = alone
        values[f"following slave {name}"] = followed[name]
        values[f"stalled slave {name}"] = stalled[name]
        values[f"stalled / none, {name}"] = stalled[name] / alone
    return {**values, "behind MiB": behind / (1 << 20)}


def _state(master: Cluster, seconds: float, window: int, lone_sends: int) -> dict[str, float]:
    meter = CpuMeter(master.running_broker)
    back_free_memory()
    with RawSender(master.broker_address) as sender:
        sender.run(window, seconds=1)
        meter.start()
        throughput = sender.run(window, seconds=seconds)
        cpu, _ = meter.stop()
        latencies = lone_latencies(sender, lone_sends)
    return {
        "msg/s": throughput.rate,
        "master us/msg": cpu * 1e6 / throughput.messages,
        **latencies,
    }


if __name__ == "__main__":
    main()
