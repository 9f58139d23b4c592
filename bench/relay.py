"""A relay that forwards each byte a fixed time after it was received, in both directions, at any rate.

It simulates a long line between two sockets, with two threads and one ring buffer per direction. The delay costs no throughput
as long as the bytes in flight fit in the ring. It does not simulate TCP over such a line: both halves of the connection end
here, so the kernel's windows do not have to cover the delay.
"""

import argparse
import contextlib
import multiprocessing
import socket
import threading
import time
from collections import deque
from collections.abc import Generator

_RING_BYTES = 96 << 20
_PIECE_BYTES = 1 << 19
_END_SECONDS_MAX = 10


class _Direction:
    """The delayed bytes from one socket to another."""

    def __init__(self, source: socket.socket, target: socket.socket, delay_seconds: float) -> None:
        self._source, self._target, self._delay = source, target, delay_seconds
        self._ring = memoryview(bytearray(_RING_BYTES))
        self._under_way: deque[tuple[float, int, int]] = deque()
        self._used = 0
        self._changed = threading.Condition()

    def start(self) -> None:
        for work in (self._take, self._give):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        at = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._used < _RING_BYTES)
                room = min(_RING_BYTES - self._used, _RING_BYTES - at, _PIECE_BYTES)
            try:
                size = self._source.recv_into(self._ring[at : at + room])
            except OSError:
                size = 0
            with self._changed:
                self._under_way.append((time.perf_counter() + self._delay, at, size))
                self._used += size
                self._changed.notify_all()
            if not size:
                return
            at = (at + size) % _RING_BYTES

    def _give(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way)
                due, at, size = self._under_way.popleft()
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            try:
                if not size:
                    self._target.shutdown(socket.SHUT_WR)
                    return
                self._target.sendall(self._ring[at : at + size])
            except OSError:
                with contextlib.suppress(OSError):
                    self._source.shutdown(socket.SHUT_RD)
                return
            with self._changed:
                self._used -= size
                self._changed.notify_all()


def serve(listener: socket.socket, target: tuple[str, int], round_trip_seconds: float) -> None:
    """Relay every connection to `listener` until the process ends."""
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(target)
        except OSError:
            near.close()
            continue
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _Direction(near, far, round_trip_seconds / 2).start()
        _Direction(far, near, round_trip_seconds / 2).start()


@contextlib.contextmanager
def relay(target: tuple[str, int], round_trip_seconds: float) -> Generator[tuple[str, int]]:
    """Run a relay to `target` in a separate process; yields the address to connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(
            target=serve, args=(listener, target, round_trip_seconds), daemon=True
        )
        process.start()
        try:
            yield listener.getsockname()
        finally:
            process.terminate()
            process.join(_END_SECONDS_MAX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", type=int, required=True, help="port of 127.0.0.1 to listen on")
    parser.add_argument("--target", required=True, help="HOST:PORT to relay to")
    parser.add_argument("--round-trip-ms", type=float, default=20, help="added to each round trip (default 20)")
    found = parser.parse_args()
    host, _, port = found.target.rpartition(":")
    with socket.create_server(("127.0.0.1", found.listen)) as listener:
        serve(listener, (host, int(port)), found.round_trip_ms / 1000)


if __name__ == "__main__":
    main()
