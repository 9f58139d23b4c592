"""What a name server answers to collectors and probes."""

from __future__ import annotations

import gc
import socket

import orjson
import pytest

from ledgermq.broker.opening import open_broker
from ledgermq.namesrv.config import NamesrvConfig, read_namesrv_conf
from ledgermq.namesrv.errors import BadNamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.ports import reserved_ports
from ledgermq.world.real import real_world

from ..broker.test_monitoring import get


async def test_a_name_server_serves_its_metrics_and_its_state(tmp_path: object) -> None:
    """Brokers and topics by number, requests by code; it is ready as soon as it serves."""
    with reserved_ports("127.0.0.1", 1) as (port,):
        config = NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", metrics_exporter_type="PROM", metrics_prom_exporter_port=port
        )
        async with open_namesrv(config, real_world()) as server:
            (of_broker,) = broker_configs(str(tmp_path), "127.0.0.1", settings={"namesrvAddr": str(server.address)})
            async with open_broker(of_broker, real_world()):
                status, text = await get(port, "/metrics")
            live, (ready, checks) = await get(port, "/livez"), await get(port, "/readyz")

    labels = f'{{cluster="",node_id="{server.address}",node_type="nameserver"}}'
    assert status == 200
    assert f"ledgermq_namesrv_brokers{labels} 1.0" in text.decode()
    assert f"ledgermq_namesrv_masterless_names{labels} 0.0" in text.decode()
    assert b'rocketmq_rpc_latency_count{cluster="",node_id=' in text
    assert b'request_code="103"' in text
    assert (live, ready, orjson.loads(checks)) == ((200, b"ok\n"), 200, {})


async def test_a_name_server_whose_port_of_metrics_is_taken_leaves_no_port_open() -> None:
    """A listener that is left open is a warning when it is collected, and warnings are errors here."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            metrics_exporter_type="PROM",
            metrics_prom_exporter_port=taken.getsockname()[1],
        )
        with pytest.raises(OSError, match="cannot listen"):
            async with open_namesrv(config, real_world()):
                pass
    gc.collect()


def test_a_kind_of_exporter_that_is_not_here_is_refused() -> None:
    with pytest.raises(BadNamesrvConfig, match="metricsExporterType must be one of DISABLE, PROM"):
        read_namesrv_conf("metricsExporterType=OTLP_GRPC\n")
