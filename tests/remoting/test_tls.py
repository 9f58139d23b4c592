"""TLS on the port of plain connections: modes, client certificates, reloading, broken handshakes; RocketMQ's settings of it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Protocol

import attrs
import pytest
import trio
from trio.abc import HalfCloseableStream

from ledgermq.pipeline.link import Link, LinkLost
from ledgermq.remoting.channel import connected
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.errors import BadTlsSetting, ConnectionLost
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.tls import TlsSettings
from ledgermq.testing.logs import capture_logs
from ledgermq.world import tls
from ledgermq.world.clock import SystemClock
from ledgermq.world.disk import RealDisk
from ledgermq.world.network import Address, Network, TcpNetwork
from ledgermq.world.tls import HANDSHAKE_SECONDS, ClientTls, ServerTls, TlsAcceptor, TlsFailed, TlsNetwork, TlsSockets
from ledgermq.world.workers import ThreadWorkers

WORKERS = ThreadWorkers()
SESAME = "open, sesame"
BODY = b"x" * 200_000  # many records of TLS
CLOSED = (
    "closed the connection, as one does whose TLS is disabled or that has no certificate; its log says why; nothing was sent"
)


class Certificate(Protocol):
    cert: str
    key: str


class MakeCertificate(Protocol):
    def __call__(self, name: str, password: str = "") -> Certificate: ...


@asynccontextmanager
async def serving(settings: ServerTls, network: Network | None = None) -> AsyncGenerator[Address]:
    dispatcher = Dispatcher()
    dispatcher.register(1, lambda _, request: request.response(body=request.body))
    network = network or TcpNetwork()
    server = RemotingServer(dispatcher, network, SystemClock(), tls=TlsAcceptor(settings, WORKERS))
    async with trio.open_nursery() as nursery:
        dispatcher.nursery = nursery
        listeners = list(await network.open_listeners("127.0.0.1", 0))
        await nursery.start(server.serve, listeners)
        yield Address("127.0.0.1", network.listener_port(listeners[0]))
        nursery.cancel_scope.cancel()
    assert not server.connections


def encrypted(settings: ClientTls | None = None) -> TlsNetwork:
    return TlsNetwork(TcpNetwork(), settings or ClientTls(), WORKERS)


async def echo(address: Address, network: Network, body: bytes = BODY) -> bytes:
    with trio.fail_after(60):
        async with connected(address, network=network) as channel:
            return (await channel.call(RemotingCommand(1, body=body), 60)).body


async def refusal_of(address: Address, network: Network) -> str:
    """Why a client did not get its answer."""
    reasons: list[str] = []
    try:
        await echo(address, network, b"")
    except* ConnectionLost as group:
        reasons = [str(error) for error in group.exceptions]
    assert len(reasons) == 1
    return reasons[0]


def ask_in_thread(address: Address) -> bytes:
    with closing(Link(address, TlsSockets())) as link:
        return link.call(RemotingCommand(1), 60).body


async def test_one_port_serves_plain_and_encrypted_clients() -> None:
    """RocketMQ's permissive mode, with a certificate made when the first client asked for one."""
    async with serving(ServerTls()) as address:
        assert await echo(address, TcpNetwork()) == BODY
        assert await echo(address, encrypted()) == BODY


async def test_enforcing_server_closes_plain_connections() -> None:
    """Only encrypted clients are answered; the others see a closed socket."""
    async with serving(ServerTls(mode="enforcing")) as address:
        assert await echo(address, encrypted()) == BODY
        with capture_logs() as logs:
            assert "closed by the server" in await refusal_of(address, TcpNetwork())
        assert [entry["event"] for entry in logs] == ["plain_connection_refused"]


async def test_disabled_server_closes_encrypted_connections() -> None:
    """Only plain clients are answered; the others see a closed socket, and their error says what that means."""
    async with serving(ServerTls(mode="disabled")) as address:
        assert await echo(address, TcpNetwork()) == BODY
        with capture_logs() as logs:
            assert CLOSED in await refusal_of(address, encrypted())
            with pytest.raises(LinkLost, match=CLOSED):
                await trio.to_thread.run_sync(ask_in_thread, address)
        assert logs[0]["event"] == "tls_connection_refused"


