"""Whole requests at real servers; an hour of them is `python -m harness.processes.edge`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from harness.processes.edge import fuzz_edge
from harness.processes.requests import BROKER, CONTROLLER, NAMESRV, draw_request
from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.server import open_controller
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import HEADER_SIZE_MAX, decode_command
from ledgermq.remoting.errors import RemoteProtocolError
from ledgermq.remoting.frame import FrameReader
from ledgermq.testing.embedded import open_virtual
from ledgermq.world.real import real_world


async def test_every_code_that_a_broker_serves_is_drawn(autojump_clock: trio.testing.MockClock) -> None:
    """A code that nobody draws is a code that nobody has tried."""
    async with open_virtual() as cluster:
        (broker,) = cluster.brokers

        assert broker.dispatcher.codes == {whole.code for whole in BROKER}


async def test_every_code_that_a_name_server_serves_is_drawn() -> None:
    """As for a broker."""
    async with open_namesrv(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"), real_world()) as namesrv:
        assert namesrv.dispatcher.codes == {whole.code for whole in NAMESRV}


async def test_every_code_that_a_controller_serves_is_drawn(tmp_path: Path) -> None:
    """As for a broker."""
    config = ControllerConfig(listen_port=0, bind_address="127.0.0.1", store_path=str(tmp_path), peers="n0-127.0.0.1:0")
    async with open_controller(config, real_world()) as controller:
        assert controller.dispatcher.codes == {whole.code for whole in CONTROLLER}


def test_what_is_drawn_are_whole_frames() -> None:
    """Our own reader takes them apart, but those whose header is too long."""
    rng = random.Random(7)
    too_long = 0
    for opaque in range(5000):
        frame = draw_request(rng, BROKER + NAMESRV + CONTROLLER, opaque)
        try:
            ((wire, header, body),) = FrameReader().feed(frame)
        except RemoteProtocolError:
            too_long += 1
            assert int.from_bytes(frame[5:8]) > HEADER_SIZE_MAX
            continue
        command = decode_command(wire, header, body)
        assert command.opaque == opaque
        assert command.code in RequestCode.__members__.values()

    assert 0 < too_long < 100


@pytest.mark.slow
async def test_whole_requests_of_strangers_harm_nobody_else(tmp_path: Path) -> None:
    """For some seconds: no long turn, no unexpected error, bounded memory, and everything is served at the end."""
    run = await fuzz_edge(tmp_path, 6, seed=1)

    assert run.violations == []
    assert all(run.frames[name] > 100 for name in ("namesrv", "master", "slave")), run.summary()
    assert run.probes > 5
