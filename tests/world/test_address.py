"""Addresses, as files, peers and command lines write them."""

from __future__ import annotations

import pytest

from ledgermq.world.address import Address, is_numeric_host


@pytest.mark.parametrize(
    "text",
    [
        *("garbage", "masterAddr=garbage", "a..b:1", "a:", ":1", "a:b", "a:65536", "a:-1", "a:\u0661", "a:99999999999"),
        *("a b:1", "a/b:1", "a\0b:1", "\x1b[2J:1", "[::1:1", "[::z]:1", "1:2:3:4", f"{'x' * 64}.de:1", f"{'x.' * 150}de:1"),
        *("\u00fc..de:1", "user@host:1"),
    ],
)
def test_what_no_resolver_takes_is_no_address(text: str) -> None:
    """A resolver would raise an error that nobody expects, in the task that connects."""
    with pytest.raises(ValueError, match="an address is HOST:PORT") as caught:
        Address.parse(text)

    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:10911", "10.0.0.1", 10911),
        (" broker_a.example.com:0 ", "broker_a.example.com", 0),
        ("[::1]:9876", "::1", 9876),
        ("fe80::1:9876", "fe80::1", 9876),
        ("b\u00fccher.de:65535", "b\u00fccher.de", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    """IPv6 addresses with brackets or, as Java writes them, without."""
    address = Address.parse(text)

    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(("host", "numeric"), [("10.0.0.1", True), ("fe80::1", True), ("localhost", False), ("", False)])
def test_a_name_is_not_numeric(host: str, numeric: bool) -> None:
    """Message ids hold numbers alone."""
    assert is_numeric_host(host) is numeric
