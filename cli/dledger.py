"""`ledgermq dledger`: show DLedger groups, and change their leader and members."""

from __future__ import annotations

from typing import Any

import click

from ..client.admin import Admin, open_admin
from ..client.errors import ClientError
from ..ha.raft.quorum import Configuration
from ..ha.raft.route_table import RouteTable
from .clients import chosen_tls, json_option, namesrv_option, talks_to_cluster, watch_option, watchable
from .output import fail_if_missing, print_rows, snaked
from .reasons import SuggestingGroup

_COLUMNS = ("broker", "node", "role", "term", "leader", "address", "committed", "end", "lag", "flush", "note")


@click.group("dledger", cls=SuggestingGroup)
def command() -> None:
    """DLedger groups: their leaders, the lag of their nodes, and their members."""


@command.command("status")
@namesrv_option
@json_option
@watch_option
@talks_to_cluster
@watchable
async def status(namesrv: str, as_json: bool) -> None:
    """Show every node with its view of the group: role, term, committed index and problems.

    Ends with status 1 if there is no group, or one has no leader, two leaders or a member that is missing, and names them on
    standard error.
    """
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        found = await nodes_of(admin)
    rows = [snaked(node) for node in found] if as_json else rows_of(found)
    print_rows(rows, _COLUMNS, as_json=as_json)
    fail_if_missing(missing_of(found))


async def nodes_of(admin: Admin) -> list[dict[str, Any]]:
    """What each node of the cluster's DLedger groups says of itself.

    One that does not answer is taken for such a node if another one of its name is: it may be a broker of another mode.
    """
    nodes: list[dict[str, Any]] = []
    for broker in (await admin.cluster()).brokers:
        for _, address in sorted(broker.addresses.items()):
            try:
                status = (await admin.ha_status(str(address))).get("dledger")
            except ClientError as error:
                status = {"selfId": None, "failure": str(error)}
            if status is not None:
                nodes.append({"broker": broker.name, "address": str(address), **status})
    names = {node["broker"] for node in nodes if node["selfId"] is not None}
    return [node for node in nodes if node["broker"] in names]


def leaders_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The leader of each broker name's group: of several the one with the newest term, as a deposed one may not know it."""
    routes, leading = RouteTable(), [node for node in found if node.get("role") == "leader"]
    for node in sorted(leading, key=lambda node: int(node["term"])):
        routes.update_configuration(node["broker"], Configuration(voters=node["voters"], learners=node["learners"]))
        routes.update_leader(node["broker"], node["selfId"], node["term"])
    return [node for node in leading if node["selfId"] == routes.leader(node["broker"])]


def missing_of(found: list[dict[str, Any]]) -> list[str]:
    """What the groups lack: leaders, nodes that do not answer or take no part, and members that are not connected."""
    if not found:
        return ["no broker that the name server knows belongs to a DLedger group"]
    return [*outages_of_groups(found), *degradations_of_groups(found)]


def outages_of_groups(found: list[dict[str, Any]]) -> list[str]:
    """The groups that no node leads, or two."""
    leaders = {node["broker"]: node for node in leaders_of(found)}
    return [
        *(
            f"{node['broker']}: {node['selfId']} at {node['address']} leads too, in term {node['term']}, and may hold messages "
            f"that {newest['selfId']} at {newest['address']}, which leads in term {newest['term']}, does not have"
            for node in found
            if node.get("role") == "leader" and node is not (newest := leaders[node["broker"]])
        ),
        *(
            f"{broker}: no node leads, so nothing can be sent"
            for broker in sorted({node["broker"] for node in found} - leaders.keys())
        ),
    ]


def degradations_of_groups(found: list[dict[str, Any]]) -> list[str]:
    """The nodes that do not answer or take no part, and the members that are not connected."""
    missing = [
        f"{node['broker']}: {node.get('selfId') or 'the node'} at {node['address']}: {node['failure']}"
        for node in found
        if node.get("failure")
    ]
    leaders = {node["broker"]: node for node in leaders_of(found)}
    for broker in sorted({node["broker"] for node in found}):
        leader = leaders.get(broker)
        views = [leader] if leader else [node for node in found if node["broker"] == broker]
        silent = {peer["id"] for view in views for peer in view.get("peers") or () if not peer.get("connected")}
        missing += [
            f"{broker}: {name} is not connected to {leader['selfId'] if leader else 'the others'}" for name in sorted(silent)
        ]
    return missing