async def test_server_without_a_certificate_closes_encrypted_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads what that may mean and where to look; the server's log has the cause."""

    def make_none(_context: ssl.SSLContext) -> None:
        raise TlsFailed("nothing to make one with")

    monkeypatch.setattr(tls, "_load_made", make_none)
    async with serving(ServerTls()) as address:
        with capture_logs() as logs:
            reason = await refusal_of(address, encrypted())

    assert str(address) in reason
    assert CLOSED in reason
    assert "UNEXPECTED_EOF" not in reason
    assert "nothing to make one with" in logs[0]["reason"]


async def test_server_that_speaks_no_tls_is_distinguished_from_one_that_is_gone() -> None:
    """Its port was meant for something else."""

    async def answer_plainly(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(trio.serve_tcp, answer_plainly, 0)
        address = Address("127.0.0.1", listeners[0].socket.getsockname()[1])
        reason = await refusal_of(address, encrypted())
        nursery.cancel_scope.cancel()

    assert "does not speak TLS on this port; nothing was sent" in reason


async def test_client_that_authenticates_takes_only_the_server_it_trusts(make_certificate: MakeCertificate) -> None:
    """A server with another certificate is refused before anything is asked."""
    server, other = make_certificate("server", password=SESAME), make_certificate("other")
    settings = ServerTls(cert_path=server.cert, key_path=server.key, key_password=SESAME)
    async with serving(settings) as address:
        assert await echo(address, encrypted(ClientTls(trust_cert_path=server.cert))) == BODY
        reason = await refusal_of(address, encrypted(ClientTls(trust_cert_path=other.cert)))
        assert "CERTIFICATE_VERIFY_FAILED" in reason
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal_of(address, encrypted(ClientTls(auth_server=True)))


@pytest.mark.parametrize("client_auth", ["optional", "require"])
async def test_server_that_authenticates_takes_only_clients_it_trusts(
    make_certificate: MakeCertificate, client_auth: Any
) -> None:
    """A foreign certificate is always refused, none only where one is required."""
    server, client, other = (make_certificate(name) for name in ("server", "client", "other"))
    settings = ServerTls(cert_path=server.cert, key_path=server.key, client_auth=client_auth, trust_cert_path=client.cert)
    async with serving(settings) as address:
        assert await echo(address, encrypted(ClientTls(cert_path=client.cert, key_path=client.key))) == BODY
        with capture_logs() as logs:
            await refusal_of(address, encrypted(ClientTls(cert_path=other.cert, key_path=other.key)))
        assert {entry["event"] for entry in logs} == {"tls_handshake_failed"}
        if client_auth == "optional":
            assert await echo(address, encrypted()) == BODY
        else:
            await refusal_of(address, encrypted())


async def test_changed_certificate_is_shown_to_the_next_client(tmp_path: Path, make_certificate: MakeCertificate) -> None:
    """A server goes on with what it had until certificate and key fit together again; open connections stay."""
    server = make_certificate("server")
    trusted = copy(server.cert, tmp_path / "trusted.pem")
    trusting = encrypted(ClientTls(trust_cert_path=trusted))
    async with (
        serving(ServerTls(cert_path=server.cert, key_path=server.key)) as address,
        connected(address, network=trusting) as open_before,
    ):
        old_key = copy(server.key, tmp_path / "old.key")
        make_certificate("server")
        new_key = copy(server.key, tmp_path / "new.key")
        copy(old_key, Path(server.key))
        with capture_logs() as logs:
            assert await echo(address, trusting) == BODY
            assert await echo(address, trusting) == BODY
        assert [entry["event"] for entry in logs] == ["tls_files_not_reloaded"]

        copy(new_key, Path(server.key))
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal_of(address, trusting)
        copy(server.cert, Path(trusted))
        assert await echo(address, trusting) == BODY
        assert (await open_before.call(RemotingCommand(1, body=b"still"), 60)).body == b"still"


def copy(source: str, target: Path) -> str:
    target.write_bytes(Path(source).read_bytes())
    return str(target)


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16",
        b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000,
        b"\x16" * 1000,
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x03\x00\x04\x0e\x00\x00\x00",
    ],
)
async def test_broken_handshake_costs_that_connection_alone(junk: bytes) -> None:
    """What follows 0x16 and is no ClientHello ends the connection and nothing else."""
    with capture_logs() as logs:
        async with serving(ServerTls()) as address, connected(address, network=encrypted()) as bystander:
            for _ in range(3):
                stream = await TcpNetwork().open_stream(address)
                await stream.send_all(junk)
                assert isinstance(stream, HalfCloseableStream)
                await stream.send_eof()
                with trio.fail_after(60):
                    try:
                        while await stream.receive_some():
                            pass
                    except trio.BrokenResourceError:
                        pass
                await stream.aclose()
            assert (await bystander.call(RemotingCommand(1, body=b"on"), 60)).body == b"on"
    assert {entry["event"] for entry in logs} == {"tls_handshake_failed"}


