"""Sends to all brokers that `ledgermq up --brokers N` runs on this machine, one raw socket each: the rate with 1 and with more.

A broker is one process whose event loop uses one core. The sockets are written by processes of this machine, too, so the rate
can grow only while it has cores that neither brokers nor senders use.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from measuring import Options, Report, Side, Values, back_free_memory, take_turns
from processes import Process
from raw_sender import RawSender
from servers import TOPIC, new_store, ours_env
from wire import Connection

_WINDOW = 64
_QUEUES = 8
_READY_SECONDS_MAX = 60
_BROKER = re.compile(r"^broker-\w +\S.*? +(127\.0\.0\.1):(\d+)", re.MULTILINE)


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--brokers", default="1,2", help="numbers of brokers, separated by commas")


def main() -> None:
    options, found = Options.parse(__doc__ or "", seconds=8, warmup=2, extend=_extend)
    options.sides = ("ours",)
    counts = [int(count) for count in found.brokers.split(",")]
    report = Report(f"brokers on one machine, 1 KiB bodies, window {_WINDOW} each, ASYNC_FLUSH", options.json_path)

    def measure(_: Side) -> Values:
        rates = {count: _rate(count, options.warmup, options.seconds) for count in counts}
        values = {f"{count} brokers msg/s": rate for count, rate in rates.items()}
        return {**values, **{f"{count} brokers / {counts[0]}": rates[count] / rates[counts[0]] for count in counts[1:]}}

    take_turns(options, report, measure)
    report.show()


def _rate(count: int, warmup: float, seconds: float) -> float:
    """The sum of the rates of `count` brokers that are sent to at the same time."""
    folder = new_store()
    arguments = ["up", "--brokers", str(count), "--port", "0", "--broker-port", "0", "--store", str(folder / "store")]
    up = Process.start("ledgermq up", [sys.executable, "-m", "ledgermq.cli.main", *arguments], folder / "up.log", ours_env())
    try:
        up.wait_for_output("Ctrl-C stops", _READY_SECONDS_MAX)
        brokers = [(host, int(port)) for host, port in _BROKER.findall(up.output())]
        if len(brokers) != count:
            raise RuntimeError(f"{count} brokers were wanted, and these were announced: {brokers}")
        _create_topics(brokers)
        back_free_memory()
        with ProcessPoolExecutor(count, get_context("spawn")) as senders:
            return sum(senders.map(_send, brokers, [warmup] * count, [seconds] * count))
    finally:
        up.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _create_topics(brokers: Sequence[tuple[str, int]]) -> None:
    for address in brokers:
        with Connection(address) as connection:
            connection.create_topic(TOPIC, _QUEUES)


def _send(address: tuple[str, int], warmup: float, seconds: float) -> float:
    with RawSender(address) as sender:
        sender.run(_WINDOW, seconds=warmup)
        return sender.run(_WINDOW, seconds=seconds).rate


if __name__ == "__main__":
    main()
