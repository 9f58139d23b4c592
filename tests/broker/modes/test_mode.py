"""Which mode a broker runs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.modes.classic import ClassicMode
from ledgermq.broker.modes.dledger import DLedgerMode
from ledgermq.broker.modes.mode import Mode, mode_of
from ledgermq.world.address import Address
from ledgermq.world.real import real_world

DLEDGER = {
    "enable_dleger_commit_log": True,
    "dleger_self_id": "n0",
    "dleger_peers": "n0-127.0.0.1:40911",
    "bind_address": "127.0.0.1",
}


@pytest.mark.parametrize(("keys", "expected"), [({}, ClassicMode), (DLEDGER, DLedgerMode)])
def test_a_configuration_names_one_mode(keys: dict[str, object], expected: type[Mode]) -> None:
    mode = mode_of(attrs.evolve(BrokerConfig(), **keys), real_world(), Address("127.0.0.1", 10911))

    assert isinstance(mode, expected)


CLASSIC_BROKER = """
import sys, trio
from ledgermq.broker.opening import start_broker
from ledgermq.broker.config import BrokerConfig

async def main():
    async with start_broker(BrokerConfig(listen_port=0, bind_address="127.0.0.1", store_path_root_dir=sys.argv[1])):
        print(*sorted(name for name in sys.modules if name.startswith(("ledgermq.ha.raft", "ledgermq.ha.dledger"))))

trio.run(main)
"""


def test_a_classic_broker_imports_no_raft(tmp_path: Path) -> None:
    """Its modules would cost each start time and memory."""
    command = [sys.executable, "-c", CLASSIC_BROKER, str(tmp_path / "store")]

    out = subprocess.run(command, capture_output=True, text=True, check=True)

    assert out.stdout == "\n"
