"""What a name server takes."""

from __future__ import annotations

import pytest

from ledgermq.namesrv.bounds import NAME_CHARACTERS_MAX, checked_address, checked_name
from ledgermq.remoting.errors import RequestRefused


@pytest.mark.parametrize("name", ["", "x" * (NAME_CHARACTERS_MAX + 1), "a\nb", "\x1b[31m", "\u202e"])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    """The remark says what is allowed."""
    with pytest.raises(RequestRefused, match=r"a broker .* nothing was changed"):
        checked_name("broker", name)


@pytest.mark.parametrize("name", ["b", "x" * NAME_CHARACTERS_MAX, "\u4e3b-1", "%RETRY%g|x"])
def test_other_names_are_taken_as_they_are(name: str) -> None:
    """Names of clusters and brokers may be in any script."""
    assert checked_name("broker", name) == name


@pytest.mark.parametrize(
    "text", ["garbage", "a..b:1", ":1", "a:", "a:65536", "a:-1", "a b:1", "h" * 300 + ":1", "\x1b:1", "[::x]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The remark names the field."""
    with pytest.raises(RequestRefused, match="brokerAddr: an address is HOST:PORT"):
        checked_address("brokerAddr", text)