def rows_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table of all nodes, with what is wrong and what to do in the last column."""
    members = {node["group"]: {*node["voters"], *node["learners"]} for node in leaders_of(found)}
    return [_row(node, members) for node in found]


def _row(node: dict[str, Any], members: dict[str, set[str]]) -> dict[str, Any]:
    """The row of a node; `members` are the members of each group as its leader reports them."""
    peers: list[dict[str, Any]] = node.get("peers") or []
    lags = [f"{peer['id']} {peer['lagEntries']}" for peer in peers if peer.get("lagEntries") is not None]
    refusals = [f"{peer['id']}: {peer['refusal']}" for peer in peers if peer.get("refusal")] or list(
        node.get("turnedAway") or ()
    )
    silent = [peer["id"] for peer in peers if not peer.get("connected") and not peer.get("refusal")]
    if node.get("selfId") not in members.get(node.get("group", ""), {node.get("selfId")}):
        refusals = ["no member: the leader does not know it. Let it join with `ledgermq dledger add`, or stop it"]
    elif silent:
        refusals.append(f"does not reach {', '.join(silent)}{_without_majority(node, silent)}")
    if node.get("leaderId") is None and (waits_for := node.get("waitsFor")):
        refusals.append(
            f"its store was empty, and it votes once {', '.join(waits_for)} answered: start the others, with all nodes in the "
            "dLegerPeers of each"
        )
    elif node.get("mayVote") is False:
        refusals.append(
            "its store was empty or an older copy, and it votes once it has caught up with a leader: stop no other node now"
        )
    return {
        "broker": node["broker"],
        "node": node.get("selfId"),
        "role": "learner" if node.get("selfId") in (node.get("learners") or ()) else node.get("role"),
        "term": node.get("term"),
        "leader": node.get("leaderId"),
        "address": node["address"],
        "committed": node.get("committedIndex"),
        "end": node.get("endIndex"),
        "lag": ", ".join(lags) or None,
        "flush": node.get("raftFlush"),
        "note": "; ".join(filter(None, (node.get("failure"), *refusals))) or None,
    }


def _without_majority(node: dict[str, Any], silent: list[str]) -> str:
    """What to do if too many voters are silent for an election; empty otherwise."""
    voters: list[str] = node.get("voters") or []
    lost = [name for name in voters if name in silent]
    if node.get("leaderId") is not None or 2 * (len(voters) - len(lost)) > len(voters):
        return ""
    return (
        f": {len(voters) - len(lost)} of {len(voters)} voters are no majority, so nothing can be sent. Start the others; where "
        "their disks are lost for good, `ledgermq store reset-peers` lets one node go on alone"
    )


@command.command("transfer")
@click.argument("node")
@click.option("--broker", help="Name of the group's brokers, if there are several groups.")
@namesrv_option
@talks_to_cluster
async def transfer(namesrv: str, node: str, broker: str | None) -> None:
    """Make NODE, such as n1, the leader of its group."""
    await _change(namesrv, broker, "transfer", node, "")
    click.echo(f"{node} leads")


@command.command("add")
@click.argument("node")
@click.argument("address")
@click.option("--broker", help="Name of the group's brokers, if there are several groups.")
@namesrv_option
@talks_to_cluster
async def add(namesrv: str, node: str, address: str, broker: str | None) -> None:
    """Add a voter to a group: NODE, which listens for its peers at ADDRESS."""
    await _change(namesrv, broker, "add", node, address)
    click.echo(f"{node} votes")


@command.command("learner")
@click.argument("node")
@click.argument("address")
@click.option("--broker", help="Name of the group's brokers, if there are several groups.")
@namesrv_option
@talks_to_cluster
async def learner(namesrv: str, node: str, address: str, broker: str | None) -> None:
    """Add a learner, which has no vote, to a group: NODE, which listens for its peers at ADDRESS."""
    await _change(namesrv, broker, "learner", node, address)
    click.echo(f"{node} learns")


@command.command("remove")
@click.argument("node")
@click.option("--broker", help="Name of the group's brokers, if there are several groups.")
@namesrv_option
@talks_to_cluster
async def remove(namesrv: str, node: str, broker: str | None) -> None:
    """Remove NODE from its group."""
    await _change(namesrv, broker, "remove", node, "")
    click.echo(f"{node} is no member any more")


async def _change(namesrv: str, broker: str | None, action: str, node: str, address: str) -> None:
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        leaders = [node for node in leaders_of(await nodes_of(admin)) if broker is None or node["broker"] == broker]
        if len(leaders) != 1:
            names = ", ".join(sorted(found["broker"] for found in leaders))
            raise click.ClickException(
                f"several groups have a leader: choose one with --broker ({names}); nothing was changed"
                if leaders
                else "no leader of such a DLedger group is known to the name server; nothing was changed"
            )
        await admin.change_dledger_group(leaders[0]["address"], action, node, address)
