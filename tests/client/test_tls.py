"""A cluster that speaks nothing but TLS: name server, master, slave, and every kind of client of ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import attrs
import pytest
import trio

from ledgermq import ClientTls, blocking
from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig, config_of
from ledgermq.broker.opening import open_broker
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import NoRoute
from ledgermq.client.producer import open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.remoting.errors import BadTlsSetting
from ledgermq.world.real import real_world
from ledgermq.world.tls import TlsFailed

from .fake_cluster import until


class Certificate(Protocol):
    cert: str
    key: str


class MakeCertificate(Protocol):
    def __call__(self, name: str, password: str = "") -> Certificate: ...


@attrs.frozen
class Secured:
    namesrv: str
    master: Broker
    slave: Broker


@asynccontextmanager
async def open_secured(store: Path, keys: dict[str, str]) -> AsyncGenerator[Secured]:
    name_server = NamesrvConfig(listen_port=0, bind_address="127.0.0.1").with_entries(keys)
    async with open_namesrv(name_server, real_world()) as namesrv:
        common = {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "namesrvAddr": str(namesrv.address),
            "mappedFileSizeCommitLog": "1M",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
            "haSecret": "s",
            **keys,
        }
        slave_keys = {"brokerRole": "SLAVE", "brokerId": "1", "storePathRootDir": str(store / "slave")}
        async with (
            open_broker(config_of({**common, "storePathRootDir": str(store / "master")})) as master,
            open_broker(config_of({**common, **slave_keys})) as slave,
        ):
            yield Secured(str(namesrv.address), master, slave)


async def test_cluster_that_takes_nothing_but_tls(tmp_path: Path, make_certificate: MakeCertificate) -> None:
    """Brokers register and slaves copy tables encrypted and authenticated; so do all clients, from threads too."""
    server, client = make_certificate("server"), make_certificate("client")
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert,
        "tls.server.keyPath": server.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": client.cert,
        "tls.enable": "true",
        "tls.client.certPath": client.cert,
        "tls.client.keyPath": client.key,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": server.cert,
    }
    tls = ClientTls(trust_cert_path=server.cert, cert_path=client.cert, key_path=client.key)
    async with open_secured(tmp_path, keys) as cluster:
        with trio.fail_after(120):
            async with open_producer(cluster.namesrv, tls=tls, send_timeout_seconds=60) as producer:
                for number in range(3):
                    await producer.send(Message("t", b"%d" % number))
            async with open_consumer(cluster.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST, tls=tls) as consumer:
                received: set[bytes] = set()
                while len(received) < 3:
                    async with consumer.take() as batch:
                        received.update(message.body for message in batch)
                assert received == {b"0", b"1", b"2"}
            async with open_admin(cluster.namesrv, tls=tls) as admin:
                assert "t" in await admin.topics()
            async with open_pull_consumer(cluster.namesrv, "p", tls=tls) as pull:
                assert await pull.queues("t")
            await until(lambda: "t" in cluster.slave.topics.topics)

            def send_from_thread() -> bytes:
                with blocking.open_producer(cluster.namesrv, tls=tls, send_timeout_seconds=60) as sender:
                    return sender.send(Message("t", b"from a thread")).status.name.encode()

            assert await trio.to_thread.run_sync(send_from_thread) == b"SEND_OK"

            async with open_producer(cluster.namesrv) as plain:
                with pytest.raises(NoRoute):
                    await plain.send(Message("t", b"in the clear"))


async def test_tls_is_there_without_any_setting(tmp_path: Path) -> None:
    """As RocketMQ does in its test mode: encryption for whoever asks for it, authentication for nobody."""
    async with open_secured(tmp_path, {}) as cluster:
        with trio.fail_after(120):
            async with (
                open_producer(cluster.namesrv, tls=True, send_timeout_seconds=60) as secret,
                open_producer(cluster.namesrv) as plain,
            ):
                await secret.send(Message("t", b"secret"))
                await plain.send(Message("t", b"plain"))


async def test_broker_without_its_certificate_does_not_start(tmp_path: Path) -> None:
    """Nothing is opened, neither port nor store, when TLS cannot be spoken as configured."""
    base = BrokerConfig(listen_port=0, store_path_root_dir=str(tmp_path / "store"))
    with pytest.raises(TlsFailed):
        async with open_broker(config_of({"tls.server.certPath": "/nowhere.pem"}, base)):
            pass
    with pytest.raises(BadTlsSetting):
        async with open_broker(config_of({"tls.config.file": "/nowhere"}, base)):
            pass
    assert not (tmp_path / "store").exists()
