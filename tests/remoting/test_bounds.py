"""Names that peers send."""

from __future__ import annotations

import pytest

from ledgermq.remoting.bounds import NAME_CHARACTERS_MAX, checked_name
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
