"""How long a backup, a check of it and a restoration take, beside plain copies of the same files, on the disk of `--directory`.

The store is written by a broker's own functions and is closed. The first point is taken twice: on the same file system, where
full files of the log get a second name and are only read, and as if the backup were on another one, where they are copied.
"""

import argparse
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio

from ledgermq.ha.dledger.offline import log_parts, look_of
from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.keeping.backup import DirectoryKeep, restore, take_backup, verify_backup
from ledgermq.store.opening import open_message_store
from ledgermq.world.disk import RealDisk
from ledgermq.world.real import real_world

MIB = 1 << 20
DISK = RealDisk()


class OtherFileSystem(RealDisk):
    """A disk on which no file of the store gets a second name."""

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)


def message(body: bytes) -> IncomingMessage:
    return IncomingMessage("T", 0, body, "", 0, 0, 1, encode_host("127.0.0.1", 1))


async def fill(root: Path, mib: int, body_bytes: int) -> None:
    """Put so much more into a store."""
    config = StoreConfig(store_path_root_dir=str(root), message_index_enable=False, disk_max_used_space_ratio=95)
    async with open_message_store(real_world(), config) as store:
        batch = [message(bytes(body_bytes - 1) + b"x")] * max(1, MIB // body_bytes)
        for _ in range(mib):
            store.put(batch)
            await trio.lowlevel.checkpoint()


def timed(what: str, mib: float, work: Callable[[], object]) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - began
    print(f"{what:44} {seconds:8.2f} s  {mib / seconds:8.0f} MiB/s  {time.process_time() - cpu:7.2f} s CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--body", type=int, default=16384, help="bytes of each message")
    parser.add_argument("--directory", help="where the files are written")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        root, mib = directory / "store", arguments.gib * 1024
        trio.run(fill, root, mib, arguments.body)

        def back_up(keep: DirectoryKeep) -> None:
            take_backup(DISK, str(root), keep, lambda: log_parts(DISK, str(root)), real_world().clock.wall_ms)

        linked, copied = DirectoryKeep(DISK, f"{name}/linked"), DirectoryKeep(OtherFileSystem(), f"{name}/copied")
        timed("plain copy of the log, without a sync", mib, lambda: shutil.copytree(root / "commitlog", directory / "plain"))
        shutil.rmtree(directory / "plain")
        timed("first point, same file system", mib, lambda: back_up(linked))
        timed("first point, another file system", mib, lambda: back_up(copied))
        shutil.rmtree(directory / "copied")
        timed("check of the backup", mib, lambda: verify_backup(linked))
        trio.run(fill, root, 100, arguments.body)
        timed("second point, 100 MiB later", 100, lambda: back_up(linked))
        timed("restoration of all", mib + 100, lambda: restore(DISK, linked, f"{name}/restored", look_of))


if __name__ == "__main__":
    main()
