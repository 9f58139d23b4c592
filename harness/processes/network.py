"""Machines for real processes, made of network namespaces: each has an address of its own, and the ways between them break.

One namespace per machine and a router in the middle, to which each is joined by a pair of virtual devices. A cut is a rule of
the router that swallows packets without a word to either end, so connections stay half-open; an unplugged machine has lost its
link. Namespaces have no names: they live as long as a process in them, and the processes that keep them end with the pipe to
this one, so nothing stays behind, however this one ends. What the kernel or our rights do not allow is `NetworkUnavailable`.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from ledgermq.world.network import Address, Network, Stream, TcpNetwork, TcpStream

ROUTER = "router"
SUBNETS = "10.213"
READY_SECONDS = 10.0
_CLONE_NEWNET = 0x40000000
_KEEP = "echo 1 > /proc/sys/net/ipv4/ip_forward && echo ready && exec cat"


class NetworkUnavailable(Exception):
    """We have no right to make networks here, or the kernel lacks a part of them; `str()` says what."""


@attrs.frozen
class Place:
    """One machine of the network."""

    name: str
    host: str
    pid: int
    """The process that keeps its namespaces."""

    @property
    def entering(self) -> tuple[str, ...]:
        """What a command is put behind to run on this machine."""
        return ("nsenter", f"--target={self.pid}", "--net", "--mount", "--")

    @property
    def network(self) -> Network:
        """Connections that our own process opens from this machine."""
        return _PlaceNetwork(self.pid)

    def seen(self, path: Path) -> Path:
        """What this machine sees at `path`, for us: it may have mounted something there."""
        return Path(f"/proc/{self.pid}/root") / path.relative_to("/")

    async def mount_small_disk(self, path: Path, size: int) -> None:
        """Let this machine see a file system of `size` bytes at `path`, in memory; it ends with the network."""
        await _checked([*self.entering, "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)])


@attrs.frozen
class _PlaceNetwork(TcpNetwork):
    """Opens streams in another network namespace; a socket stays in the one it was made in."""

    pid: int

    async def open_stream(self, address: Address) -> Stream:
        with _inside(self.pid):
            plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connecting = trio.socket.from_stdlib_socket(plain)
        try:
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await connecting.connect((address.host, address.port))
        except BaseException:
            connecting.close()
            raise
        connected = socket.socket(fileno=connecting.detach())
        connected.setblocking(False)
        return TcpStream(connected)


@contextmanager
def _inside(pid: int) -> Generator[None]:
    """The calling thread in the network namespace of a process; nothing may be awaited meanwhile."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _set_namespace(home)
    finally:
        os.close(home)


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        failure = ctypes.get_errno()
        raise OSError(failure, f"cannot enter a network namespace: {os.strerror(failure)}")


