"""The address of one end of a connection, in a module of its own so that programs without trio can name a server."""

from __future__ import annotations

import ipaddress

import attrs

from .logs import shortened

HOST_CHARACTERS_MAX = 253
"""The longest host name that DNS allows; a longer one is refused."""
LABEL_CHARACTERS_MAX = 63
"""The longest label of a host name that DNS allows; a longer one is refused."""


@attrs.frozen
class Address:
    """Host and port of one end of a connection; `str()` gives RocketMQ's `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port`, or `[host]:port` where the host is an IPv6 address.

        Raises:
            ValueError: no port, one outside 0 to 65535, or a host that no resolver takes.
        """
        host, colon, port = text.strip().rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
        host = bare_host(host)
        if not colon or not is_port or not _is_host(host):
            raise ValueError(f"an address is HOST:PORT (got {shortened(repr(text), HOST_CHARACTERS_MAX)})")
        return cls(host, int(port))


def bare_host(host: str) -> str:
    """Return `host` without the brackets in which RocketMQ writes an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_numeric_host(host: str) -> bool:
    """Whether `host` is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches a port that is opened at `host`; empty means every address of the machine."""
    return host == "localhost" or (is_numeric_host(host) and ipaddress.ip_address(host).is_loopback)


def _is_host(host: str) -> bool:
    if not 1 <= len(host) <= HOST_CHARACTERS_MAX or not host.isprintable() or any(each in host for each in " /,;@[]"):
        return False
    if ":" in host:
        try:
            return ipaddress.ip_address(host.partition("%")[0]).version == 6
        except ValueError:
            return False
    if host.isascii():
        return all(1 <= len(label) <= LABEL_CHARACTERS_MAX for label in host.removesuffix(".").split("."))
    try:
        host.encode("idna")  # as resolving it would
    except UnicodeError:
        return False
    return True
