"""Groups of Java clients that are reset on the server's side, as brokers of 5.x do it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import CLIENTS, mqadmin, start_java
from .driver import bodies, expected
from .servers import Cluster, Maker, running

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def server_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Maker.OURS, tmp_path_factory.mktemp("cluster"), useServerSideResetOffset="true") as cluster:
        yield cluster


@pytest.mark.parametrize("version", sorted(CLIENTS))
def test_members_start_over_where_their_next_pull_sends_them(server_side: Cluster, tmp_path: Path, version: str) -> None:
    """A running group gets everything once more, although nobody asked its members for anything; so does one offline."""
    java = start_java(version, server_side.namesrv, tmp_path)
    topic = group = f"reset_{version.replace('.', '_')}"
    reset = ("resetOffsetByTime", "-n", server_side.namesrv, "-g", group, "-t", topic, "-s", "0")
    try:
        java.send(topic=topic, count=10)
        with java.consuming("push", topic=topic, group=group) as consumer:
            consumer.wait(10)
            mqadmin(java, *reset)
            consumer.wait_deliveries(20, 60)
            assert bodies(consumer.stop()) == sorted(expected(10) * 2)

        mqadmin(java, *reset)
        with java.consuming("push", topic=topic, group=group) as consumer:
            consumer.wait(10)
            assert bodies(consumer.stop()) == expected(10)
    finally:
        java.close()
