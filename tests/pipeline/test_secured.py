"""Servers that take nothing but TLS, and requests that are signed for brokers with access control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
import trio

from ledgermq import ClientTls, Message, open_producer
from ledgermq.pipeline.catalog import batch_ranges
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.errors import BadOption, NotWritten, Unavailable
from ledgermq.pipeline.link import Link, link_to
from ledgermq.pipeline.options import Servers, read_options, write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.reading import TaskReader, open_catalog
from ledgermq.pipeline.sender import Sender
from ledgermq.pipeline.sink import begin
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.signature import Credentials, sign
from ledgermq.testing.embedded import Embedded
from ledgermq.world.address import Address

from ..client.test_tls import MakeCertificate, open_secured
from .brokers import create_topic


def bodies(**options: str) -> list[bytes]:
    read = read_options({"subscribe": "T", "failoverTimeoutMs": "300", **options}, streaming=False)
    task = tuple(batch_ranges(open_catalog(read), read))
    return [body for batch in TaskReader(read, chosen(read.content)).read(task) for body in batch.column("body").to_pylist()]


def write(**options: str) -> None:
    given = write_options({"topic": "T", **options})
    sender = Sender(given, begin(given), None)
    batch = pa.RecordBatch.from_pydict({"body": [b"written"]})
    sender.add(Rows({"body": "body"}, "T", 1000, allow_null_body=False).messages(batch, "here"))
    sender.flush()


async def test_topics_of_a_cluster_that_takes_nothing_but_tls(tmp_path: Path, make_certificate: MakeCertificate) -> None:
    """Options have the names of RocketMQ's properties; without them no server answers."""
    server, client = make_certificate("server"), make_certificate("client")
    of_servers = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert,
        "tls.server.keyPath": server.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": client.cert,
    }
    options = {
        "tls.enable": "true",
        "tls.client.certPath": client.cert,
        "tls.client.keyPath": client.key,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": server.cert,
    }
    tls = ClientTls(trust_cert_path=server.cert, cert_path=client.cert, key_path=client.key)
    async with open_secured(tmp_path, {**of_servers, **options}) as cluster:
        async with open_producer(cluster.namesrv, tls=tls) as producer:
            await producer.send(Message("T", b"sent"))
        place = {"nameServer": cluster.namesrv}

        await trio.to_thread.run_sync(lambda: write(**place, **options))
        found = await trio.to_thread.run_sync(lambda: bodies(**place, **options))
        with pytest.raises(Unavailable, match="no name server answered"):
            await trio.to_thread.run_sync(lambda: bodies(**place))

    assert sorted(found) == [b"sent", b"written"]


@attrs.define
class Recording:
    """Sockets that keep what is sent and never answer."""

    sent: bytearray = attrs.field(factory=bytearray)

    def connect(self, address: Address, timeout_seconds: float) -> Any:
        return self

    def settimeout(self, timeout_seconds: float) -> None:
        pass

    def sendall(self, content: bytes) -> None:
        self.sent += content

    def close(self) -> None:
        pass


def test_every_request_is_signed_with_the_given_keys() -> None:
    """The options have the names of RocketMQ's properties; a link of other credentials is another one."""
    place = read_options(
        {"nameServer": "127.0.0.1:1", "subscribe": "T", "accessKey": "AK1", "secretKey": "SK1"}, streaming=False
    ).place
    assert isinstance(place, Servers)
    link, plain = link_to(place.namesrv[0], place), link_to(place.namesrv[0], attrs.evolve(place, credentials=None))
    link.sockets = recording = Recording()

    link.submit(RemotingCommand(105, {"topic": "T1"}), 1.0)

    expected = RemotingCommand(105, {"topic": "T1"})
    sign(expected, Credentials("AK1", "SK1"))
    expected.opaque = 1
    assert bytes(recording.sent) == encode_frame(expected)
    assert plain is not link


def test_a_repeated_task_that_may_not_look_for_its_rows_names_the_right(
    broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first attempt does not need it; so the refusal would come as a broker that stays busy, long after all was set up."""
    create_topic(broker.namesrv, "secured", 1)
    call = Link.call

    def refuse(self: Link, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            return RemotingCommand(ResponseCode.NO_PERMISSION, remark="not allowed")
        return call(self, command, timeout_seconds)

    monkeypatch.setattr(Link, "call", refuse)
    options = write_options({"nameServer": broker.namesrv, "topic": "secured", "failoverTimeoutMs": "300"})
    sender = Sender(options, begin(options), "secured.0.0")
    sender.look_before_sending()
    batch = pa.RecordBatch.from_pydict({"body": [b"written"]})

    with pytest.raises(NotWritten, match=r"code 16, not allowed.*the right Get for the cluster"):
        sender.add(Rows({"body": "body"}, "secured", 1000, allow_null_body=False).messages(batch, "here"))


@pytest.mark.parametrize("given", [{"accessKey": "a"}, {"secretKey": "s"}, {"securityToken": "t"}])
def test_one_key_alone_is_refused(given: dict[str, str]) -> None:
    """The other one was forgotten, or misspelt."""
    with pytest.raises(BadOption, match="are given together"):
        read_options({"nameServer": "h:1", "subscribe": "T", **given}, streaming=False)


def test_an_error_does_not_show_a_secret() -> None:
    """Errors name options with their values, and logs keep them."""
    with pytest.raises(BadOption) as refused:
        write_options({"nameServer": "h:1", "accessKey": "a", "secretKey": "hush", "SECRETKEY": "other"})

    assert "hush" not in str(refused.value)
    assert "other" not in str(refused.value).replace("the other value", "")
