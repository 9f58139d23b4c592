"""A producer of prebuilt frames on one socket, which costs so little that its rate is that of the broker.

Frames are built beforehand (code 310, JSON header, a UNIQ_KEY of 32 hex digits as a Java client sends it) in one
buffer, a cycle of them; a send is `sendall` of a slice as long as the window allows. All frames have the same size,
so one strided slice assignment per digit gives every frame of the next cycle a new key and time, and the broker's index
never gets a key twice. Responses are counted by their lengths and their codes by one `bytes.count`.

It is written in Python rather than C or Java because that is fast enough and needs no compiler: against a sink that
answers in batches it sends 350 k messages a second at window 64 for 1.8 us of CPU each, half of that in the kernel.
Against a broker that answers one by one it needs 8 to 13 us, mostly for one system call per response, as a C client would.
"""

import collections
import json
import socket
import struct
import time
from typing import Self

import attrs
from servers import QUEUES, TOPIC
from wire import SEND_MESSAGE_V2, decode, encode, send_fields

BODY_BYTES = 1024
_FRAMES_IN_CYCLE = 2048
# Every opaque has nine digits, so that all frames of a cycle have the same size, and none repeats within a window.
_OPAQUE_FIRST = 100_000_000
_CYCLE_DIGITS = 10
_RECEIVE_BYTES = 1 << 18
_FILL_WINDOW = 128
_LONE_WARMUP_SENDS = 500
_SUCCESS_MARK = b'"code":0,'
_LENGTH = struct.Struct(">I")


@attrs.frozen
class Throughput:
    """The result of one period of sending: `messages` were stored, `refused` counts the other responses by code."""

    messages: int
    seconds: float
    client_cpu_seconds: float
    refused: dict[int, int]

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def client_us_per_message(self) -> float:
        return self.client_cpu_seconds * 1e6 / max(self.messages, 1)


class _FrameCycle:
    """The prebuilt frames, and the places of the digits that change from cycle to cycle."""

    def __init__(self, topic: str, queues: int, body_bytes: int) -> None:
        now_ms = str(time.time_ns() // 1_000_000)
        cycle_mark, time_mark = "F" * _CYCLE_DIGITS, now_ms
        frames = [
            encode(
                SEND_MESSAGE_V2,
                send_fields(
                    topic,
                    index % queues,
                    unique_key=f"7F000001{index:014X}{cycle_mark}",
                    born_ms=int(time_mark),
                    queues=queues,
                ),
                opaque=_OPAQUE_FIRST + index,
                body=(f"{index:08d}".encode() * (body_bytes // 8 + 1))[:body_bytes],
            )
            for index in range(_FRAMES_IN_CYCLE)
        ]
        self.frame_bytes = len(frames[0])
        if any(len(frame) != self.frame_bytes for frame in frames):
            raise AssertionError("frames of a cycle must have one size")
        self._cycle_at = frames[0].index(cycle_mark.encode())
        self._time_at = frames[0].index(time_mark.encode())
        self._buffer = bytearray(b"".join(frames))
        self._cycle = 0
        self.view = memoryview(self._buffer)

    def renew(self) -> None:
        """Give every frame a key of the next cycle and the present time."""
        self._cycle += 1
        self._write(self._cycle_at, f"{self._cycle:0{_CYCLE_DIGITS}X}")
        self._write(self._time_at, str(time.time_ns() // 1_000_000))

    def _write(self, place: int, digits: str) -> None:
        for shift, digit in enumerate(digits.encode()):
            self._buffer[place + shift :: self.frame_bytes] = bytes([digit]) * _FRAMES_IN_CYCLE


class RawSender:
    """One connection that keeps a window of sends in flight."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        topic: str = TOPIC,
        queues: int = QUEUES,
        body_bytes: int = BODY_BYTES,
    ) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = _FrameCycle(topic, queues, body_bytes)
        self._frames.renew()
        self._position = 0
        self._pending = b""
        self._refused: collections.Counter[int] = collections.Counter()
        self.refused_in_all = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def run(self, window: int, *, seconds: float | None = None, messages: int | None = None) -> Throughput:
        """Send for `seconds`, or this many messages, with at most `window` unanswered; then wait for all answers."""
        if (seconds is None) == (messages is None):
            raise ValueError("give either seconds or messages")
        self._refused.clear()
        cpu_before = time.process_time()
        began = time.perf_counter()
        deadline = float("inf") if seconds is None else began + seconds
        left = messages if messages is not None else 1 << 62
        in_flight = answered = 0
        while left and time.perf_counter() < deadline:
            room = min(window - in_flight, left)
            self._send(room)
            left -= room
            count = self._receive()
            answered += count
            in_flight += room - count
        elapsed = time.perf_counter() - began
        counted = answered
        while in_flight:
            in_flight -= (count := self._receive())
            answered += count
        if messages is not None:
            elapsed, counted = time.perf_counter() - began, answered
        refused = dict(self._refused)
        stored = counted - sum(refused.values())
        return Throughput(stored, elapsed, time.process_time() - cpu_before, refused)

    def fill(self, messages: int) -> float:
        """Send until this many messages are stored, not counting refused ones; return the rate in messages a second."""
        began = time.perf_counter()
        left = messages
        while left > 0:
            left -= self.run(_FILL_WINDOW, messages=left).messages
        return messages / (time.perf_counter() - began)

    def lone(self, count: int) -> list[float]:
        """Send `count` messages one after another; return the seconds until each was answered, sorted."""
        clock = time.perf_counter
        latencies: list[float] = []
        for _ in range(count):
            before = clock()
            self._send(1)
            while not self._receive():
                pass
            latencies.append(clock() - before)
        return sorted(latencies)

    def _send(self, count: int) -> None:
        size = self._frames.frame_bytes
        while count:
            span = min(count, _FRAMES_IN_CYCLE - self._position)
            self._socket.sendall(self._frames.view[self._position * size : (self._position + span) * size])
            count -= span
            self._position += span
            if self._position == _FRAMES_IN_CYCLE:
                self._position = 0
                self._frames.renew()

    def _receive(self) -> int:
        """Receive once; return the number of complete responses."""
        received = self._socket.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionError("the broker closed the connection")
        chunk = self._pending + received if self._pending else received
        length_of = _LENGTH.unpack_from
        start = count = 0
        end = len(chunk)
        while end - start >= _LENGTH.size:
            following = start + _LENGTH.size + length_of(chunk, start)[0]
            if following > end:
                break
            start = following
            count += 1
        self._pending = chunk[start:]
        if chunk.count(_SUCCESS_MARK, 0, start) != count:
            self._count_refusals(chunk[:start])
        return count

    def _count_refusals(self, frames: bytes) -> None:
        start = 0
        while start < len(frames):
            end = start + _LENGTH.size + _LENGTH.unpack_from(frames, start)[0]
            try:
                code = decode(frames[start:end]).code
            except (json.JSONDecodeError, KeyError) as error:
                raise ConnectionError("a response header is not RocketMQ's JSON") from error
            if code:
                self._refused[code] += 1
                self.refused_in_all += 1
            start = end


def lone_latencies(sender: RawSender, count: int) -> dict[str, float]:
    """Median and 99th percentile of `count` lone sends in milliseconds, after some uncounted ones; empty if `count` is 0."""
    if not count:
        return {}
    sender.lone(min(count, _LONE_WARMUP_SENDS))
    latencies = sender.lone(count)
    return {"lone p50 ms": percentile(latencies, 0.50) * 1000, "lone p99 ms": percentile(latencies, 0.99) * 1000}


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which `share` of the ordered values are."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
