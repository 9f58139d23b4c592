"""Which settings of replication go together."""

from __future__ import annotations

import pytest

from ledgermq.ha.classic.settings import BARE, OURS, HaSettings
from ledgermq.ha.errors import WrongHaSetting


def test_there_are_two_protocols() -> None:
    """Another name is refused with both."""
    with pytest.raises(WrongHaSetting, match=r"haProtocol is ledgermq or rocketmq \(got 'apache'\)"):
        HaSettings(protocol="apache")


def test_the_protocol_of_controller_mode_is_one_of_rocketmqs() -> None:
    """Our own one carries epochs in every mode."""
    with pytest.raises(WrongHaSetting, match="needs haProtocol = rocketmq"):
        HaSettings(autoswitch=True)
    assert not HaSettings(protocol=BARE, autoswitch=True).bare
    assert HaSettings(protocol=BARE).bare
    assert not HaSettings(protocol=OURS).bare