@attrs.frozen
class AtOnce:
    async def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


async def test_handshake_that_does_not_end_is_ended(network: Network, clock: Any, autojump_clock: Any) -> None:
    """A client that begins and falls silent is closed after `HANDSHAKE_SECONDS`, long before it would count as idle."""
    server = RemotingServer(Dispatcher(), network, clock, tls=TlsAcceptor(ServerTls(), AtOnce()))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, list(await network.open_listeners("", 0)))
        stream = await network.open_stream(Address("server", 1))
        await stream.send_all(b"\x16\x03\x01\x02\x00")
        with capture_logs() as logs:
            assert await stream.receive_some() == b""
        assert trio.current_time() == pytest.approx(HANDSHAKE_SECONDS, abs=1)
        assert "not done within" in logs[0]["reason"]
        nursery.cancel_scope.cancel()


async def test_connection_that_is_cut_inside_tls_ends_in_order() -> None:
    """A peer that goes without a word ends its connection as a plain one does: quietly."""
    with capture_logs() as logs:
        async with serving(ServerTls()) as address:
            for _ in range(2):
                stream = await encrypted().open_stream(address)
                await trio.aclose_forcefully(stream)
            assert await echo(address, encrypted()) == BODY
    assert logs == []


async def test_plain_threads_speak_tls_too(make_certificate: MakeCertificate) -> None:
    """A link of Spark's workers on encrypted sockets, trusted and not."""
    server, other = make_certificate("server"), make_certificate("other")
    async with serving(ServerTls(cert_path=server.cert, key_path=server.key, mode="enforcing")) as address:

        def ask(trusted: str) -> bytes:
            with closing(Link(address, TlsSockets(ClientTls(trust_cert_path=trusted)))) as link:
                return link.call(RemotingCommand(1, body=BODY), 60).body

        assert await trio.to_thread.run_sync(ask, server.cert) == BODY
        with pytest.raises(LinkLost, match="CERTIFICATE_VERIFY_FAILED"):
            await trio.to_thread.run_sync(ask, other.cert)


