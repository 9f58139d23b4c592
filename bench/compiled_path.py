"""Processor time of a put on the Python path and on the compiled path, in alternating rounds of one broker.

The broker is in this process and gets batches of bytes directly instead of from sockets, as in `put_path.py`. A round is all
sends, batch after batch, then deriving and the flush of the key index; of each path the least round counts.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import cast

import trio
from measuring import python_text
from put_path import SENDS, Reader, batches

from ledgermq import native
from ledgermq.broker.config import config_of
from ledgermq.broker.opening import open_broker
from ledgermq.remoting.command import Wire
from ledgermq.remoting.server import ServerConnection
from ledgermq.world.network import Address, Stream


async def measure(wire: Wire, size: int, rounds: int) -> dict[str, float]:
    """Return the microseconds per message on each path."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as store:
        keys = {"storePathRootDir": str(Path(store) / "store"), "listenPort": "0", "brokerIP1": "127.0.0.1"}
        async with open_broker(config_of({"brokerName": "bench", **keys})) as broker:
            assert broker.store.index is not None
            clock, stream = broker.world.clock, cast("Stream", Reader())
            for cycle in range(2 * rounds + 2):
                name, scan = ("compiled", native.scan_sends) if cycle % 2 else ("Python", None)
                broker.store.dispatcher.group_records = native.group_records if cycle % 2 else None
                broker.store.index.hash_keys = native.hash_keys if cycle % 2 else None
                sends = batches(wire, size, cycle)
                connection = ServerConnection(stream, Address("127.0.0.1", 1), clock, broker.server.limits, scan=scan)
                began = time.process_time()
                for batch in sends:
                    await connection.handle(broker.dispatcher.handle, connection.receive(batch))
                while broker.store.dispatch_behind_bytes:
                    await trio.lowlevel.checkpoint()
                broker.store.index.flush()
                took = (time.process_time() - began) / SENDS * 1e6
                if cycle > 1:  # the first round of each warms up
                    best[name] = min(took, best.get(name, took))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="sends that come together (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help=f"of {SENDS} sends each, on each path (default 5)")
    options = parser.parse_args()
    if native.scan_sends is None:
        raise SystemExit("the compiled path is not built, or switched off")
    print(f"1 KiB bodies, {options.batch} sends together: microseconds of a message")
    for wire in Wire:
        took = trio.run(measure, wire, options.batch, options.rounds)
        ratio = took["Python"] / took["compiled"]
        print(
            f"{wire.name.lower() + ' header':16}" + "".join(f"{name} {us:.2f}  " for name, us in took.items()) + f"x{ratio:.2f}"
        )
    print(f"note: {python_text()}")


if __name__ == "__main__":
    main()
