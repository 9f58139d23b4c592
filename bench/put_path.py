"""CPU time of each stage of a put: a broker in this process gets batches of bytes directly instead of from sockets.

A stage is the time of one function for whole batches without the stages inside it. A round is as many sends as a busy broker
accepts between two flushes of its key index; of several rounds the one with the least sum counts. A whole broker
(`apache_producer.py`, `raw_socket.py`) takes longer because of sockets, the event loop, syncs, and other processes.
"""

import argparse
import functools
import importlib
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import trio
from measuring import python_text
from servers import QUEUES, TOPIC
from wire import SEND_MESSAGE_V2, send_fields

from ledgermq.broker.config import config_of
from ledgermq.broker.opening import open_broker
from ledgermq.remoting.command import RemotingCommand, Wire, encode_frame
from ledgermq.remoting.server import ServerConnection
from ledgermq.world.network import Address, Stream

_BODY = b"x" * 1024
SENDS = 20_480
_WARMUP_ROUNDS = 1

_STAGES = {
    "frames and headers": "remoting.server.ServerConnection.receive",
    "requests to messages": "broker.send.SendHandler.handle",
    "queue offsets, what is derived": "store.put_side.PutSide.put",
    "records": "store.put_side.encode_records",
    "log": "store.local_commitlog.LocalCommitLog.append",
    "answers": "broker.send.SendHandler._answer_all",
    "queues": "store.dispatch.Dispatcher.round",
    "key index": "store.index.IndexFiles.put_batch",
    "key index, changed pages": "store.index.IndexFiles.flush",
}


@attrs.define
class Stage:
    """One function and its time so far, without the stages inside it."""

    name: str
    seconds: float = 0.0


class Watch:
    """Times functions that call each other."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._inside: list[float] = []

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        stage = Stage(name)
        self.stages.append(stage)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                took = time.perf_counter() - began
                stage.seconds += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return call

    def lap(self) -> dict[str, float]:
        """The time of each stage since the last lap, in seconds."""
        found = {stage.name: stage.seconds for stage in self.stages}
        for stage in self.stages:
            stage.seconds = 0.0
        return found


@contextmanager
def watched() -> Generator[Watch]:
    """Replace the functions of the stages by timed ones for the length of a `with` block."""
    watch, replaced = Watch(), list[tuple[Any, str, Any]]()
    for name, path in _STAGES.items():
        place, function = path.rsplit(".", 1)
        module, _, owner = place.rpartition(".")
        if owner[0].isupper():
            holder = getattr(importlib.import_module(f"ledgermq.{module}"), owner)
        else:
            holder = importlib.import_module(f"ledgermq.{place}")
        original = getattr(holder, function)
        replaced.append((holder, function, original))
        setattr(holder, function, watch.timed(name, original))
    try:
        yield watch
    finally:
        for holder, function, original in replaced:
            setattr(holder, function, original)


class Reader:
    """The other end of a connection, which discards all bytes it is sent."""

    async def send_all(self, _data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    def send_now(self, _data: bytes) -> int:
        return 0


def batches(wire: Wire, size: int, cycle: int) -> list[bytes]:
    """Encode sends as a Java client does, `size` of them in each batch."""
    frames = [
        encode_frame(
            RemotingCommand(
                SEND_MESSAGE_V2,
                send_fields(
                    TOPIC,
                    at % QUEUES,
                    unique_key=f"7F000001{at % 997:014X}{cycle * SENDS + at:010X}",
                    born_ms=1_700_000_000_000,
                ),
                _BODY,
                opaque=at,
                language="JAVA",
                wire=wire,
            )
        )
        for at in range(SENDS)
    ]
    return [b"".join(frames[at : at + size]) for at in range(0, SENDS, size)]


async def measure(wire: Wire, size: int, rounds: int) -> dict[str, float]:
    """Return the microseconds per message of each stage."""
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as store, watched() as watch:
        keys = {"storePathRootDir": str(Path(store) / "store"), "listenPort": "0", "brokerIP1": "127.0.0.1"}
        async with open_broker(config_of({"brokerName": "bench", **keys})) as broker:
            stream = cast("Stream", Reader())
            connection = ServerConnection(stream, Address("127.0.0.1", 1), broker.world.clock, broker.server.limits)
            for cycle in range(_WARMUP_ROUNDS + rounds):
                sends = batches(wire, size, cycle)
                watch.lap()
                for batch in sends:
                    await connection.handle(broker.dispatcher.handle, connection.receive(batch))
                while broker.store.dispatch_behind_bytes:
                    await trio.lowlevel.checkpoint()
                assert broker.store.index is not None
                broker.store.index.flush()
                found.append(watch.lap())
    best = min(found[_WARMUP_ROUNDS:], key=lambda took: sum(took.values()))
    return {name: seconds / SENDS * 1e6 for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="sends that come together (default 64)")
    parser.add_argument("--rounds", type=int, default=10, help=f"of {SENDS} sends each (default 10)")
    options = parser.parse_args()
    columns = {wire: trio.run(measure, wire, options.batch, options.rounds) for wire in Wire}
    print(f"1 KiB bodies, {QUEUES} queues, {options.batch} sends together: microseconds of a message")
    print(f"{'':32}" + "".join(f"{wire.name.lower() + ' header':>16}" for wire in columns))
    for name in _STAGES:
        print(f"{name:32}" + "".join(f"{took[name]:16.2f}" for took in columns.values()))
    print(f"{'sum':32}" + "".join(f"{sum(took.values()):16.2f}" for took in columns.values()))
    print(f"note: {python_text()}")


if __name__ == "__main__":
    main()
