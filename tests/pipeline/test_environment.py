"""Credentials of the driver's environment."""

from __future__ import annotations

import pytest

from ledgermq.pipeline.environment import signed
from ledgermq.pipeline.errors import BadOption

PLACE = {"nameServer": "h:1", "subscribe": "T"}


def test_options_without_credentials_get_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options count more, whatever their spelling; half of the variables is a mistake."""
    assert signed(PLACE) == PLACE
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "alice")
    with pytest.raises(BadOption, match="LEDGERMQ_SECRET_KEY"):
        signed(PLACE)
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "hush")

    assert signed(PLACE) == {**PLACE, "accessKey": "alice", "secretKey": "hush"}
    assert signed({**PLACE, "ACCESSKEY": "bob"}) == {**PLACE, "ACCESSKEY": "bob"}
