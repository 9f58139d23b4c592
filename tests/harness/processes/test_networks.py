"""The virtual network that real processes run on: its faults are what they say, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from harness.processes.network import NetworkUnavailable, Place, VirtualNetwork, virtual_network
from harness.processes.servers import running
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import CallTimeout, ConnectionLost

PORT = 9876
SOURCES = str(Path(__file__).resolve().parents[3] / "src")
LEFT_ALONE = """
import trio
from harness.processes.network import virtual_network

async def main():
    async with virtual_network("one", "two") as virtual:
        print(*(place.pid for place in (virtual.router, *virtual.places.values())), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@asynccontextmanager
async def two_machines(directory: Path) -> AsyncGenerator[tuple[VirtualNetwork, Channel]]:
    """A name server on a machine, and a connection to it from another one."""
    try:
        async with virtual_network("server", "client") as virtual:
            server = virtual["server"]
            arguments = ("namesrv", "--log-level", "warning", "--host", server.host, "--port", str(PORT))
            async with running(directory, *arguments, place=server) as namesrv:
                await namesrv.up()
                async with connected(namesrv.address, network=virtual["client"].network) as channel:
                    yield virtual, channel
    except NetworkUnavailable as error:
        pytest.skip(str(error))


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def ask(channel: Channel, seconds: float) -> int:
    """Ask something that is always answered."""
    return (await channel.call(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), seconds)).code


async def test_a_cut_swallows_one_way_in_silence_and_heals(tmp_path: Path) -> None:
    """The connection stays half-open: nothing tells either end, and it goes on afterwards."""
    async with two_machines(tmp_path) as (virtual, channel):
        assert await ask(channel, 10) == ResponseCode.SUCCESS

        for way in (("server", "client"), ("client", "server")):
            await virtual.cut(*way)
            with pytest.raises(CallTimeout):
                await ask(channel, 0.5)
            assert not channel.closed

            await virtual.heal()
            assert await ask(channel, 20) == ResponseCode.SUCCESS
        assert virtual.injected == {"one-way cuts": 2}


async def test_a_partition_lets_nobody_connect_until_it_is_healed(tmp_path: Path) -> None:
    """Neither way; an attempt waits, as there is nobody to refuse it."""
    async with two_machines(tmp_path) as (virtual, channel):
        await virtual.part(["server"], ["client"])
        with trio.move_on_after(0.5) as scope:
            async with connected(channel.address, network=virtual["client"].network):
                pass
        assert scope.cancelled_caught

        await virtual.heal()
        async with connected(channel.address, network=virtual["client"].network) as anew:
            assert await ask(anew, 10) == ResponseCode.SUCCESS


async def test_an_unplugged_machine_is_said_to_be_unreachable(tmp_path: Path) -> None:
    """At once, by the router."""
    async with two_machines(tmp_path) as (virtual, channel):
        await virtual.unplug("server")
        with pytest.raises(ConnectionLost, match="unreachable"):
            async with connected(channel.address, network=virtual["client"].network):
                pass

        await virtual.heal()
        assert await ask(channel, 20) == ResponseCode.SUCCESS


async def test_a_delayed_link_takes_longer(tmp_path: Path) -> None:
    """Where the kernel has netem."""
    async with two_machines(tmp_path) as (virtual, channel):
        assert await ask(channel, 10) == ResponseCode.SUCCESS
        await virtual.delay("server", 0.2)

        began = trio.current_time()
        assert await ask(channel, 10) == ResponseCode.SUCCESS
        assert trio.current_time() - began >= 0.2


async def test_a_machine_has_a_small_disk_that_others_do_not_see(tmp_path: Path) -> None:
    """It is full when it is full, and gone with the machine."""
    try:
        async with virtual_network("one") as virtual:
            place: Place = virtual["one"]
            await place.mount_small_disk(tmp_path, 1 << 20)
            seen = place.seen(tmp_path)
            (seen / "half").write_bytes(bytes(1 << 19))
            with pytest.raises(OSError, match="No space left"):
                (seen / "more").write_bytes(bytes(1 << 20))
            assert os.listdir(tmp_path) == []
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    assert not seen.exists()


async def test_nothing_stays_behind_after_a_failure() -> None:
    """The block ends by an exception: what kept the namespaces is gone."""
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError):
        await divide_by_zero(pids)
    assert pids
    assert alive(pids) == []


async def divide_by_zero(pids: list[int]) -> None:
    try:
        async with virtual_network("one", "two") as virtual:
            pids += [place.pid for place in (virtual.router, *virtual.places.values())]
            assert alive(pids) == pids
            raise ZeroDivisionError
    except NetworkUnavailable as error:
        pytest.skip(str(error))


async def test_nothing_stays_behind_a_process_that_is_killed() -> None:
    """Even if it gets to do nothing more, as its pipes end with it."""
    command = [sys.executable, "-c", LEFT_ALONE]
    process = await trio.lowlevel.open_process(
        command,
        env={"PYTHONPATH": SOURCES, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = b""
    while not said.endswith(b"\n") and (more := await process.stdout.receive_some()):
        said += more
    process.send_signal(signal.SIGKILL)
    await process.wait()
    errors = b"".join([part async for part in process.stderr]).decode()
    await process.stdout.aclose()
    if "NetworkUnavailable" in errors:
        pytest.skip(errors.splitlines()[-1])

    assert len(said.split()) == 3, errors
    with trio.fail_after(60):
        while alive([int(pid) for pid in said.split()]):  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.01)
