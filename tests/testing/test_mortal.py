"""A process that a test kills reaches no file and no peer any more, and releases what the system would release."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trio

from ledgermq.testing.contracts import check_disk
from ledgermq.testing.mortal import Life, MortalDisk, mortal
from ledgermq.world.address import Address
from ledgermq.world.disk import RealDisk
from ledgermq.world.network import Stream, TcpStream
from ledgermq.world.real import real_world


def test_the_disk_of_the_living_keeps_the_contract_of_every_disk(tmp_path: Path) -> None:
    check_disk(MortalDisk(RealDisk(), Life()), str(tmp_path))


def test_a_disk_that_other_files_fill_is_not_full_to_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's disk is often fuller than the 90 % from which a server refuses sends."""
    monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=SimpleNamespace(total=1000, used=950, free=50)))

    usage = mortal(real_world(), Life()).disk.usage(str(tmp_path))

    assert usage.ratio == 0
    assert usage.free == 50


async def test_the_dead_change_no_file_and_what_they_wrote_stays(tmp_path: Path) -> None:
    life = Life()
    disk = mortal(real_world(), life).disk
    lock = disk.lock(f"{tmp_path}/lock")
    file = disk.open(f"{tmp_path}/a", create_size=10)
    file.write(b"kept", 0)

    await life.end()

    for change in (
        lambda: file.write(b"lost", 0),
        file.sync,
        lambda: file.clear(0),
        lambda: file.truncate(1),
        lambda: file.reserve(0, 1),
        lambda: disk.open(f"{tmp_path}/b", create_size=1),
        lambda: disk.remove(f"{tmp_path}/a"),
        lambda: disk.remove_tree(str(tmp_path)),
        lambda: disk.replace(f"{tmp_path}/a", f"{tmp_path}/b"),
        lambda: disk.make_directories(f"{tmp_path}/c"),
        lambda: disk.sync_directory(str(tmp_path)),
    ):
        with pytest.raises(OSError, match="the process has been killed"):
            change()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"kept" + bytes(6)
    lock.release()
    RealDisk().lock(f"{tmp_path}/lock").release()


async def test_the_connections_of_the_dead_end_at_once_on_both_sides() -> None:
    life = Life()
    network = mortal(real_world(), life).network
    accepted: list[Stream] = []

    async def serve(stream: Stream) -> None:
        accepted.append(stream)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.receive_some(1)

    async with trio.open_nursery() as nursery:
        listeners = list(await network.open_listeners("127.0.0.1", 0))
        address = Address("127.0.0.1", network.listener_port(listeners[0]))
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        peer = await real_world().network.open_stream(address)
        own = await network.open_stream(address)
        while len(accepted) < 2:  # noqa: ASYNC110 - the other side of the socket tells nobody
            await trio.sleep(0.01)

        await life.end()

        with trio.fail_after(60):
            assert await peer.receive_some(1) == b""
        with pytest.raises(trio.ClosedResourceError):
            await own.send_all(b"x")
        with pytest.raises(OSError, match="the process has been killed"):
            await network.open_stream(address)
        await peer.aclose()
        nursery.cancel_scope.cancel()


async def test_all_connections_of_the_dead_end_in_one_turn() -> None:
    """Else those that come last are served on meanwhile."""
    life, count = Life(), 20
    network = mortal(real_world(), life).network
    (listener,) = await network.open_listeners("127.0.0.1", 0)
    address = Address("127.0.0.1", network.listener_port(listener))
    own = [await network.open_stream(address) for _ in range(count)]
    seen: set[int] = set()

    async def watch() -> None:
        while is_open := sum(isinstance(stream, TcpStream) and stream.socket.fileno() >= 0 for stream in own):
            seen.add(is_open)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        nursery.start_soon(life.end)

    assert len(seen) <= 2
    await listener.aclose()


async def test_the_dead_take_no_new_connection() -> None:
    """The system accepts them as long as the socket that listens is open."""
    life = Life()
    network = mortal(real_world(), life).network
    (listener,) = await network.open_listeners("127.0.0.1", 0)
    await life.end()
    peer = await real_world().network.open_stream(Address("127.0.0.1", network.listener_port(listener)))

    with pytest.raises(OSError, match="the process has been killed"):
        await listener.accept()

    with trio.fail_after(60):
        assert await peer.receive_some(1) == b""
    await peer.aclose()
    await listener.aclose()
