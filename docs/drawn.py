"""Write the table of `docs/drawn.md` that says which workload of the simulator draws which request.

`python docs/drawn.py` writes it; with `--check` it only compares, and its exit status says whether the table is up to date.
Either way it fails if a broker, a name server, a controller or a consumer serves a request that changes state and that nobody
draws: no workload, nor the floor of groups with controllers.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, cast

import trio
import trio.testing

from harness.simulate.elected import ElectedRun
from harness.simulate.workloads.registry import WORKLOADS
from ledgermq.client.peer_requests import PeerRequests
from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.server import open_controller
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.remoting.codes import READ_ONLY, RequestCode
from ledgermq.testing.embedded import open_virtual
from ledgermq.testing.sim.world import sim_world

PAGE = Path(__file__).with_name("drawn.md")
BEGIN, END = "<!-- made by docs/drawn.py -->\n", "<!-- end -->\n"


async def served() -> dict[str, frozenset[int]]:
    """The request codes that each kind of peer serves."""
    electing = ControllerConfig(bind_address="10.0.0.1", peers="n0-10.0.0.1:2", store_path="s", allow_empty_ha_secret=True)
    async with (
        open_virtual() as embedded,
        open_virtual(mode="dledger", nodes=3) as group,
        open_virtual(mode="controller", nodes=2) as pair,
        open_namesrv(NamesrvConfig(listen_port=1, bind_address="10.0.0.1"), sim_world(0)) as names,
        open_controller(electing, sim_world(0)) as controller,
    ):
        peers = PeerRequests(cast("Any", None))
        return {
            "broker": frozenset[int]().union(*(cluster.brokers[0].dispatcher.codes for cluster in (embedded, group, pair))),
            "name server": names.dispatcher.codes,
            "controller": controller.dispatcher.codes,
            "consumer": frozenset(peers.handlers()),
        }


def table(codes: dict[str, frozenset[int]]) -> str:
    """The table; ends the process if a request that changes state is drawn by nobody."""
    everything = frozenset[int]().union(*codes.values())
    served_by_some = [RequestCode(code) for code in sorted(everything - READ_ONLY)]
    drawing = {**WORKLOADS, "the floor `elected`": ElectedRun}
    drawn = {name: [request for request in served_by_some if request in one.codes] for name, one in drawing.items()}
    missing = [
        f"{int(each)} {each.name}" for each in served_by_some if not any(each in requests for requests in drawn.values())
    ]
    if missing:
        sys.exit(f"no workload of the simulator draws {', '.join(missing)}, and READ_ONLY does not list them")
    rows = (
        f"| {name} | {', '.join(f'{int(each)} `{each.name}`' for each in requests)} |\n"
        for name, requests in sorted(drawn.items())
        if requests
    )
    return "| workload | requests that change state |\n|---|---|\n" + "".join(rows)


def main() -> None:
    """Write or check the page."""
    logging.getLogger("ledgermq").setLevel(logging.CRITICAL)
    made = table(trio.run(served, clock=trio.testing.MockClock(autojump_threshold=0)))
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} lacks the marks {BEGIN!r} and {END!r}")
    text = before + begin + made + end + after
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what is served and drawn: run python {__file__}")


if __name__ == "__main__":
    main()
