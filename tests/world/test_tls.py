"""Handshakes over streams in memory: who is believed, certificates that change, and what a failed handshake leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from trio.abc import Listener

from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address, PlainStream, Stream
from ledgermq.world.tls import HANDSHAKE_SECONDS, ClientTls, ServerTls, TlsAcceptor, TlsFailed, TlsNetwork
from ledgermq.world.workers import ThreadWorkers

from ..conftest import Certificate, MakeCertificate

HERE = Address("127.0.0.1", 1)
WORKERS = ThreadWorkers()
SESAME = "open, sesame"


@attrs.define(eq=False)
class Pairs:
    """A network whose every connection leads to `accepted`."""

    accepted: list[Stream] = attrs.field(factory=list[Stream])
    on_connect: Callable[[], object] = attrs.field(default=lambda: None)

    async def open_stream(self, address: Address) -> Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self.accepted.append(PlainStream(theirs, HERE, HERE))
        self.on_connect()
        return PlainStream(ours, HERE, HERE)

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        raise NotImplementedError

    def listener_port(self, listener: Listener[Stream]) -> int:
        raise NotImplementedError

    def own_host(self) -> str:
        return HERE.host


async def talk(acceptor: TlsAcceptor, settings: ClientTls, *, first: int = 0) -> bytes:
    """Let a client and a server shake hands and the client send some bytes; returns what the server received.

    Args:
        first: how many bytes the server has read before it knew that the client speaks TLS.
    """
    network, received, failures = Pairs(), bytearray(), list[TlsFailed]()

    async def serve() -> None:
        (plain,) = network.accepted
        read = bytes(await plain.receive_some(first)) if first else b""
        try:
            stream = await acceptor.accept(plain, read)
            received.extend(await stream.receive_some(100))
        except TlsFailed as error:
            failures.append(error)
        finally:
            await trio.aclose_forcefully(plain)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            network.on_connect = lambda: nursery.start_soon(serve)
            try:
                stream = await TlsNetwork(network, settings, WORKERS).open_stream(HERE)
                with suppress(trio.BrokenResourceError):  # the server may have refused our certificate meanwhile
                    await stream.send_all(b"hello")
            except TlsFailed as error:
                failures.insert(0, error)
    if failures:
        raise failures[0]
    return bytes(received)


def of_server(own: Certificate, trusted: Certificate | None = None, **changes: str) -> TlsAcceptor:
    settings = ServerTls(cert_path=own.cert, key_path=own.key, trust_cert_path=trusted.cert if trusted else "")
    return TlsAcceptor(attrs.evolve(settings, **changes), WORKERS)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [0, 1, 5, 100])
async def test_bytes_that_were_read_before_the_handshake_belong_to_it(make_certificate: MakeCertificate, first: int) -> None:
    """The server looks at the first byte to learn what the client speaks."""
    assert await talk(of_server(make_certificate("server")), ClientTls(), first=first) == b"hello"


async def test_what_the_peer_has_not_received_is_dropped_by_the_stream_below(
    make_certificate: MakeCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encrypted one has no socket of its own."""
    network, dropping = Pairs(), list[Stream]()

    def drop(stream: Stream) -> None:
        dropping.append(stream)

    monkeypatch.setattr(PlainStream, "drop_undelivered", drop)

    async def serve() -> None:
        await of_server(make_certificate("server")).accept(network.accepted[0], b"")

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            network.on_connect = lambda: nursery.start_soon(serve)
            stream = await TlsNetwork(network, ClientTls(), WORKERS).open_stream(HERE)
    stream.drop_undelivered()

    assert [type(each) for each in dropping] == [PlainStream]


async def test_each_side_believes_whom_it_trusts(make_certificate: MakeCertificate) -> None:
    """Both may ask for a certificate, and both may name the authority."""
    server, client = make_certificate("server"), make_certificate("client")
    acceptor = of_server(server, client, client_auth="require")
    trusting = ClientTls(trust_cert_path=server.cert, cert_path=client.cert, key_path=client.key)

    assert await talk(acceptor, trusting) == b"hello"
    with pytest.raises(TlsFailed, match="TLS handshake failed"):
        await talk(acceptor, attrs.evolve(trusting, cert_path=server.cert, key_path=server.key))
    with pytest.raises(TlsFailed, match="nothing was sent"):
        await talk(acceptor, attrs.evolve(trusting, trust_cert_path=client.cert))


async def test_a_certificate_that_is_replaced_is_used_for_the_next_handshake(make_certificate: MakeCertificate) -> None:
    """One that cannot be read is not: the last good one serves on, and the log says why."""
    old = make_certificate("server")
    acceptor = of_server(old)
    trusting_old = ClientTls(trust_cert_path=make_copy(old.cert, "old.pem"))
    assert await talk(acceptor, trusting_old) == b"hello"

    with capture_logs() as logs:
        write(old.cert, "no certificate")
        assert await talk(acceptor, trusting_old) == b"hello"
        new = make_certificate("server")
        assert await talk(acceptor, ClientTls(trust_cert_path=new.cert)) == b"hello"

    assert [entry["event"] for entry in logs] == ["tls_files_not_reloaded", "tls_files_reloaded"]
    with pytest.raises(TlsFailed):
        await talk(acceptor, trusting_old)


def make_copy(path: str, name: str) -> str:
    copy = Path(path).with_name(name)
    copy.write_bytes(Path(path).read_bytes())
    return str(copy)


def write(path: str, text: str) -> None:
    Path(path).write_text(text)
    os.utime(path, ns=(1, 1))


async def test_a_key_needs_its_password(make_certificate: MakeCertificate) -> None:
    """Without one, OpenSSL would ask for it on the terminal."""
    own = make_certificate("server", SESAME)

    with pytest.raises(TlsFailed, match="cannot be used"):
        await of_server(own).check()
    await of_server(own, key_password=SESAME).check()


async def test_a_client_that_never_ends_its_handshake_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """The caller closes the stream."""
    _, theirs = trio.testing.memory_stream_pair()
    acceptor = TlsAcceptor(ServerTls(), WORKERS)
    with pytest.raises(TlsFailed):  # bytes that are no handshake: now the certificate is made, while the clock may jump
        await acceptor.accept(PlainStream(trio.testing.memory_stream_pair()[0], HERE, HERE), b"\x16" * 100)

    began = trio.current_time()
    with pytest.raises(TlsFailed, match=f"not done within {HANDSHAKE_SECONDS:.0f} s"):
        await acceptor.accept(PlainStream(theirs, HERE, HERE), b"\x16")
    assert trio.current_time() - began >= HANDSHAKE_SECONDS


@pytest.mark.parametrize(
    ("mode", "plain", "tls"), [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)]
)
def test_the_mode_says_which_connections_are_accepted(mode: str, *, plain: bool, tls: bool) -> None:
    acceptor = TlsAcceptor(ServerTls(mode=mode), WORKERS)  # type: ignore[arg-type]

    assert (acceptor.takes_plain, acceptor.takes_tls) == (plain, tls)
