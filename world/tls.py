"""TLS around connections, on Python's `ssl`: what a server accepts, and networks whose connections are encrypted.

Contexts are built from files in worker threads, and built again when one of the files has changed. Open connections keep the
context with which they began. Host names are not checked: clients get brokers by address, and RocketMQ checks none either.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import attrs
import trio
from trio.abc import Listener

from .events import get_logger
from .network import Address, Network, PlainStream, Stream
from .sockets import Socket, TcpSockets
from .workers import Workers

log = get_logger(__name__)

TLS_HANDSHAKE = 0x16
"""The first byte of a connection that speaks TLS; of a frame it would be a length of 352 MiB."""
HANDSHAKE_SECONDS = 10.0

ServerMode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]


class TlsFailed(OSError):
    """A handshake failed, or a certificate cannot be used; the connection is closed."""


@attrs.frozen(kw_only=True)
class ServerTls:
    """How a server speaks TLS."""

    mode: ServerMode = "permissive"
    """Which connections are accepted: plain ones only, both kinds, or TLS only."""
    cert_path: str = ""
    """Certificate in PEM; if empty, one is made for this process when the first client asks for TLS."""
    key_path: str = ""
    key_password: str = attrs.field(default="", repr=False)
    client_auth: ClientAuth = "none"
    """Whether clients present a certificate; one that is presented must be signed by `trust_cert_path`."""
    trust_cert_path: str = ""


@attrs.frozen(kw_only=True)
class ClientTls:
    """How a client speaks TLS: always encrypted, authenticated as set here."""

    trust_cert_path: str = ""
    """Certificates (PEM) of authorities; a server must present a chain that ends in one of them."""
    auth_server: bool | None = None
    """Whether servers are authenticated; by default if `trust_cert_path` is set. Without it the system's are trusted."""
    cert_path: str = ""
    """The certificate that the client presents when a server asks for one."""
    key_path: str = ""
    key_password: str = attrs.field(default="", repr=False)


@attrs.define(eq=False)
class _Contexts:
    """Holds one context, and builds it again when one of its files has changed."""

    _make: Callable[[], ssl.SSLContext]
    _paths: Sequence[str]
    _stamps: object = None
    _context: ssl.SSLContext | None = None
    # Many connections ask concurrently, in worker threads: the first one builds the context, the others wait for it.
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @classmethod
    def of_server(cls, settings: ServerTls) -> _Contexts:
        return cls(lambda: _server_context(settings), _files_of(settings))

    @classmethod
    def of_client(cls, settings: ClientTls) -> _Contexts:
        return cls(lambda: _client_context(settings), _files_of(settings))

    def current(self) -> ssl.SSLContext:
        """The context of the files as they are now, or the last good one if they cannot be used.

        Raises:
            TlsFailed: the files cannot be used and no context was built before.
        """
        with self._lock:
            stamps = [_stamp(path) for path in self._paths]
            if self._context is None or stamps != self._stamps:
                reloaded = self._context is not None
                try:
                    self._context = self._make()
                except (OSError, ValueError) as error:  # for instance a key that is replaced a moment after its certificate
                    if self._context is None:
                        raise TlsFailed(f"{', '.join(self._paths) or 'TLS'} cannot be used ({error})") from error
                    log.warning("tls_files_not_reloaded", paths=self._paths, reason=str(error))
                else:
                    if reloaded:
                        log.info("tls_files_reloaded", paths=self._paths)
                self._stamps = stamps
            return self._context


def _files_of(settings: ServerTls | ClientTls) -> list[str]:
    return [path for path in (settings.cert_path, settings.key_path, settings.trust_cert_path) if path]


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@attrs.define(eq=False)
class TlsAcceptor:
    """The server's side of handshakes."""

    settings: ServerTls
    _workers: Workers
    _contexts: _Contexts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._contexts = _Contexts.of_server(self.settings)

    @property
    def takes_plain(self) -> bool:
        return self.settings.mode != "enforcing"

    @property
    def takes_tls(self) -> bool:
        return self.settings.mode != "disabled"

    async def check(self) -> None:
        """Check the files at the start; a self-signed certificate is made only for its first client.

        Raises:
            TlsFailed: the files cannot be used, or every client needs TLS and there is no certificate.
        """
        if self.takes_tls and (self.settings.cert_path or not self.takes_plain):
            await self._workers.run(self._contexts.current)

    async def accept(self, stream: Stream, received: bytes) -> Stream:
        """Complete the handshake with a client whose first bytes are `received`; returns the encrypted stream.

        Raises:
            TlsFailed: the handshake failed or took more than `HANDSHAKE_SECONDS`. The caller closes `stream`.
        """
        context = await self._workers.run(self._contexts.current)
        encrypted = trio.SSLStream(_Resumed(stream, received), context, server_side=True, https_compatible=True)
        await _shake_hands(encrypted, _reason)
        return PlainStream(encrypted, stream.local, stream.peer)


