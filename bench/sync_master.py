"""Sends from one raw socket to a SYNC_MASTER with one slave: rate for windows of 64 and 256, and the latency of a lone send.

Both sides wait until a slave has the message: ours by default, Apache's with inSyncReplicas=2, because its default of 1
waits for no slave. A send that was answered with another code than SUCCESS counts as refused.
"""

import argparse
from collections.abc import Mapping

from measuring import CpuMeter, Options, Report, Values, back_free_memory, others_stopped, take_turns, warm_up
from raw_sender import RawSender, lone_latencies
from servers import Cluster, Side
from slaves import await_in_sync, started_pairs


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--windows", default="64,256", help="sends in flight, separated by commas")
    parser.add_argument("--lone", type=int, default=2000, help="lone sends of each measurement (0 leaves them out)")


def main() -> None:
    options, found = Options.parse(__doc__ or "", seconds=8, warmup=20, extend=_extend)
    windows = [int(window) for window in found.windows.split(",")]
    report = Report("raw socket, 1 KiB bodies, 8 queues, SYNC_MASTER with one slave, ASYNC_FLUSH", options.json_path)
    with started_pairs(options.sides) as (clusters, slaves):
        warm_up(clusters, options.warmup)

        def measure(side: Side) -> Values:
            with others_stopped(side, clusters, slaves):
                await_in_sync(clusters[side], slaves[side])
                nodes = {"master": clusters[side], "slave": slaves[side]}
                return send_rates(nodes, options.seconds, windows, found.lone)

        take_turns(options, report, measure)
    report.show()


def send_rates(nodes: Mapping[str, Cluster], seconds: float, windows: list[int], lone_sends: int) -> Values:
    """Send to the first node; returns rates, latencies, and the CPU time of each node by its name."""
    first = next(iter(nodes.values()))
    with RawSender(first.broker_address) as sender:
        values = lone_latencies(sender, lone_sends)
        for window in windows:
            back_free_memory()
            sender.run(window, seconds=1)
            meters = {name: CpuMeter(node.running_broker) for name, node in nodes.items()}
            for meter in meters.values():
                meter.start()
            throughput = sender.run(window, seconds=seconds)
            values[f"window {window} msg/s"] = throughput.rate
            for name, meter in meters.items():
                values[f"window {window} {name} us/msg"] = meter.stop()[0] * 1e6 / max(throughput.messages, 1)
        values["refused sends"] = sender.refused_in_all
    return values


if __name__ == "__main__":
    main()