@attrs.define(eq=False)
class VirtualNetwork:
    """Machines and the ways between them."""

    router: Place
    places: dict[str, Place]
    injected: Counter[str] = attrs.field(factory=Counter[str])
    """Faults so far, by kind."""
    _cuts: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    _unplugged: set[str] = attrs.field(factory=set[str])

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    async def cut(self, source: str, target: str) -> None:
        """Swallow what `source` sends to `target`; the other way stays open."""
        await self._cut([(source, target)])
        self.injected["one-way cuts"] += 1

    async def part(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Swallow what goes between two groups of machines, both ways."""
        both = [(one, other) for one in some for other in others]
        await self._cut([*both, *((other, one) for one, other in both)])
        self.injected["partitions"] += 1

    async def unplug(self, name: str) -> None:
        """Take the link of a machine away: the others are told that it cannot be reached."""
        await self._at_router("link", [f"set {self._device(name)} down"])
        self._unplugged.add(name)
        self.injected["unplugged links"] += 1

    async def delay(self, name: str, seconds: float) -> None:
        """Let packets to a machine take longer.

        Raises:
            NetworkUnavailable: the kernel has no netem. Nothing was changed.
        """
        device = self._device(name)
        delayed = f"{round(seconds * 1e6)}us"
        command = ["tc", "qdisc", "replace", "dev", device, "root", "netem", "delay", delayed]
        await _checked([*self.router.entering, *command])
        self.injected["delayed links"] += 1

    async def heal(self) -> None:
        """Open all ways and plug in all links; delays stay."""
        cuts, self._cuts = self._cuts, set()
        await self._at_router("rule", [f"del {self._rule(*cut)}" for cut in sorted(cuts)])
        links, self._unplugged = self._unplugged, set()
        await self._at_router("link", [f"set {self._device(name)} up" for name in sorted(links)])

    async def _cut(self, ways: Sequence[tuple[str, str]]) -> None:
        new = [way for way in dict.fromkeys(ways) if way not in self._cuts]
        self._cuts.update(new)
        await self._at_router("rule", [f"add {self._rule(*way)}" for way in new])

    def _rule(self, source: str, target: str) -> str:
        return f"from {self.places[source].host} to {self.places[target].host} blackhole"

    def _device(self, name: str) -> str:
        return f"to{list(self.places).index(name)}"

    async def _at_router(self, subject: str, lines: Sequence[str]) -> None:
        if lines:
            await _ip(self.router, [f"{subject} {line}" for line in lines])


async def _checked(command: Sequence[str], text: str = "") -> None:
    try:
        ended = await trio.run_process(
            list(command), stdin=text.encode(), check=False, capture_stdout=True, capture_stderr=True
        )
    except OSError as error:
        raise NetworkUnavailable(f"{command[0]} cannot be run: {error.strerror or error}") from error
    if ended.returncode:
        raise NetworkUnavailable(f"{' '.join(command)}: {ended.stderr.decode(errors='replace').strip()}")


async def _ip(place: Place, lines: Sequence[str]) -> None:
    await _checked([*place.entering, "ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


@asynccontextmanager
async def _kept_namespaces() -> AsyncGenerator[int]:
    """Namespaces of network and mounts; yields the process that keeps them until the end of the block, or of this process."""
    command = ["unshare", "--net", "--mount", "sh", "-c", _KEEP]
    try:
        keeper = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise NetworkUnavailable(f"unshare cannot be run: {error.strerror or error}") from error
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        said = b""
        with trio.move_on_after(READY_SECONDS):
            while not said.endswith(b"ready\n") and (more := await keeper.stdout.receive_some()):
                said += more
        if not said.endswith(b"ready\n"):
            raise NetworkUnavailable(f"no namespaces for us: {said.decode(errors='replace').strip()}")
        yield keeper.pid
    finally:
        keeper.kill()
        with trio.CancelScope(shield=True):
            await keeper.wait()
            await keeper.stdin.aclose()
            await keeper.stdout.aclose()


@asynccontextmanager
async def virtual_network(*names: str) -> AsyncGenerator[VirtualNetwork]:
    """Machines of these names, each reaching all others, for the length of an `async with` block.

    Raises:
        NetworkUnavailable: it takes Linux, its namespaces, iproute2 and util-linux, and the rights of root.
    """
    async with AsyncExitStack() as stack:
        router, *machines = [await stack.enter_async_context(_kept_namespaces()) for _ in (ROUTER, *names)]
        places = {name: Place(name, f"{SUBNETS}.{at}.2", machines[at]) for at, name in enumerate(names)}
        virtual = VirtualNetwork(Place(ROUTER, "", router), places)
        for at, place in enumerate(places.values()):
            await _ip(
                virtual.router,
                [
                    f"link add to{at} type veth peer name eth0 netns {place.pid}",
                    f"addr add {SUBNETS}.{at}.1/30 dev to{at}",
                    f"link set to{at} up",
                ],
            )
            own = [f"addr add {place.host}/30 dev eth0", "link set eth0 up", "link set lo up"]
            await _ip(place, [*own, f"route add default via {SUBNETS}.{at}.1"])
        yield virtual
