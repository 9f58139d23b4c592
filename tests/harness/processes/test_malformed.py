"""A real broker under malformed frames; a million of them are `python -m harness.processes.fuzz`."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.processes.fuzz import fuzz_broker
from harness.processes.malformed import KINDS
from harness.processes.servers import running_broker
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import FRAME_SIZE_MAX, RemotingCommand
from ledgermq.world.network import TcpNetwork

pytestmark = pytest.mark.slow
GROWN_BYTES_MAX = 48 << 20
"""The heap's reserve grows at any time in the run, when more large frames than before are incomplete at once."""
STEADILY_GROWN_BYTES_MAX = 12 << 20
"""A broker that keeps 2 KB of each request exceeds it."""
LEFT_BYTES_MAX = 8 << 20
"""More than the small incomplete frames that come in the second half of the run have in all."""
FRAMES = 30
"""Large frames, after each of which a connection leaves a small incomplete one."""


async def test_malformed_frames_harm_nobody_else(tmp_path: Path) -> None:
    """Each is answered, ignored or closes its own connection; the probe's messages go through, and memory stays."""
    run = await fuzz_broker(tmp_path, 20_000, seed=1)

    assert run.outcome.violations == []
    assert run.traffic.frames >= 20_000
    assert set(run.outcome.faults) == {kind.name for kind in KINDS}
    assert run.traffic.probes > 10
    assert run.traffic.grown_bytes < GROWN_BYTES_MAX, run.traffic.summary()
    assert run.traffic.steadily_grown_bytes < STEADILY_GROWN_BYTES_MAX, run.traffic.summary()


async def test_large_frames_leave_no_memory_behind(tmp_path: Path) -> None:
    """Small incomplete frames that came between them do not keep it either.

    The pieces in which a large frame arrives come from the heap, and the small frames keep the heap from shrinking. The large
    frames of the first half are given up before their end: they leave this reserve and no more. Growth is counted from there.
    """
    async with running_broker(tmp_path / "store") as broker, AsyncExitStack() as held:
        network = TcpNetwork()

        async def leave_a_small_one() -> None:
            stream = await held.enter_async_context(await network.open_stream(broker.address))
            await stream.send_all(struct.pack(">iI", 1 << 20, 100) + bytes(90_000))

        async with connected(broker.address, network=network) as channel:

            async def have_all_read() -> None:
                await channel.call(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), 30)

            for number in range(FRAMES // 2):
                async with await network.open_stream(broker.address) as given_up:
                    await given_up.send_all(struct.pack(">iI", FRAME_SIZE_MAX - 4, 100) + bytes(large_size(number)))
                    await have_all_read()
                    await leave_a_small_one()
                    await have_all_read()
            await have_all_read()
            before = broker.resident_bytes

            for number in range(FRAMES // 2):
                body = b"x" * large_size(number)
                answer = await channel.call(RemotingCommand(RequestCode.HEART_BEAT, body=body), 30)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                await leave_a_small_one()
            await have_all_read()

        grown = broker.resident_bytes - before
        assert grown < LEFT_BYTES_MAX, f"{grown >> 20} MiB more than after the first half"


def large_size(number: int) -> int:
    """One to 15 MiB, in another order."""
    return (number * 7 % 15 + 1) << 20
