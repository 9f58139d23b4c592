"""`ledgermq top`: a cluster at a glance, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click
import trio

from ..client.admin import Admin, open_admin
from ..client.errors import ClientError
from .clients import Seconds, chosen_tls, namesrv_option, talks_to_cluster
from .cluster import degradations_of, outages_of, state_of
from .group import SYSTEM_GROUPS

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUPS_MAX = 20
"""How many groups are asked for their lag, unless some are named; those that lag most are shown first."""


@attrs.frozen
class Seen:
    """A cluster at one moment."""

    at: float
    """By trio's clock, in seconds."""
    rows: list[dict[str, Any]]
    faults: list[str]
    lags: Mapping[str, int]
    """How many messages each group is behind."""


@attrs.frozen
class Rate:
    """What a broker does each second."""

    puts: float
    gets: float


def rate_of(row: Mapping[str, Any], before: Seen | None, at: float) -> Rate:
    """The rates of a broker since the last look; at the first one, those that it reports itself."""
    earlier = next((each for each in before.rows if each["address"] == row["address"]), None) if before is not None else None
    if before is None or earlier is None or not row["runtime"] or not earlier["runtime"]:
        return Rate(row["in_tps"] or 0.0, row["out_tps"] or 0.0)
    seconds = max(at - before.at, 0.001)

    def per_second(key: str) -> float:
        return max(0.0, float(row["runtime"].get(key) or 0) - float(earlier["runtime"].get(key) or 0)) / seconds

    return Rate(per_second("msg_put_total_today_now"), per_second("msg_get_total_today_now"))


@click.command("top")
@click.option("--interval", "seconds", type=Seconds(), default=2.0, show_default=True, help="How often to look.")
@click.option("--group", "groups", multiple=True, help="Show the lag of this group; may be repeated. By default of up to 20.")
@click.option("--once", is_flag=True, help="Print what there is, and end.")
@namesrv_option
@talks_to_cluster
async def command(seconds: float, groups: tuple[str, ...], once: bool, namesrv: str) -> None:
    """Show rates, roles, replication and lags of a cluster until Ctrl-C; needs `pip install 'ledgermq[top]'`."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra, which only this command needs
        from rich.live import Live  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException("ledgermq top draws with rich: pip install 'ledgermq[top]'") from error
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        seen = await look(admin, groups)
        if once:
            Console().print(frame(seen, None))
            return
        with Live(frame(seen, None), screen=True, auto_refresh=False) as live:
            while True:
                await trio.sleep(seconds)
                before, seen = seen, await look(admin, groups, seen)
                live.update(frame(seen, before), refresh=True)


async def look(admin: Admin, groups: tuple[str, ...], before: Seen | None = None) -> Seen:
    """Ask all brokers, and for the lags of groups.

    Raises:
        ClientError: a part is not available, and nothing was seen before. Otherwise the error is one of the faults, and what
            was seen last stays, because a cluster is looked at while it fails over.
    """
    faults = list[str]()
    rows, lags = (before.rows, before.lags) if before is not None else ([], dict[str, int]())
    try:
        rows, nodes = await state_of(admin)
        faults += [*outages_of(rows, nodes), *degradations_of(rows, nodes)]
        chosen = groups or tuple(name for name in sorted(await admin.groups()) if name not in SYSTEM_GROUPS)[:GROUPS_MAX]
        lags = {group: sum(position.lag for position in (await admin.group_stats(group)).values()) for group in chosen}
    except ClientError as error:
        if before is None:
            raise
        faults.append(str(error))
    return Seen(trio.current_time(), rows, faults, lags)


def frame(seen: Seen, before: Seen | None) -> RenderableType:
    """What is drawn: what is missing, the brokers, the groups."""
    from rich.console import Group  # noqa: PLC0415 - see `command`
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    brokers, lags = Table(expand=True), Table()
    for name in ("broker", "role", "address"):
        brokers.add_column(name)
    for name in ("in/s", "out/s", "disk %", "log end"):
        brokers.add_column(name, justify="right")
    brokers.add_column("replication", ratio=1)
    for row in seen.rows:
        rate = rate_of(row, before, seen.at)
        end = "-" if row["log_end"] is None else str(row["log_end"])
        disk = "-" if row["disk_percent"] is None else f"{row['disk_percent']:.0f}"
        words = (row["broker"], row["role"], row["address"], f"{rate.puts:.0f}", f"{rate.gets:.0f}", disk, end)
        brokers.add_row(*map(Text, words), Text(row["replication"] or ""), style="red" if row["error"] else "")
    lags.add_column("group")
    lags.add_column("behind", justify="right")
    for group, lag in sorted(seen.lags.items(), key=lambda item: -item[1]):
        lags.add_row(Text(group), Text(str(lag)))
    faults = [Text(f"missing: {each}", style="bold red") for each in seen.faults]
    return Group(*faults, brokers, *([lags] if seen.lags else []))
