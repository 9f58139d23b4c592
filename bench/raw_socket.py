"""Sends from one raw socket: rate for windows of 16, 64 and 256, and the latency of a lone send, in both flush modes.

The client is `raw_sender.py`; a lone send waits for its answer before the next one starts.
"""

import argparse

from measuring import CpuMeter, Options, Report, Values, back_free_memory, others_stopped, started, take_turns, warm_up
from raw_sender import RawSender, lone_latencies
from servers import Cluster, Side


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--windows", default="16,64,256", help="sends in flight, separated by commas")
    parser.add_argument("--lone", type=int, default=3000, help="lone sends of each measurement (0 leaves them out)")
    parser.add_argument("--flush", choices=["async", "sync", "both"], default="both", help="flush modes to measure")


def main() -> None:
    options, found = Options.parse(__doc__ or "", seconds=8, warmup=25, extend=_extend)
    windows = [int(window) for window in found.windows.split(",")]
    modes = ["async", "sync"] if found.flush == "both" else [found.flush]
    for mode in modes:
        path = options.json_path
        if path not in (None, "-") and len(modes) > 1:
            path = f"{path.removesuffix('.json')}-{mode}.json"
        report = Report(f"raw socket, 1 KiB bodies, 8 queues, {mode.upper()}_FLUSH", path)

        with started(options.sides, {"flushDiskType": f"{mode.upper()}_FLUSH"}) as clusters:
            warm_up(clusters, options.warmup)

            def measure(side: Side, clusters: dict[Side, Cluster] = clusters) -> Values:
                with others_stopped(side, clusters):
                    return _measure(clusters[side], options.seconds, windows, found.lone)

            take_turns(options, report, measure)
        report.show()


def _measure(cluster: Cluster, seconds: float, windows: list[int], lone_sends: int) -> Values:
    with RawSender(cluster.broker_address) as sender:
        values = lone_latencies(sender, lone_sends)
        for window in windows:
            back_free_memory()
            sender.run(window, seconds=1)
            meter = CpuMeter(cluster.running_broker)
            meter.start()
            throughput = sender.run(window, seconds=seconds)
            broker_cpu, _ = meter.stop()
            values[f"window {window} msg/s"] = throughput.rate
            values[f"window {window} broker us/msg"] = broker_cpu * 1e6 / throughput.messages
            values[f"window {window} client us/msg"] = throughput.client_us_per_message
        values["refused sends"] = sender.refused_in_all
    return values


if __name__ == "__main__":
    main()