async def test_files_that_cannot_be_used_stop_the_start(
    make_certificate: MakeCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, a wrong password, a foreign key; and enforcing without any certificate."""
    one, other = make_certificate("one", password=SESAME), make_certificate("other")
    for settings in (
        ServerTls(cert_path="/nowhere.pem"),
        ServerTls(cert_path=one.cert, key_path=one.key),
        ServerTls(cert_path=one.cert, key_path=one.key, key_password=SESAME[1:]),
        ServerTls(cert_path=one.cert, key_path=other.key),
    ):
        with pytest.raises(TlsFailed, match="cannot be used"):
            await TlsAcceptor(settings, WORKERS).check()
    await TlsAcceptor(ServerTls(mode="disabled", cert_path="/nowhere.pem"), WORKERS).check()

    def make_none(_context: ssl.SSLContext) -> None:
        raise TlsFailed("nothing to make one with")

    monkeypatch.setattr(tls, "_load_made", make_none)
    await TlsAcceptor(ServerTls(), WORKERS).check()
    with pytest.raises(TlsFailed, match="nothing to make one with"):
        await TlsAcceptor(ServerTls(mode="enforcing"), WORKERS).check()


def settings(**given: str) -> TlsSettings:
    """Settings by keys, with `_` for their dots."""
    return TlsSettings({key.replace("_", "."): value for key, value in given.items()})


def test_servers_make_a_certificate_unless_one_is_named() -> None:
    """As in RocketMQ's test mode; but a certificate that is named is used, which there wants the mode switched off."""
    assert settings().server() == ServerTls()
    assert settings(tls_server_mode="enforcing").server() == ServerTls(mode="enforcing")
    named = {"tls_server_certPath": "c", "tls_server_keyPath": "k", "tls_server_keyPassword": SESAME}
    assert settings(**named).server() == ServerTls(cert_path="c", key_path="k", key_password=SESAME)
    assert settings(tls_test_mode_enable="true", **named).server() == ServerTls()
    with pytest.raises(BadTlsSetting, match=r"tls\.server\.certPath must be set"):
        settings(tls_test_mode_enable="false").server()


def test_clients_are_believed_only_by_a_certificate_that_is_checked() -> None:
    """`require` that would take any certificate is refused; without `authClient` an optional one is not asked for."""
    named = {"tls_server_certPath": "c", "tls_server_trustCertPath": "t"}
    require = {**named, "tls_server_need_client_auth": "require"}
    enforcing = {**require, "tls_server_mode": "enforcing"}
    assert settings(**enforcing, tls_server_authClient="true").server().client_auth == "require"
    with pytest.raises(BadTlsSetting, match=r"tls\.server\.mode must be enforcing"):
        settings(**require, tls_server_authClient="true").server()  # whoever has no certificate would connect without TLS
    with pytest.raises(BadTlsSetting, match=r"tls\.server\.need\.client\.auth must be require or optional"):
        settings(**named, tls_server_authClient="true").server()  # nobody would be asked for a certificate
    assert settings(**named, tls_server_need_client_auth="optional").server().client_auth == "none"
    with pytest.raises(BadTlsSetting, match=r"tls\.server\.authClient must be true"):
        settings(**require).server()
    with pytest.raises(BadTlsSetting, match=r"tls\.server\.trustCertPath must be set"):
        settings(tls_server_certPath="c", tls_server_need_client_auth="optional", tls_server_authClient="true").server()


def test_clients_authenticate_servers_when_configured() -> None:
    """By `authServer`, and by a trust path unless that says no; never in test mode."""
    assert not settings().is_client
    assert settings(tls_enable="true").is_client
    assert settings().client() == ClientTls()
    assert settings(tls_client_trustCertPath="t").client() == ClientTls(trust_cert_path="t")
    assert settings(tls_client_authServer="false").client() == ClientTls(auth_server=False)
    assert settings(tls_client_trustCertPath="t", tls_test_mode_enable="true").client() == ClientTls()


def test_the_file_wins_over_other_settings(tmp_path: Path) -> None:
    """`tls.config.file` is read over what is given beside it; one that is named must exist, and passwords are never shown."""
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode = enforcing\ntls.server.keyPassword=secret\nother=1\n")
    given = TlsSettings({"tls.config.file": str(file), "tls.server.mode": "disabled", "tls.enable": "true"})

    read = given.with_file(RealDisk())

    assert read.server().mode == "enforcing"
    assert read.is_client
    assert read.shown() == {"tls.config.file": str(file), "tls.server.mode": "enforcing", "tls.enable": "true"}
    assert "secret" not in repr(read)
    with pytest.raises(BadTlsSetting, match="a file that exists"):
        TlsSettings({"tls.config.file": "/nowhere"}).with_file(RealDisk())


@pytest.mark.parametrize(
    ("key", "value"), [("tls.server.mode", "on"), ("tls.enable", "yes"), ("tls.server.need.client.auth", "")]
)
def test_a_value_that_means_nothing_is_refused(key: str, value: str) -> None:
    """Typing errors must not look like protection."""
    with pytest.raises(BadTlsSetting, match=key):
        TlsSettings().updated({key: value})


def test_clients_are_not_left_unauthenticated_for_want_of_a_certificate_of_ours() -> None:
    """The test mode, which asks none for a certificate, is on by default only where nothing of the kind is wanted."""
    for wanted in ({"tls_server_authClient": "true"}, {"tls_server_need_client_auth": "require"}):
        with pytest.raises(BadTlsSetting, match=r"tls\.server\.certPath must be set where clients"):
            settings(**wanted).server()
        assert settings(**wanted, tls_test_mode_enable="true").server().client_auth == "none"
    assert settings(tls_server_need_client_auth="optional").server().client_auth == "none"


async def test_a_trust_file_that_is_none_is_named_whole(tmp_path: Path) -> None:
    """OpenSSL's words hold colons themselves."""
    file = tmp_path / "ca.pem"
    file.write_text("garbage")

    with pytest.raises(ConnectionLost, match=rf"could not connect: {file} cannot be used \(\[X509: NO_CERT"):
        await echo(Address("127.0.0.1", 1), encrypted(ClientTls(trust_cert_path=str(file))))
