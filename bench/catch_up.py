"""How fast an empty slave catches up with its master's log, against a bare copy of as many bytes between two sockets.

The bare copy goes through loopback from one process to another, with `sendall` and `recv_into` and buffers of 256 KiB, and
writes no file, so no slave can be faster. `share of a bare copy` divides the two, run by run. A second copy also writes what
it receives to a new file, as a slave must; the difference to that one is the cost of the protocol. The master is idle.
Our slave begins at the first segment (syncFrom = first). An empty slave of Apache's requests only the last segment, so both
sides have segments larger than the log.

The slave catches up once directly and twice through a relay, first without delay and then with a round trip of some
milliseconds. `flat` divides those two: it shows how much the protocol waits for round trips, without the relay's own cost.
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
from measuring import CpuMeter, Options, Report, Values, back_free_memory, started, take_turns
from processes import ProcessFailedError
from raw_sender import RawSender
from relay import relay
from servers import Cluster, Side, new_store
from slaves import beside, ends_over, log_end, replicated

_BUFFER_BYTES = 1 << 18
_SECONDS_MAX = 300
_POLL_SECONDS = 0.02
_SEGMENT_ROOM = 64 << 20


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=512, help="length of the log (default 512 MiB)")
    parser.add_argument("--body", type=int, default=4096, help="bytes of each message's body (default 4096)")
    parser.add_argument(
        "--round-trip-ms", type=float, default=20, help="added by the relay; 0 leaves the relay out (default 20)"
    )


def main() -> None:
    options, found = Options.parse(__doc__ or "", warmup=0, extend=_extend)
    report = Report(f"an empty slave catches up with {found.mib} MiB", options.json_path)
    size = found.mib << 20
    settings = {"mappedFileSizeCommitLog": str(size + size // 4 + _SEGMENT_ROOM)}
    secret = {key: value for key, value in replicated("ours", "ASYNC_MASTER").items() if key not in ("brokerRole", "brokerId")}
    with started(options.sides, settings | secret) as clusters:
        for cluster in clusters.values():
            with RawSender(cluster.broker_address, body_bytes=found.body) as sender:
                while log_end(cluster) < size:
                    sender.fill(2000)

        def measure(side: Side) -> Values:
            values = _measure(clusters[side])
            if found.round_trip_ms:
                values |= _measure_delayed(clusters[side], found.round_trip_ms)
            return values

        take_turns(options, report, measure)
    report.show()


def _measure(master: Cluster) -> dict[str, float]:
    end = log_end(master)
    copied = end / bare_copy_seconds(end) / 1e6
    folder = new_store()
    try:
        back_free_memory(end + end // 2)
        written = end / bare_copy_seconds(end, folder / "copy") / 1e6
    finally:
        shutil.rmtree(folder)
    caught_up = _catch_up(master, end, {})
    return {
        "catch-up MB/s": caught_up.rate,
        "bare copy MB/s": copied,
        "share of a bare copy": caught_up.rate / copied,
        "bare copy to a file MB/s": written,
        "share of a bare copy to a file": caught_up.rate / written,
        "dispatched MB/s": caught_up.dispatched_rate,
        "measured MiB": caught_up.mib,
        "master CPU ms/MiB": caught_up.master_cpu_seconds * 1000 / caught_up.mib,
        "slave CPU ms/MiB": caught_up.slave_cpu_seconds * 1000 / caught_up.mib,
    }


def _measure_delayed(master: Cluster, round_trip_ms: float) -> dict[str, float]:
    end = log_end(master)
    rates: list[float] = []
    for delay_ms in (0, round_trip_ms):
        with relay(("127.0.0.1", master.broker_port + 1), delay_ms / 1000) as (host, port):
            rates.append(_catch_up(master, end, {"haMasterAddress": f"{host}:{port}"}).rate)
    return {
        "through the relay MB/s": rates[0],
        f"with {round_trip_ms:g} ms more MB/s": rates[1],
        "flat": rates[1] / rates[0],
    }


@attrs.frozen
class _CaughtUp:
    """How fast one empty slave caught up; CPU seconds are counted until its log was complete."""

    mib: float
    rate: float
    dispatched_rate: float
    master_cpu_seconds: float
    slave_cpu_seconds: float


def _catch_up(master: Cluster, end: int, settings: Mapping[str, str]) -> _CaughtUp:
    role = {**replicated(master.side, "SLAVE"), "inSyncReplicas": "1", **settings}
    back_free_memory(end + end // 2)
    with beside(master, role) as slave:
        # The start of a JVM is not measured: the clock starts when the first bytes arrive.
        while (first := log_end(slave)) <= 0:
            time.sleep(_POLL_SECONDS / 4)
        meters = CpuMeter(master.running_broker), CpuMeter(slave.running_broker)
        with slave.connect() as connection:
            began = time.perf_counter()
            for meter in meters:
                meter.start()
            _await(lambda: ends_over(connection)[0] >= end, slave, began)
            elapsed = time.perf_counter() - began
            master_cpu, slave_cpu = (meter.stop()[0] for meter in meters)
            _await(lambda: ends_over(connection)[1] >= end, slave, began)
            dispatched = time.perf_counter() - began
    size = end - first
    return _CaughtUp(size / (1 << 20), size / elapsed / 1e6, size / dispatched / 1e6, master_cpu, slave_cpu)


def _await(condition: Callable[[], bool], slave: Cluster, began: float) -> None:
    while not condition():
        if time.perf_counter() > began + _SECONDS_MAX:
            raise ProcessFailedError("slave", f"did not catch up within {_SECONDS_MAX} s", slave.running_broker.log)
        time.sleep(_POLL_SECONDS)


def bare_copy_seconds(size: int, path: Path | None = None) -> float:
    """Return the seconds for copying `size` bytes from another process to this one, and to a new file if `path` is given."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        file = None if path is None else stack.enter_context(path.open("wb", buffering=0))
        sender = multiprocessing.get_context("fork").Process(target=_send_bytes, args=(server.getsockname(), size))
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer = bytearray(_BUFFER_BYTES)
            began, left = time.perf_counter(), size
            while left > 0:
                received = connection.recv_into(buffer)
                if not received:
                    raise ConnectionError("the copy ended early")
                if file is not None:
                    file.write(memoryview(buffer)[:received])
                left -= received
            elapsed = time.perf_counter() - began
        sender.join()
    return elapsed


def _send_bytes(address: tuple[str, int], size: int) -> None:
    chunk = os.urandom(_BUFFER_BYTES)
    with socket.create_connection(address) as connection:
        for start in range(0, size, _BUFFER_BYTES):
            connection.sendall(memoryview(chunk)[: size - start])


if __name__ == "__main__":
    main()
