"""A DLedger group of real processes on a virtual network, under faults: `python -m harness.processes.dledger_faults`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ledgermq.testing.embedded import dledger_keys

from .dledger import NODES, GroupOfProcesses
from .group_faults import BROKER_PORT, Kind, command, machines, node_name
from .network import VirtualNetwork

RAFT_PORT = 40911


@asynccontextmanager
async def open_group(directory: Path) -> AsyncGenerator[tuple[VirtualNetwork, GroupOfProcesses]]:
    """Run a name server and three nodes, each on a machine of its own.

    Raises:
        NetworkUnavailable: such a network cannot be created here. Nothing was started.
    """
    async with machines(directory, NODES) as (virtual, namesrv):
        places = [virtual[node_name(number)] for number in range(NODES)]
        addresses = [f"{each.host}:{RAFT_PORT}" for each in places]
        shared = {"namesrvAddr": str(namesrv.address), "haSecret": "secret", "mappedFileSizeCommitLog": 64 << 20}
        settings = [
            {**shared, "listenPort": BROKER_PORT, "brokerIP1": each.host, **dledger_keys(at, addresses)}
            for at, each in enumerate(places)
        ]
        group = GroupOfProcesses(directory, str(namesrv.address), settings, places=places)
        async with group.running():
            yield virtual, group


def ledger_of(store: Path) -> bytes:
    """The bytes of a node's ledger, with the zero bytes behind its last entry."""
    (ledger,) = store.glob("dledger-*")
    return b"".join(path.read_bytes() for path in sorted((ledger / "data").iterdir()))


def _is_whole(_: list[dict[str, Any]]) -> bool:
    return True  # a majority is enough, whatever a follower lacks that was away


def _end_of(status: dict[str, Any]) -> int | None:
    ledger = status["dledger"]
    return status["masterCommitLogMaxOffset"] if ledger["committedIndex"] == ledger["endIndex"] else None


KIND = Kind("dledger_faults", open_group, _is_whole, 0.0, _end_of, ledger_of)


if __name__ == "__main__":
    raise SystemExit(command(KIND, __doc__))
