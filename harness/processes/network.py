"""Machines for real processes, simulated by network namespaces: each has its own address, and paths between them fail.

There is one namespace per machine and one for a router, to which each machine is connected by a pair of virtual devices. A cut
is a rule of the router that drops packets silently, so connections stay half-open; an unplugged machine has lost its link.
Namespaces have no names and exist as long as a process in them. Those processes end when their pipe to this process closes, so
nothing is left behind, however this process ends. `NetworkUnavailable` is raised if kernel or permissions do not suffice.
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
    """We have no permission to create networks here, or the kernel lacks a feature; `str()` is the reason."""


@attrs.frozen
class Place:
    """One machine of the network."""

    name: str
    host: str
    pid: int
    """The process that keeps its namespaces alive."""

    @property
    def entering(self) -> tuple[str, ...]:
        """The prefix of a command line that runs the command on this machine."""
        return ("nsenter", f"--target={self.pid}", "--net", "--mount", "--")

    @property
    def network(self) -> Network:
        """The network with which our own process opens connections from this machine."""
        return _PlaceNetwork(self.pid)

    def seen(self, path: Path) -> Path:
        """The path under which we can read what this machine has at `path`, where it may have mounted something."""
        return Path(f"/proc/{self.pid}/root") / path.relative_to("/")

    async def mount_small_disk(self, path: Path, size: int) -> None:
        """Mount an in-memory file system of `size` bytes at `path` for this machine; it ends with the network."""
        await _checked([*self.entering, "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)])


@attrs.frozen
class _PlaceNetwork(TcpNetwork):
    """Opens streams in another network namespace; a socket stays in the namespace in which it was created."""

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
    """Move the calling thread into the network namespace of a process for the block, which must not await anything."""
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
    """Machines, the paths between them, and the faults on these."""

    router: Place
    places: dict[str, Place]
    injected: Counter[str] = attrs.field(factory=Counter[str])
    """How many faults were injected so far, by kind."""
    _cuts: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    _unplugged: set[str] = attrs.field(factory=set[str])

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    async def cut(self, source: str, target: str) -> None:
        """Drop packets from `source` to `target`, but not in the other direction."""
        await self._cut([(source, target)])
        self.injected["one-way cuts"] += 1

    async def part(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Drop packets between two groups of machines in both directions."""
        both = [(one, other) for one in some for other in others]
        await self._cut([*both, *((other, one) for one, other in both)])
        self.injected["partitions"] += 1

    async def unplug(self, name: str) -> None:
        """Take the link of a machine down; the router answers that it is unreachable."""
        await self._at_router("link", [f"set {self._device(name)} down"])
        self._unplugged.add(name)
        self.injected["unplugged links"] += 1

    async def delay(self, name: str, seconds: float) -> None:
        """Delay packets to a machine.

        Raises:
            NetworkUnavailable: the kernel has no netem. Nothing was changed.
        """
        device = self._device(name)
        delayed = f"{round(seconds * 1e6)}us"
        command = ["tc", "qdisc", "replace", "dev", device, "root", "netem", "delay", delayed]
        await _checked([*self.router.entering, *command])
        self.injected["delayed links"] += 1

    async def heal(self) -> None:
        """End all cuts and bring all links up; delays remain."""
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
    """Create namespaces of network and mounts; yields the process that keeps them until the block or this process ends."""
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
        announced = b""
        with trio.move_on_after(READY_SECONDS):
            while not announced.endswith(b"ready\n") and (more := await keeper.stdout.receive_some()):
                announced += more
        if not announced.endswith(b"ready\n"):
            raise NetworkUnavailable(f"no namespaces for us: {announced.decode(errors='replace').strip()}")
        yield keeper.pid
    finally:
        keeper.kill()
        with trio.CancelScope(shield=True):
            await keeper.wait()
            await keeper.stdin.aclose()
            await keeper.stdout.aclose()


@asynccontextmanager
async def virtual_network(*names: str) -> AsyncGenerator[VirtualNetwork]:
    """Create connected machines with these names for the length of an `async with` block.

    Raises:
        NetworkUnavailable: Linux with namespaces, iproute2, util-linux or the rights of root are missing.
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
