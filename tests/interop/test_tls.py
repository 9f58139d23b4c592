"""TLS with strangers: Java clients on our servers, our clients on Apache's; with certificates, and in RocketMQ's test mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from ledgermq import ClientTls
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.world.self_signed import self_signed

from .conftest import CLIENTS, obtain, start_java
from .driver import DriverError, bodies, expected
from .servers import Cluster, Maker, jars_of, running

pytestmark = pytest.mark.interop


@attrs.frozen
class Secured:
    """A cluster that takes nothing but TLS, and the certificate that all of it shows."""

    cluster: Cluster
    cert: Path


def secured(maker: Maker, folder: Path) -> Iterator[Secured]:
    certificate, key = self_signed("server")
    (folder / "server.pem").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)
    keys = {
        "tls.test.mode.enable": "false",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": folder / "server.pem",
    }
    with running(maker, folder, keys) as cluster:
        yield Secured(cluster, folder / "server.pem")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    yield from secured(Maker.OURS, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module", params=[Maker.APACHE_55, Maker.APACHE_49], ids=lambda maker: maker.value)
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    maker: Maker = request.param
    obtain(lambda: jars_of(maker))
    yield from secured(maker, tmp_path_factory.mktemp("apache"))


@pytest.mark.parametrize("version", sorted(CLIENTS))
@pytest.mark.parametrize("authenticates", [False, True], ids=["believing", "authenticating"])
def test_java_client_speaks_tls_with_our_servers(ours: Secured, tmp_path: Path, version: str, authenticates: bool) -> None:
    """`tls.enable=true` is all that an application sets: in RocketMQ's test mode, and with a certificate to trust."""
    properties = {"tls_test_mode_enable": "false", "tls_client_authServer": "true", "tls_client_trustCertPath": ours.cert}
    java = start_java(version, ours.cluster.namesrv, tmp_path, tls_enable="true", **(properties if authenticates else {}))
    topic = f"tls_{version.replace('.', '_')}_{authenticates}"
    try:
        sent = java.send(topic=topic, mode="sync", count=20)
        assert {each.status for each in sent} == {"SEND_OK"}
        with java.consuming("push", topic=topic, group=f"{topic}_g") as consumer:
            consumer.wait(20)
            assert bodies(consumer.stop()) == expected(20)
    finally:
        java.close()


def test_java_client_without_tls_is_not_served_where_tls_is_enforced(ours: Secured, tmp_path: Path) -> None:
    """It sees closed sockets."""
    java = start_java("5.5.0", ours.cluster.namesrv, tmp_path)
    try:
        with pytest.raises(DriverError):
            java.send(topic="plain", mode="sync", count=1)
    finally:
        java.close()


async def test_our_clients_speak_tls_with_apache_servers(apache: Secured) -> None:
    """Sends, consumes and administers, authenticated; another certificate than the trusted one is refused."""
    namesrv = apache.cluster.namesrv
    tls = ClientTls(trust_cert_path=str(apache.cert))
    with trio.fail_after(90):
        async with open_producer(namesrv, send_timeout_seconds=20, tls=tls) as producer:
            for number in range(10):
                await producer.send(Message("tls", b"%d" % number + b"x" * 50_000))
        async with open_consumer(namesrv, "tls_g", "tls", consume_from=ConsumeFrom.FIRST, tls=tls) as consumer:
            received: set[bytes] = set()
            while len(received) < 10:
                async with consumer.take() as batch:
                    received.update(message.body[:1] for message in batch)
        async with open_admin(namesrv, tls=tls) as admin:
            assert "tls" in await admin.topics()
        async with open_admin(namesrv, tls=ClientTls(auth_server=True)) as admin:
            with pytest.raises(ClientError):
                await admin.topics()