async def _shake_hands(stream: trio.SSLStream[Any], reason_of: Callable[[BaseException], str]) -> None:
    try:
        with trio.fail_after(HANDSHAKE_SECONDS):
            await stream.do_handshake()
    except trio.TooSlowError as error:
        raise TlsFailed(f"TLS handshake not done within {HANDSHAKE_SECONDS:.0f} s") from error
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise TlsFailed(f"TLS handshake failed ({reason_of(error.__cause__ or error)})") from error
    finally:
        _untie(stream)


def _untie(stream: trio.SSLStream[Any]) -> None:
    """Take the stream out of the cycle by which it refers to itself, so that its memory is freed when its connection ends.

    Until then it keeps its handshake, which is over, as a method of its own. A server does not collect old objects in cycles
    (`garbage.py`), and each stream has some 50 KiB in OpenSSL.
    """
    with suppress(AttributeError):  # another version of trio may name it otherwise; a test then finds the streams
        handshake: Any = stream._handshook  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        handshake._afn = None  # noqa: SLF001


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.reason}, {error.verify_message}"
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)


def _client_reason(error: BaseException) -> str:
    """Why a handshake with a server failed; a server that refuses only closes the connection."""
    found = _reason(error)
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or found == "UNEXPECTED_EOF_WHILE_READING":
        found = (
            "the server closed the connection, as one does whose TLS is disabled or that has no certificate; its log says why"
        )
    elif found == "WRONG_VERSION_NUMBER":
        found = "what answered does not speak TLS on this port"
    return f"{found}; nothing was sent"


@attrs.define(eq=False)
class _Resumed(trio.abc.Stream):
    """A stream whose first bytes were received already."""

    _stream: Stream
    _received: bytes

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._received:
            await trio.lowlevel.checkpoint()
            size = len(self._received) if max_bytes is None else max_bytes
            taken, self._received = self._received[:size], self._received[size:]
            return taken
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _server_context(settings: ServerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # renegotiation lets a client waste the server's CPU
    if settings.cert_path:
        _load_own(context, settings.cert_path, settings.key_path, settings.key_password)
    else:
        _load_made(context)
    if settings.client_auth != "none":
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_auth == "require" else ssl.CERT_OPTIONAL
        context.load_verify_locations(settings.trust_cert_path)
    return context


def _load_made(context: ssl.SSLContext) -> None:
    try:
        from .self_signed import load_self_signed  # noqa: PLC0415 - slow to import, and few servers need it
    except ImportError as error:
        raise TlsFailed("no tls.server.certPath is set, and to make a certificate `pip install 'ledgermq[tls]'`") from error
    load_self_signed(context)


def _client_context(settings: ClientTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    if not (bool(settings.trust_cert_path) if settings.auth_server is None else settings.auth_server):
        context.verify_mode = ssl.CERT_NONE
    elif settings.trust_cert_path:
        context.load_verify_locations(settings.trust_cert_path)
    else:
        context.load_default_certs()
    if settings.cert_path:
        _load_own(context, settings.cert_path, settings.key_path, settings.key_password)
    return context


def _load_own(context: ssl.SSLContext, cert_path: str, key_path: str, password: str) -> None:
    # A password is always passed, even an empty one: without it OpenSSL would ask for one on the terminal.
    context.load_cert_chain(cert_path, key_path or None, password)


@attrs.define(eq=False)
class _TlsStream(PlainStream):
    """A stream that is encrypted on another one."""

    _transport: Stream

    def drop_undelivered(self) -> None:
        self._transport.drop_undelivered()


@attrs.define(eq=False)
class TlsNetwork:
    """A network whose outgoing connections are encrypted; its listeners accept connections unchanged."""

    _network: Network
    settings: ClientTls
    _workers: Workers
    _contexts: _Contexts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._contexts = _Contexts.of_client(self.settings)

    async def open_stream(self, address: Address) -> Stream:
        context = await self._workers.run(self._contexts.current)
        plain = await self._network.open_stream(address)
        try:
            encrypted = trio.SSLStream(plain, context, https_compatible=True)
            await _shake_hands(encrypted, _client_reason)
            return _TlsStream(encrypted, plain.local, plain.peer, plain)
        except BaseException:
            await trio.aclose_forcefully(plain)
            raise

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        return await self._network.open_listeners(host, port)

    def listener_port(self, listener: Listener[Stream]) -> int:
        return self._network.listener_port(listener)

    def own_host(self) -> str:
        return self._network.own_host()


@attrs.define(eq=False)
class TlsSockets:
    """Blocking sockets that are encrypted."""

    settings: ClientTls = attrs.field(factory=ClientTls)
    _contexts: _Contexts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._contexts = _Contexts.of_client(self.settings)

    def connect(self, address: Address, timeout_seconds: float) -> Socket:
        deadline = time.monotonic() + timeout_seconds
        context = self._contexts.current()
        plain = TcpSockets().connect(address, timeout_seconds)
        try:
            plain.settimeout(max(0.001, deadline - time.monotonic()))
            return context.wrap_socket(plain)
        except (ssl.SSLError, ConnectionError) as error:
            plain.close()
            raise TlsFailed(f"TLS handshake failed ({_client_reason(error)})") from error
        except BaseException:
            plain.close()
            raise
