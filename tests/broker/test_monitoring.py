"""What a broker answers to probes and collectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from ledgermq.broker.config import BrokerConfig, config_of
from ledgermq.broker.errors import BadConfig
from ledgermq.broker.monitoring import monitoring_of
from ledgermq.remoting.metrics import Latencies, LoopTurns
from ledgermq.testing.ports import reserved_ports

from .desk import Desk, open_desk


async def get(port: int, path: str) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: broker\r\n\r\n".encode())
        text = b"".join([bytes(piece) async for piece in stream])
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def faults(desk: Desk) -> Mapping[str, str | None]:
    clock = desk.broker.world.clock
    return monitoring_of(desk.broker, LoopTurns(clock), Latencies(clock)).faults()


async def test_a_broker_serves_its_metrics_and_its_state(tmp_path: Path) -> None:
    """On a port of their own, which nobody but this machine reaches unless another address is configured."""
    with reserved_ports("127.0.0.1", 1) as (port,):
        async with open_desk(str(tmp_path), metrics_exporter_type="PROM", metrics_prom_exporter_port=port):
            status, text = await get(port, "/metrics")
            live = await get(port, "/livez")
            ready, checks = await get(port, "/readyz")

    assert (status, live) == (200, (200, b"ok\n"))
    assert b"rocketmq_storage_size{" in text
    assert b"ledgermq_event_loop_turn_seconds_bucket{" in text
    assert (ready, orjson.loads(checks)) == (200, {"store": "ok", "registered": "ok", "role": "ok", "lag": "ok"})
    assert BrokerConfig().metrics_prom_exporter_host == "127.0.0.1"


async def test_a_broker_that_clients_cannot_use_is_not_ready(tmp_path: Path) -> None:
    """It names what is missing: a name server, room on the disk, a master."""
    settings: dict[str, Any] = {"metrics_exporter_type": "PROM", "namesrv_addr": "127.0.0.1:1"}
    with reserved_ports("127.0.0.1", 1) as (port,):
        async with open_desk(str(tmp_path / "a"), metrics_prom_exporter_port=port, **settings) as desk:
            desk.broker.store.writability.disk_full = True
            status, body = await get(port, "/readyz")
    async with open_desk(str(tmp_path / "b"), broker_role="SLAVE", broker_id=1, ha_master_address="127.0.0.1:1") as slave:
        of_slave = faults(slave)

    checks = orjson.loads(body)
    assert status == 503
    assert checks["registered"] == "no name server has registered this broker"
    assert checks["store"].startswith("the disk is full")
    assert (checks["role"], checks["lag"]) == ("ok", "ok")
    assert of_slave["role"] == "the broker is a slave; send to its master; and none is connected"
    assert of_slave["store"] is None, "a slave takes no messages, which is nothing that is missing"


async def test_nothing_is_served_unless_it_is_configured(tmp_path: Path) -> None:
    """RocketMQ's key switches it on; what of it is not here is refused by name."""
    with reserved_ports("127.0.0.1", 1) as (port,):
        async with open_desk(str(tmp_path), metrics_prom_exporter_port=port):
            with pytest.raises(OSError, match="attempts to connect"):
                await get(port, "/livez")

    with pytest.raises(BadConfig, match="metricsExporterType must be one of DISABLE, PROM"):
        config_of({"metricsExporterType": "OTLP_GRPC"})
