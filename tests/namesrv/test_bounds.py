"""What a name server takes."""

from __future__ import annotations

import pytest

from ledgermq.namesrv.bounds import checked_address
from ledgermq.remoting.errors import RequestRefused


@pytest.mark.parametrize(
    "text", ["garbage", "a..b:1", ":1", "a:", "a:65536", "a:-1", "a b:1", "h" * 290 + ":1", "\x1b:1", "[::x]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The remark names the field."""
    with pytest.raises(RequestRefused, match="brokerAddr: an address is HOST:PORT"):
        checked_address("brokerAddr", text)


def test_an_address_has_no_more_spaces_than_anybody_types() -> None:
    """What surrounds it is kept with it, at every broker of the table."""
    with pytest.raises(RequestRefused, match="haServerAddr: an address has at most 300 characters"):
        checked_address("haServerAddr", " " * 1000 + "10.0.0.1:10911")
