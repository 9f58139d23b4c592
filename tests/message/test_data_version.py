"""The version of a table."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.message.data_version import DataVersion


def test_a_version_is_read_back() -> None:
    """4.9 has no state version; what is absent counts as 0."""
    version = DataVersion(3, 7, 1)

    assert DataVersion.from_json(version.to_json()) == version
    assert DataVersion.from_json({"counter": "3", "timestamp": 7}) == DataVersion(3, 7)
    assert DataVersion.from_json(None) == DataVersion.from_json({}) == DataVersion()


def test_every_change_has_another_version() -> None:
    """Also within one millisecond."""
    assert DataVersion(3, 7, 1).next(7) == DataVersion(4, 7, 1)


@pytest.mark.parametrize("value", [[], "x", 5, {"counter": "x"}, {"counter": 1 << 63}, {"timestamp": [1]}])
def test_what_is_no_version_is_refused(value: Any) -> None:
    """It must not pass for a table that nobody has changed."""
    with pytest.raises((TypeError, ValueError)):
        DataVersion.from_json(value)
