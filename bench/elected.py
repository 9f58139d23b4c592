"""Pairs of brokers whose master a controller elects, figure by figure: `python bench/elected.py FIGURE`.

failover: in each run a master is killed (kill -9), and the next one hangs (SIGSTOP), as if its machine were lost: seconds until
a send of our producer is acknowledged, and acknowledged messages that the next master lacks. Apache's run --apache-runs times,
as its controller waits ten seconds for one that hangs. All keys have their defaults.
sends: sends from one raw socket to a pair of ours, and in turns to a SYNC_MASTER with its slave: both wait for two copies.
idle: CPU of three controllers with which two idle brokers are registered.
"""

import argparse
import logging
import random
import signal
import sys
import time

import attrs
from measuring import Options, Report, Values, cpu_percents, take_turns, warm_up
from servers import QUEUES, TOPIC, Cluster, Side
from slaves import ElectedPair, started_elected, started_pairs
from sync_master import send_rates

from ledgermq.blocking import BlockingProducer, open_producer
from ledgermq.client.errors import ClientError
from ledgermq.message.message import Message

_ACKNOWLEDGED_SECONDS_MAX = 180
_DEFAULTS = {"failover": (20, 0.0, 0.0), "sends": (3, 8.0, 20.0), "idle": (1, 30.0, 15.0)}
"""By figure: runs, seconds of each measurement, and seconds before it."""
_CONTROLLERS = 3


def _failover(options: Options, report: Report, found: argparse.Namespace) -> None:
    logging.getLogger("ledgermq").setLevel(logging.ERROR)  # the producer would warn of each fault
    for side in options.sides:
        runs = min(options.runs, found.apache_runs) if side == "apache" else options.runs
        with started_elected(side) as pair, open_producer(pair.brokers[0].namesrv_address, "bench") as producer:

            def measure(_: Side, pair: ElectedPair = pair, producer: BlockingProducer[bytes] = producer) -> Values:
                return {**_failed(pair, producer, "kill -9", signal.SIGKILL), **_failed(pair, producer, "hang", signal.SIGSTOP)}

            take_turns(attrs.evolve(options, sides=(side,), runs=runs), report, measure)


def _failed(pair: ElectedPair, producer: BlockingProducer[bytes], fault: str, number: signal.Signals) -> Values:
    """Send messages, then the master this signal, and go on until the next master has acknowledged one."""
    master, other = pair.await_in_sync()
    stored = _stored(master)
    until = time.perf_counter() + 1 + random.random()  # noqa: S311 - a moment between two heartbeats
    while time.perf_counter() < until:
        stored += _await_acknowledged(producer)
    master.running_broker.signal(number)
    began = time.perf_counter()
    stored += _await_acknowledged(producer)
    seconds = time.perf_counter() - began
    master.running_broker.kill()
    master.start_broker()
    pair.await_in_sync()
    return {f"{fault} to next acknowledged send s": seconds, f"{fault}: acknowledged messages lost": stored - _stored(other)}


def _stored(broker: Cluster) -> int:
    with broker.connect() as connection:
        return connection.message_count(TOPIC, QUEUES)


def _await_acknowledged(producer: BlockingProducer[bytes]) -> int:
    """Send until one message is acknowledged; returns 1."""
    deadline = time.perf_counter() + _ACKNOWLEDGED_SECONDS_MAX
    while time.perf_counter() < deadline:
        try:
            if producer.send(Message(TOPIC, b"x")).status.name == "SEND_OK":
                return 1
        except ClientError:
            time.sleep(0.001)
    raise TimeoutError(f"no send was acknowledged within {_ACKNOWLEDGED_SECONDS_MAX} s")


def _sends(options: Options, report: Report, found: argparse.Namespace) -> None:
    windows = [int(window) for window in found.windows.split(",")]
    with started_pairs(("ours",)) as (masters, slaves), started_elected("ours", {"minInSyncReplicas": "2"}) as pair:
        elected, follower = pair.await_in_sync()
        pairs = {"SYNC_MASTER": (masters["ours"], slaves["ours"]), "elected": (elected, follower)}
        for master, _ in pairs.values():
            warm_up({"ours": master}, options.warmup)

        def measure(_: Side) -> Values:
            rates: dict[str, Values] = {}
            for name, (master, slave) in random.sample(sorted(pairs.items()), len(pairs)):
                rates[name] = send_rates({"master": master, "slave": slave}, options.seconds, windows, found.lone)
            values = {f"{metric}, {name}": value for name, each in rates.items() for metric, value in each.items()}
            classic = rates["SYNC_MASTER"].items()
            ratios = {
                f"{metric}, elected / SYNC_MASTER": rates["elected"][metric] / value for metric, value in classic if value
            }
            return {**values, **ratios}

        take_turns(attrs.evolve(options, sides=("ours",)), report, measure)


def _idle(options: Options, report: Report, _: argparse.Namespace) -> None:
    def measure(side: Side) -> Values:
        with started_elected(side, controllers=_CONTROLLERS) as pair:
            time.sleep(options.warmup)
            shares = cpu_percents(pair.controllers.values(), options.seconds)
        return {"busiest controller CPU %": max(shares), "all three controllers CPU %": sum(shares)}

    take_turns(options, report, measure)


_FIGURES = {
    "failover": ("a master that a controller has elected is killed, or hangs", _failover),
    "sends": ("raw socket, 1 KiB bodies, 8 queues, ASYNC_FLUSH: an elected pair and a SYNC_MASTER with its slave", _sends),
    "idle": ("three idle controllers of a pair of brokers", _idle),
}


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("figure", choices=_FIGURES, help="what to measure")
    parser.add_argument("--apache-runs", type=int, default=3, help="failover: runs of Apache's (default 3)")
    parser.add_argument("--windows", default="64,256", help="sends: sends in flight, separated by commas")
    parser.add_argument("--lone", type=int, default=2000, help="sends: lone sends of each measurement (0: none)")


def main() -> None:
    figure = next((word for word in sys.argv[1:] if word in _FIGURES), "failover")
    runs, seconds, warmup = _DEFAULTS[figure]
    options, found = Options.parse(__doc__ or "", runs=runs, seconds=seconds, warmup=warmup, extend=_extend)
    title, measure = _FIGURES[figure]
    report = Report(title, options.json_path)
    measure(options, report, found)
    report.show()


if __name__ == "__main__":
    main()
