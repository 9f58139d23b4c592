"""The real world of one process that a test can kill: after the kill, nothing that it does reaches a file or a peer.

A broker that is killed inside the test's own process must not be able to close in order, which would transfer leadership, sync
and write tables. Bytes that were written remain, as they remain in the page cache when a process ends.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Sequence
from typing import Any

import attrs
import trio
from trio.abc import Listener

from ..world.address import Address
from ..world.disk import Buffer, Disk, DiskFile, DiskLock, DiskUsage
from ..world.network import Network, Stream
from ..world.real import World


@attrs.define(eq=False)
class Life:
    """Whether the process is alive, and its connections."""

    ended: bool = False
    streams: weakref.WeakSet[Stream] = attrs.field(factory=weakref.WeakSet[Stream])

    def check(self) -> None:
        """Refuse any action of a killed process.

        Raises:
            OSError: it has been killed. Nothing was done.
        """
        if self.ended:
            raise OSError(errno.EIO, "the process has been killed")

    async def end(self) -> None:
        """Kill the process; all of its connections are closed in one turn of the event loop, also if this is cancelled."""
        self.ended = True
        async with trio.open_nursery() as nursery:
            for stream in list(self.streams):
                nursery.start_soon(trio.aclose_forcefully, stream)

    async def adopt(self, stream: Stream) -> Stream:
        """Return a new connection of the process, which its end closes.

        Raises:
            OSError: the process has been killed. The connection is closed.
        """
        self.streams.add(stream)
        if self.ended:
            await trio.aclose_forcefully(stream)
        self.check()
        return stream


@attrs.define(eq=False)
class MortalFile:
    """Implements `DiskFile`."""

    inner: DiskFile
    life: Life

    @property
    def size(self) -> int:
        return self.inner.size

    def write(self, buffer: Buffer, position: int) -> None:
        self.life.check()
        self.inner.write(buffer, position)

    def read(self, position: int, size: int) -> bytes:
        return self.inner.read(position, size)

    def view(self) -> memoryview:
        return self.inner.view()

    def sync(self) -> None:
        self.life.check()
        self.inner.sync()

    def truncate(self, size: int) -> None:
        self.life.check()
        self.inner.truncate(size)

    def reserve(self, position: int, size: int) -> None:
        self.life.check()
        self.inner.reserve(position, size)

    def clear(self, position: int) -> None:
        self.life.check()
        self.inner.clear(position)

    def close(self) -> None:
        self.inner.close()


@attrs.define(eq=False)
class MortalDisk:
    """Implements `Disk`; a killed process can still release locks, because the operating system would do so."""

    inner: Disk
    life: Life

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        self.life.check()
        return MortalFile(self.inner.open(path, create_size=create_size, read_only=read_only), self.life)

    def lock(self, path: str) -> DiskLock:
        self.life.check()
        return self.inner.lock(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def is_link(self, path: str) -> bool:
        return self.inner.is_link(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def modified_ms(self, path: str) -> int:
        return self.inner.modified_ms(path)

    def list_directory(self, path: str) -> list[str]:
        return self.inner.list_directory(path)

    def make_directories(self, path: str) -> None:
        self.life.check()
        self.inner.make_directories(path)

    def remove(self, path: str) -> None:
        self.life.check()
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self.life.check()
        self.inner.remove_tree(path)

    def replace(self, source: str, target: str) -> None:
        self.life.check()
        self.inner.replace(source, target)

    def link(self, source: str, target: str) -> None:
        self.life.check()
        self.inner.link(source, target)

    def link_count(self, path: str) -> int:
        return self.inner.link_count(path)

    def sync_directory(self, path: str) -> None:
        self.life.check()
        self.inner.sync_directory(path)

    def usage(self, path: str) -> DiskUsage:
        # A developer's disk is often fuller than a server's. A broker in a test refuses sends only when a write finds no room,
        # so it sees the free part of the disk as an empty disk.
        free = self.inner.usage(path).free
        return DiskUsage(free, 0, free)

    def boot_id(self) -> str:
        return self.inner.boot_id()


@attrs.define(eq=False)
class MortalListener(Listener[Stream]):
    """Accepts connections for a process that may be killed."""

    inner: Listener[Stream]
    life: Life

    async def accept(self) -> Stream:
        return await self.life.adopt(await self.inner.accept())

    async def aclose(self) -> None:
        await self.inner.aclose()


@attrs.define(eq=False)
class MortalNetwork:
    """Implements `Network`."""

    inner: Network
    life: Life

    async def open_stream(self, address: Address) -> Stream:
        self.life.check()
        return await self.life.adopt(await self.inner.open_stream(address))

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        self.life.check()
        return [MortalListener(listener, self.life) for listener in await self.inner.open_listeners(host, port)]

    def listener_port(self, listener: Listener[Stream]) -> int:
        assert isinstance(listener, MortalListener)
        return self.inner.listener_port(listener.inner)

    def own_host(self) -> str:
        return self.inner.own_host()


def mortal(world: World, life: Life) -> World:
    """The world of a process that ends with `life`."""
    changes: dict[str, Any] = {"disk": MortalDisk(world.disk, life), "network": MortalNetwork(world.network, life)}
    return attrs.evolve(world, **changes)
