"""A real broker under malformed frames; a million of them are `python -m harness.processes.fuzz`."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack
from pathlib import Path

from harness.processes.fuzz import fuzz_broker
from harness.processes.malformed import KINDS
from harness.processes.servers import running_broker
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.world.network import TcpNetwork

GROWN_BYTES_MAX = 16 << 20
LEFT_BYTES_MAX = 16 << 20
HELD = 30
"""Connections that each leave an incomplete frame of 90 KB between two large ones."""


async def test_malformed_frames_harm_nobody_else(tmp_path: Path) -> None:
    """Each is answered, ignored or closes its own connection; the probe's messages go through, and memory stays."""
    run = await fuzz_broker(tmp_path, 20_000, seed=1)

    assert run.outcome.violations == []
    assert run.traffic.frames >= 20_000
    assert set(run.outcome.faults) == {kind.name for kind in KINDS}
    assert run.traffic.probes > 10
    assert run.traffic.grown_bytes < GROWN_BYTES_MAX, run.traffic.summary()


async def test_large_frames_leave_no_memory_behind(tmp_path: Path) -> None:
    """Small incomplete frames that came between them do not keep it either."""
    async with running_broker(tmp_path / "store") as broker, AsyncExitStack() as held:
        before = broker.resident_bytes

        async with connected(broker.address, network=TcpNetwork()) as channel:
            for number in range(HELD):
                body = b"x" * ((number * 7 % 15 + 1) << 20)
                answer = await channel.call(RemotingCommand(RequestCode.HEART_BEAT, body=body), 30)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                stream = await held.enter_async_context(await TcpNetwork().open_stream(broker.address))
                await stream.send_all(struct.pack(">iI", 1 << 20, 100) + bytes(90_000))
            await channel.call(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), 30)

        grown = broker.resident_bytes - before
        assert grown < HELD * 100_000 + LEFT_BYTES_MAX, f"{grown >> 20} MiB more than before"
