"""Run every figure, one after another; each is a separate program and can be run alone.

Tables go to standard output, every run's values to `bench/results/*.json`. With --quick each figure is measured once and
briefly, which shows that it works and its magnitude, but is not precise enough to quote.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import attrs
from processes import end_in_order

_FOLDER = Path(__file__).resolve().parent


@attrs.frozen
class Figure:
    """One measurement: the program, its arguments, and those that --quick adds."""

    name: str
    program: str
    arguments: tuple[str, ...]
    quick: str


_FIGURES = (
    Figure("raw-socket", "raw_socket.py", (), "--runs 1 --seconds 4 --warmup 12 --lone 1000 --windows 64"),
    Figure("apache-producer", "apache_producer.py", (), "--runs 1 --seconds 8 --warmup 15"),
    Figure("apache-producer-async", "apache_producer.py", ("--async",), "--runs 1 --seconds 10 --warmup 5"),
    Figure("apache-client-back-pressure", "apache_producer.py", ("--back-pressure",), "--runs 1 --seconds 8 --warmup 15"),
    Figure("apache-consumer", "apache_consumer.py", (), "--runs 1 --messages 400000"),
    Figure("own-client", "own_client.py", (), "--runs 1 --seconds 6 --warmup 12 --messages 200000"),
    Figure("brokers", "brokers.py", (), "--runs 1 --seconds 4 --warmup 1"),
    Figure("startup", "startup.py", (), "--runs 1 --idle 2"),
    Figure("idle", "idle.py", (), "--seconds 30 --warmup 5 --connections 200 --topics 300"),
    Figure("sync-master", "sync_master.py", (), "--runs 1 --seconds 4 --warmup 10 --lone 500"),
    Figure("sync-master-producer", "apache_producer.py", ("--pair",), "--runs 1 --seconds 8 --warmup 15"),
    Figure("stalled-slave", "stalled_slave.py", (), "--runs 1 --seconds 3 --warmup 5 --lone 500"),
    Figure("catch-up", "catch_up.py", (), "--runs 1 --mib 256"),
    Figure("restart", "restart.py", (), "--runs 1 --gib 1"),
    Figure("dledger-raw-socket", "dledger.py", ("raw-socket",), "--runs 1 --seconds 4 --warmup 10 --lone 500"),
    Figure("dledger-producer", "dledger.py", ("producer",), "--runs 1 --seconds 8 --warmup 15"),
    Figure("dledger-failover", "dledger.py", ("failover",), "--runs 3 --apache-kills 1"),
    Figure("dledger-catch-up", "dledger.py", ("catch-up",), "--mib 128"),
    Figure("dledger-idle", "dledger.py", ("idle",), "--seconds 20 --warmup 5"),
    Figure("dledger-restart", "dledger.py", ("restart",), "--runs 1 --gib 0.25"),
    Figure("elected-failover", "elected.py", ("failover",), "--runs 3 --apache-runs 1"),
    Figure("elected-sends", "elected.py", ("sends",), "--runs 1 --seconds 4 --warmup 10 --lone 500"),
    Figure("elected-idle", "elected.py", ("idle",), "--seconds 20 --warmup 5"),
    Figure("pipeline", "pipeline.py", (), "--quick"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure once and briefly")
    parser.add_argument("--only", metavar="NAME", action="append", choices=[figure.name for figure in _FIGURES])
    parser.add_argument("--apache", action=argparse.BooleanOptionalAction, default=True, help="measure Apache RocketMQ")
    parser.add_argument("--ours", action=argparse.BooleanOptionalAction, default=True, help="measure LedgerMQ")
    found = parser.parse_args()
    end_in_order()
    sides = [flag for flag, wanted in (("--no-apache", found.apache), ("--no-ours", found.ours)) if not wanted]
    failed: list[str] = []
    for figure in _FIGURES:
        if found.only and figure.name not in found.only:
            continue
        results = _FOLDER / "results" / f"{figure.name}.json"
        command = [sys.executable, str(_FOLDER / figure.program), *figure.arguments, *sides, "--json", str(results)]
        if found.quick:
            command += figure.quick.split()
        print(f"\n== {figure.name}", flush=True)
        began = time.perf_counter()
        if _run(command):
            failed.append(figure.name)
        print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(command: list[str]) -> int:
    with subprocess.Popen(command) as program:
        try:
            return program.wait()
        except BaseException:
            # Send SIGTERM, not SIGKILL, because the program has to stop its servers.
            program.terminate()
            program.wait()
            raise


if __name__ == "__main__":
    sys.exit(main())
