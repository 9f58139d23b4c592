"""Apache's benchmark consumer draining a backlog: rate, and broker CPU per message.

The backlog is written once per side by the raw sender; every run drains it again with a fresh JVM (see `drain.py`).
The first drain of each side is discarded.
"""

import argparse

from apache_client import start_consumer
from drain import drain, write_backlog
from measuring import Options, Report, Values, others_stopped, started, take_turns
from servers import Cluster, Side


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=2_000_000, help="size of the backlog (default 2,000,000)")


def main() -> None:
    options, found = Options.parse(__doc__ or "", extend=_extend)
    title = f"Apache's benchmark consumer, backlog of {found.messages:,} x 1 KiB, 8 queues"
    report = Report(title, options.json_path)
    with started(options.sides) as clusters:
        for cluster in clusters.values():
            rate = write_backlog(cluster, found.messages)
            report.note(f"{cluster.side}: backlog written at {rate:,.0f} msg/s")
            drain(cluster, found.messages, start_consumer)

        def measure(side: Side) -> Values:
            with others_stopped(side, clusters):
                return _measure(clusters[side], found.messages)

        take_turns(options, report, measure)
    report.show()


def _measure(cluster: Cluster, messages: int) -> Values:
    drained = drain(cluster, messages, start_consumer)
    return {
        "msg/s": drained.rate,
        "broker us/msg": drained.broker_us,
        "client us/msg": drained.consumer_us,
        "whole drain msg/s": drained.whole_rate,
        "whole drain broker us/msg": drained.whole_broker_us,
    }


if __name__ == "__main__":
    main()
