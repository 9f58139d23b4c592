"""`ledgermq broker config` and `ledgermq broker drain`: a broker that runs, from anywhere."""

from __future__ import annotations

from typing import Any

import click
import trio

from ..client.admin import Admin, open_admin
from ..client.errors import ClientError
from ..message.units import MASTER_ID
from .clients import chosen_tls, json_option, namesrv_option, pairs, talks_to_cluster
from .output import print_json
from .reasons import SuggestingGroup

READ_ONLY = "4"
"""The value of brokerPermission with which a broker takes no sends."""

broker_argument = click.argument("broker")


@click.group("config", cls=SuggestingGroup)
def config() -> None:
    """The settings of a broker that runs: BROKER is its name, which means its master, or HOST:PORT."""


@config.command("get")
@broker_argument
@click.argument("keys", nargs=-1)
@namesrv_option
@json_option
@talks_to_cluster
async def get(broker: str, keys: tuple[str, ...], namesrv: str, as_json: bool) -> None:
    """Print settings, all of them unless some are named."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        found = await admin.broker_config(broker)
    if unknown := [key for key in keys if key not in found]:
        raise click.ClickException(f"{broker} has no setting {', '.join(unknown)}")
    shown = {key: found[key] for key in keys or sorted(found)}
    if as_json:
        print_json(shown)
    else:
        click.echo("".join(f"{key}={value}\n" for key, value in shown.items()), nl=False)


@config.command("set")
@broker_argument
@click.argument("entries", nargs=-1, required=True, metavar="KEY=VALUE...")
@namesrv_option
@talks_to_cluster
async def set_keys(broker: str, entries: tuple[str, ...], namesrv: str) -> None:
    """Change settings until the broker is started again; its file keeps what it has.

    A broker refuses keys that it reads only at its start, and then changes nothing.
    """
    wanted = pairs(entries, "KEY=VALUE")
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        before = await admin.broker_config(broker)
        await admin.update_broker_config(broker, wanted)
        after = await admin.broker_config(broker)
    for key in wanted:
        click.echo(f"{key}={after.get(key)}  (was {before.get(key)})")


@click.command("drain")
@broker_argument
@click.option(
    "--wait", "seconds", type=click.FloatRange(min=0), default=35.0, show_default=True, help="After brokerPermission=4."
)
@namesrv_option
@json_option
@talks_to_cluster
async def drain(broker: str, seconds: float, namesrv: str, as_json: bool) -> None:
    """Let a broker take no more sends, so that it can be stopped without a send that fails.

    The leader of a DLedger group hands leadership over to a node that is connected; others of its nodes take no sends anyway.
    Any other master, also one under a controller, gets brokerPermission=4: producers go to other brokers, consumers read on,
    and the command waits, because clients look at their routes every 30 seconds. Stop the broker then with SIGTERM. Started
    again, it takes sends as before; `ledgermq broker config set BROKER brokerPermission=6` lets it do so without that.
    """
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        how, is_known = await stop_sends(admin, broker)
        if not is_known:
            undone = f"`ledgermq broker config set {broker} brokerPermission=6` takes it back, also if this is interrupted"
            click.echo(f"{broker} has {how}; waiting {seconds:g} s until clients have seen it. {undone}", err=True)
            await trio.sleep(seconds)
    if as_json:
        print_json({"broker": broker, "drained_by": how})
    else:
        click.echo(f"{broker} takes no sends: {how}. Stop it with SIGTERM")


async def stop_sends(admin: Admin, broker: str) -> tuple[str, bool]:
    """Stop sends to a broker; returns how, and whether the refusal of a send tells clients where to go.

    Raises:
        ClickException: it still leads its group.
    """
    # Once another node leads, the name means that one.
    named = {each.name: each.addresses for each in (await admin.cluster()).brokers} if ":" not in broker else {}
    address = str(named.get(broker, {}).get(MASTER_ID, broker))
    group: dict[str, Any] | None = (await admin.ha_status(address)).get("dledger")
    if group is None:
        await admin.update_broker_config(address, {"brokerPermission": READ_ONLY})
        return "brokerPermission=4", False
    leads = group.get("role") == "leader"
    learners = group.get("learners") or ()
    voters = [peer for peer in group.get("peers") or () if peer.get("connected") and peer["id"] not in learners]
    for peer in sorted(voters, key=lambda peer: peer.get("lagEntries") or 0):
        if not leads:
            break
        try:
            await admin.change_dledger_group(address, "transfer", peer["id"])
        except ClientError as error:
            click.echo(f"{peer['id']} did not take over: {error}", err=True)
            leads = (await admin.ha_status(address))["dledger"]["role"] == "leader"  # it may have taken over all the same
        else:
            return f"{peer['id']} leads now", True
    if not leads:
        return f"{group.get('selfId')} does not lead its group", True
    raise click.ClickException(f"no other voter of its group has taken over from {broker}, which still leads")
