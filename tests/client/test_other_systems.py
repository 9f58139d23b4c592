"""The client on macOS and Windows: it is run here without what those systems lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ledgermq.testing.embedded import Embedded

ROOT = Path(__file__).parents[2]

WITHOUT = """
import ctypes, importlib.abc, os, socket, sys

MODULES = {"fcntl", "resource", "termios", "pwd", "grp"}
FUNCTIONS = ("fdatasync", "pread", "pwrite", "preadv", "pwritev", "sysconf", "posix_fallocate", "sendfile", "statvfs",
             "O_CLOEXEC", "O_DIRECTORY", "SEEK_DATA", "SEEK_HOLE")


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} on this system", name=name)


class Socket(socket.socket):
    def __getattribute__(self, name):
        if name in ("sendmsg", "recvmsg"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def no_library(name, *args, **kwargs):
    raise TypeError("bad argument type for built-in operation")


import tempfile, trio, trio.socket  # what others need of the system they run on is not ours to take away

sys.meta_path.insert(0, Missing())
for name in MODULES:
    sys.modules.pop(name, None)
for name in FUNCTIONS:
    if hasattr(os, name):
        delattr(os, name)
ctypes.CDLL = no_library
socket.socket = Socket
sys.platform = "win32"
"""

PROGRAM = """
import trio
from ledgermq import ConsumeFrom, Message, MessageModel, blocking, open_admin, open_consumer, open_producer, open_pull_consumer


async def main(namesrv, offsets):
    async with open_admin(namesrv) as admin:
        await admin.create_topic("t", queues=1)
    async with open_producer(namesrv) as producer:
        for number in range(3):
            await producer.send(Message("t", b"%d" % number * 5000))
        await producer.send_many([Message("t", b"many")] * 3)
    for _ in range(2):
        async with open_consumer(
            namesrv,
            "g",
            "t",
            ack="explicit",
            model=MessageModel.BROADCASTING,
            consume_from=ConsumeFrom.FIRST,
            offsets_path=offsets,
        ) as consumer:
            for _ in range(3):
                message = await consumer.get_one()
                print(message.body[-4:].decode())
                await message.ack()
    async with open_pull_consumer(namesrv, "g") as puller:
        await puller.assign(await puller.queues("t"))
        print(len(await puller.poll(100, 5)) > 0)


trio.run(main, sys.argv[1], sys.argv[2])
with blocking.open_producer(sys.argv[1]) as producer:
    print(producer.send(Message("t", b"from a thread")).status.name)
print(*sorted(MODULES & set(sys.modules)))
"""


def test_a_client_needs_nothing_of_posix(ledgermq_broker: Embedded, tmp_path: Path) -> None:
    """It imports, sends, consumes, keeps its own offsets and administers without what Windows lacks."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + PROGRAM, ledgermq_broker.namesrv, str(tmp_path / "offsets.json")],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    first, second = ["0000", "1111", "2222"], ["many", "many", "many"]
    assert done.stdout.split() == [*first, *second, "True", "SEND_OK"]


def test_a_store_says_what_it_needs(tmp_path: Path) -> None:
    """A server on another system ends with a sentence, not with a missing module."""
    program = "from ledgermq.world.disk import RealDisk; RealDisk().lock(sys.argv[1])"

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + program, str(tmp_path / "lock")],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "a store needs a POSIX system with open-file-description locks" in done.stderr
