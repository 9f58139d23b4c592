"""The CPU time of CRC-32 by `zlib-ng` and by Python's `zlib`: the least of several rounds.

It also measures the CPU time of importing `zlib-ng` after everything else has been imported.
"""

import argparse
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable

from zlib_ng import zlib_ng

_SIZES = (64, 1024, 4096, 1 << 20)
_ROUND_BYTES = 32 << 20
_IMPORT = """
import time, ledgermq.world.workers, msgspec, orjson, zlib
began = time.process_time()
import zlib_ng.zlib_ng
print(time.process_time() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of which the least counts (default 20)")
    rounds = parser.parse_args().rounds
    print(f"{'bytes':>9} {'zlib-ng':>12} {'zlib':>12}  microseconds of CPU")
    for size in _SIZES:
        data = memoryview(os.urandom(size))
        assert zlib_ng.crc32(data) == zlib.crc32(data)
        print(f"{size:>9} {_microseconds(zlib_ng.crc32, data, rounds):>12.2f} {_microseconds(zlib.crc32, data, rounds):>12.2f}")
    print(f"importing zlib-ng: {min(_import_milliseconds() for _ in range(rounds)):.1f} ms of CPU")


def _microseconds(checksum: Callable[[memoryview], int], data: memoryview, rounds: int) -> float:
    times = min(_ROUND_BYTES // len(data), 20_000)
    found: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            checksum(data)
        found.append((time.process_time() - began) / times * 1e6)
    return min(found)


def _import_milliseconds() -> float:
    ran = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    return float(ran.stdout) * 1000


if __name__ == "__main__":
    main()
