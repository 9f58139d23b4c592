"""`ledgermq check`: one line and an exit status for Nagios and its like."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from ..client.admin import open_admin
from ..client.admin.errors import NoSuchGroup
from ..client.errors import ClientError, InvalidArgument
from .clients import chosen_tls, explain, namesrv_option, talks_to_cluster
from .cluster import degradations_of, outages_of, state_of
from .output import one_line

_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
WARNING, CRITICAL, UNKNOWN = 1, 2, 3


class _Check(click.Command):
    """A command whose usage errors are a line with the status that means unknown; click's own, 2, would mean critical."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            _end(UNKNOWN, [error.format_message()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # a name server's address cannot be read
            _end(UNKNOWN, [error.format_message()])


@click.command("check", cls=_Check)
@click.option("--group", "groups", multiple=True, help="Also check the lag of this group; may be repeated.")
@click.option("--lag", "lag_max", type=click.IntRange(min=0), default=10_000, show_default=True, help="Warn above so many.")
@click.option(
    "--disk", "disk_max", type=click.IntRange(1, 100), default=85, show_default=True, help="Warn above so many per cent."
)
@click.option("--brokers", "names_min", type=click.IntRange(min=1), default=1, help="The least number of broker names.")
@namesrv_option
@talks_to_cluster
async def command(groups: tuple[str, ...], lag_max: int, disk_max: int, names_min: int, namesrv: str) -> None:
    """Check a cluster, and end with the status of a Nagios plugin: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.

    Critical is what keeps clients from sending or reading: no name server, no broker, fewer broker names than --brokers, a
    name without a master, a master that does not answer, a DLedger group without a leader or with two; under a controller, a
    master that waits for a replica which is gone because no controller answers, or with less than minInSyncReplicas. A warning
    is what only protects less, and a disk or a consumer group beyond its bound. Unknown is a wrong option, and a consumer group
    that does not exist or cannot be asked for. The line names all that was found; the status is that of the worst, in this
    order.
    """
    unknown: list[str] = []
    lags: dict[str, int] = {}
    try:
        async with open_admin(namesrv, tls=chosen_tls()) as admin:
            rows, nodes = await state_of(admin)
            for group in groups:
                try:
                    lags[group] = sum(position.lag for position in (await admin.group_stats(group)).values())
                except (InvalidArgument, NoSuchGroup) as error:
                    unknown.append(str(error))
                except ClientError as error:
                    unknown.append(f"{group}: {explain(error, namesrv).splitlines()[0]}")
    except ClientError as error:
        _end(CRITICAL, [explain(error, namesrv).splitlines()[0]])
    warnings = degradations_of(rows, nodes)
    warnings += [
        f"{row['broker']}: the disk of {row['address']} is {row['disk_percent']:.0f}% full"
        for row in rows
        if (row["disk_percent"] or 0) > disk_max
    ]
    warnings += [f"{group} is {lag} messages behind" for group, lag in lags.items() if lag > lag_max]
    outages, names = outages_of(rows, nodes), {row["broker"] for row in rows}
    if 0 < len(names) < names_min:
        outages.append(f"the name server knows {len(names)} broker names, {names_min} are expected")
    for status, found in ((CRITICAL, outages), (WARNING, warnings), (UNKNOWN, unknown)):
        if found:
            _end(status, outages + warnings + unknown)
    click.echo(f"OK: {len(rows)} brokers of {len(names)} names, {sum(row['in_tps'] for row in rows):.0f} messages in a second")


def _end(status: int, found: list[str]) -> NoReturn:
    click.echo(one_line(f"{_NAMES[status]}: {'; '.join(found)}"))
    raise click.exceptions.Exit(status)
