"""What RocketMQ's TransientStorePool would save here: appends to the page cache, and appends to memory that is written later.

With the pool a put copies its record into a buffer of the process, and a task writes the buffer into the file every 200 ms.
Both ways append the same batches at the same rate, while a thread syncs the file every half second, as with ASYNC_FLUSH. `us`
is the wall time of one append, the later writes not included; `cpu` is all processor time for each append.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable

from ledgermq.world.disk import RealDisk

_SYNC_SECONDS = 0.5
_COMMIT_SECONDS = 0.2
_FILE_BYTES = 1 << 30


def measure(way: str, size: int, rate: int, seconds: float, directory: str) -> dict[str, object]:
    """Append batches of `size` bytes, `rate` of them a second."""
    file = RealDisk().open(f"{directory}/{way}-{size}", create_size=_FILE_BYTES)
    batch, buffer = b"x" * size, memoryview(bytearray(_FILE_BYTES if way == "pool" else 0))
    written, committed, took = 0, 0, list[float]()
    stop = threading.Event()

    def every(period: float, step: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            while not stop.wait(period):
                step()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def commit() -> None:
        nonlocal committed
        end = written
        file.write(buffer[committed:end], committed)
        committed = end

    tasks = [every(_SYNC_SECONDS, file.sync)]
    if way == "pool":
        tasks.append(every(_COMMIT_SECONDS, commit))
    spent, due = time.process_time(), time.perf_counter()
    for _ in range(min(int(rate * seconds), _FILE_BYTES // size)):
        due += 1 / rate
        time.sleep(max(due - time.perf_counter(), 0))
        began = time.perf_counter()
        if way == "pool":
            buffer[written : written + size] = batch
        else:
            file.write(batch, written)
        written += size
        took.append(time.perf_counter() - began)
    spent = time.process_time() - spent
    stop.set()
    for task in tasks:
        task.join()
    took.sort()
    shown = {
        name: round(took[int(len(took) * part)] * 1e6, 1) for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }
    cpu = round(spent / len(took) * 1e6, 1)
    return {"way": way, "bytes": size, "us": shown | {"max": round(took[-1] * 1e6, 1)}, "cpu": cpu}


def main() -> None:
    """Print a line of JSON for each way and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 32 * 1024])
    parser.add_argument("--rate", type=int, default=1000, help="batches a second (default 1000)")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--directory", help="on the disk to be measured (default: that of temporary files)")
    arguments = parser.parse_args()
    for size in arguments.sizes:
        for way in ("page cache", "pool"):
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                print(json.dumps(measure(way, size, arguments.rate, arguments.seconds, directory)), flush=True)


if __name__ == "__main__":
    main()
