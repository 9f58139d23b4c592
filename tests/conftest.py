"""What all tests share: patience on a busy machine, and in-memory connections on trio's own clock, which tests may mock."""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings
from trio.abc import Clock, Instrument, Listener
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]

from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.world.network import Address, PlainStream, Stream
from ledgermq.world.self_signed import self_signed

from .real_world import RealWorld
from .scheduling import FileScheduling, processes, rank_of

TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` writes the traces of text scenarios anew; `--order`: see `in_order`; `--again`: see `real_world.py`."""
    parser.addoption("--rewrite", action="store_true", help="write the expected traces of text scenarios anew")
    parser.addoption("--order", type=int, default=0, help="run tests with other examples and, on virtual time, orders of tasks")
    parser.addoption("--again", action="store_true", help="run failed tests of processes and sockets once more, alone")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: what that makes stays
    config.pluginmanager.register(RealWorld())
    # A busy machine must not turn a slow example into a failure: hangs are found by the limits of the tests themselves. The
    # examples are the same in every run, so that a commit gets one verdict; with `--order` they are others, and twice as many.
    fixed = config.option.order == 0
    too_slow = [HealthCheck.too_slow]
    settings.register_profile(
        "ours", deadline=None, derandomize=fixed, max_examples=50 if fixed else 100, suppress_health_check=too_slow
    )
    settings.load_profile("ours")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each process import another share of all test modules first, since one that was imported need not be compiled again.

    pytest compiles every module with its assertions rewritten, and each process needs all of them: on a fresh clone that takes
    each 15 s, and all would be at the same module.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != [TESTS.name]:
        return
    for path in sorted(TESTS.rglob("test_*.py"))[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # collecting raises it again, and says where
            import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # our own order counts, not the number of tests in a file
    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order: int = config.option.order
    for item in items:
        if "autojump_clock" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.virtual)
            item.add_marker(pytest.mark.trio(run=in_order(order, item.nodeid)))
    for item in later_seeds(items):
        item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Keep the collector from walking through thousands of collected tests again and again."""
    gc.freeze()
    gc.enable()


def later_seeds(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The items that differ from an earlier one in their `seed` only: a test runs with its first seed every time."""
    seen: set[object] = set()
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "seed" in item.callspec.params:
            others = tuple((name, repr(value)) for name, value in item.callspec.params.items() if name != "seed")
            case = (item.nodeid.partition("[")[0], others)
            if case in seen:
                yield item
            seen.add(case)


def in_order(order: int, test: str) -> Callable[..., None]:
    """Runs a test on virtual time, with an order of its tasks that depends on its name and on `order` alone.

    Trio shuffles the tasks that are ready, so a test that waits for the wrong thing would fail only now and then. The clock is
    given here because pytest-trio passes a test no clock that it names with `usefixtures`.
    """

    def run(function: Callable[..., Awaitable[None]], clock: Clock | None, instruments: Sequence[Instrument]) -> None:
        seeded_run(function, seed=zlib.crc32(f"{order} {test}".encode()), clock=clock, instruments=instruments)

    return run


@attrs.frozen
class TrioClock:
    """The clock of the running event loop."""

    def wall_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()


PEER = Address("127.0.0.1", 40000)


@attrs.define(eq=False)
class MemoryListener(Listener[Stream]):
    """Hands out the server's ends of pairs."""

    _receive: trio.MemoryReceiveChannel[Stream]

    async def accept(self) -> Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()


@attrs.define(eq=False)
class MemoryNetwork:
    """One listening place, reached whatever the address."""

    _send: trio.MemorySendChannel[Stream] | None = None
    _stalled: bool = False

    def stall(self) -> None:
        """Let peers that connect from now on never read: what a server sends them does not go out."""
        self._stalled = True

    async def open_stream(self, address: Address) -> Stream:
        if self._send is None:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        if self._stalled:
            theirs.send_stream.send_all_hook = trio.sleep_forever
        await self._send.send(PlainStream(theirs, PEER, PEER))
        return PlainStream(ours, PEER, PEER)

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        self._send, receive = trio.open_memory_channel[Stream](100)
        return [MemoryListener(receive)]

    def listener_port(self, listener: Listener[Stream]) -> int:
        return 9876

    def own_host(self) -> str:
        return "127.0.0.1"


@attrs.frozen
class Certificate:
    """The files of a certificate that vouches for itself."""

    cert: str
    key: str


MakeCertificate = Callable[..., Certificate]


@pytest.fixture
def make_certificate(tmp_path: Path) -> MakeCertificate:
    """Makes a certificate of this name, or another in place of the one it made before, with this password on its key."""

    def make(name: str, password: str = "") -> Certificate:
        certificate, key = self_signed(name, password)
        (tmp_path / f"{name}.pem").write_bytes(certificate)
        (tmp_path / f"{name}.key").write_bytes(key)
        return Certificate(str(tmp_path / f"{name}.pem"), str(tmp_path / f"{name}.key"))

    return make


@pytest.fixture
def cpu_seconds() -> Generator[Callable[[], float]]:
    """Returns the CPU time of the process since the test began, in which no garbage of earlier tests was collected."""
    gc.freeze()
    gc.disable()
    began = time.process_time()
    yield lambda: time.process_time() - began
    gc.enable()
    gc.unfreeze()


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
def clock() -> TrioClock:
    return TrioClock()
