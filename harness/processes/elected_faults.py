"""Two brokers and three controllers that elect their master, as real processes on a virtual network, under faults.

`python -m harness.processes.elected_faults`. Faults meet brokers and controllers alike.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .dledger import GroupOfProcesses
from .group_faults import BROKER_PORT, Kind, command, machines, node_name
from .network import VirtualNetwork

BROKERS, CONTROLLERS = 2, 3
CONTROLLER_PORT, RAFT_PORT = 19876, 9877
WHOLE_SECONDS = 2.5
"""Longer than a replica may be silent before it leaves the set."""


@asynccontextmanager
async def open_group(directory: Path) -> AsyncGenerator[tuple[VirtualNetwork, GroupOfProcesses]]:
    """Run a name server, two brokers and three controllers, each on a machine of its own.

    Raises:
        NetworkUnavailable: such a network cannot be created here. Nothing was started.
    """
    async with machines(directory, BROKERS + CONTROLLERS) as (virtual, namesrv):
        places = [virtual[node_name(number)] for number in range(BROKERS + CONTROLLERS)]
        electing = places[BROKERS:]
        shared = {
            "namesrvAddr": namesrv.address,
            "haSecret": "secret",
            "listenPort": BROKER_PORT,
            "mappedFileSizeCommitLog": 64 << 20,
            "enableControllerMode": "true",
            "controllerAddr": ";".join(f"{each.host}:{CONTROLLER_PORT}" for each in electing),
        }
        settings = [{**shared, "brokerIP1": each.host} for each in places[:BROKERS]]
        peers = ";".join(f"n{at}-{each.host}:{RAFT_PORT}" for at, each in enumerate(electing))
        files: list[Path] = []
        for at, each in enumerate(electing):
            files.append(directory / f"controller-{at}.conf")
            files[at].write_text(
                f"controllerDLegerSelfId=n{at}\ncontrollerDLegerPeers={peers}\ncontrollerStorePath={directory}/controller-{at}\n"
                f"bindAddress={each.host}\nlistenPort={CONTROLLER_PORT}\nhaSecret=secret\n"
            )
        group = GroupOfProcesses(directory, str(namesrv.address), settings, files, places)
        async with group.running():
            yield virtual, group


def _log_of(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def _is_whole(statuses: list[dict[str, Any]]) -> bool:
    elected = [status["controller"] for status in statuses]
    whole = all(len(each["syncStateSet"]) == BROKERS for each in elected)
    return whole and len({each.get("masterEpoch") for each in elected}) == 1


def _end_of(status: dict[str, Any]) -> int | None:
    elected = status["controller"]
    end = status["masterCommitLogMaxOffset"]
    return end if elected["confirmOffset"] == end and len(elected["syncStateSet"]) == BROKERS else None


KIND = Kind("elected_faults", open_group, _is_whole, WHOLE_SECONDS, _end_of, _log_of)


if __name__ == "__main__":
    raise SystemExit(command(KIND, __doc__))
