"""`ledgermq cluster`: the brokers of a cluster, their state and their replication."""

from __future__ import annotations

from typing import Any

import click
import trio

from ..client.admin import Admin, open_admin
from ..client.errors import BrokerSystemError, ClientError, NotSupported
from .clients import chosen_tls, json_option, namesrv_option, talks_to_cluster, watch_option, watchable
from .dledger import degradations_of_groups, outages_of_groups
from .output import fail_if_missing, number_or_text, print_rows, snake, snaked
from .reasons import SuggestingGroup

_SHOWN = ("version", "path", "in_tps", "out_tps", "disk_percent", "log_end", "replication")
_STATE = (*_SHOWN, "runtime", "ha", "waits_in_vain", "error")
"""The columns that `status` adds to a broker; None if the broker does not report one."""


@click.group("cluster", cls=SuggestingGroup)
def command() -> None:
    """Brokers and their state."""


@command.command("list")
@namesrv_option
@json_option
@talks_to_cluster
async def list_brokers(namesrv: str, as_json: bool) -> None:
    """List all brokers that the name server knows."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        rows = await _members(admin)
    print_rows(rows, ("cluster", "broker", "id", "role", "address"), as_json=as_json, nothing="the name server knows no broker")


@command.command("status")
@namesrv_option
@json_option
@watch_option
@talks_to_cluster
@watchable
async def status(namesrv: str, as_json: bool) -> None:
    """Show version, load, disk and replication of every broker, or why it does not answer.

    Ends with status 1, and names on standard error what is missing: every broker, one that does not answer, the master of a
    broker's name, the slaves of a SYNC_MASTER, a slave that does not follow its master, the leader or a member of a DLedger
    group, that two nodes lead, the controller of a broker, a replica that is not in sync, or any that is in sync with its
    master.
    """
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        rows, nodes = await state_of(admin)
    print_rows(rows, ("broker", "id", "role", "address", *_SHOWN), as_json=as_json)
    fail_if_missing([*outages_of(rows, nodes), *degradations_of(rows, nodes)])


async def state_of(admin: Admin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What all brokers report, and what those report that are nodes of DLedger groups."""
    rows = [{**row, **dict.fromkeys(_STATE)} for row in await _members(admin)]
    nodes: dict[int, dict[str, Any]] = {}

    async def ask(at: int, row: dict[str, Any]) -> None:
        try:
            node = await _ask_broker(admin, row)
        except ClientError as error:
            row["error"] = row["replication"] = str(error)
        else:
            nodes.update({at: node} if node is not None else {})

    async with trio.open_nursery() as nursery:  # so that many that do not answer take no longer than one
        for at, row in enumerate(rows):
            nursery.start_soon(ask, at, row)
    return rows, [nodes[at] for at in sorted(nodes)]


def outages_of(rows: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> list[str]:
    """What keeps clients from sending or reading."""
    with_master = _with_master(rows, nodes)
    headless = sorted({str(row["broker"]) for row in rows} - with_master)
    return [
        *([] if rows else ["the name server knows no broker"]),
        *(f"{name}: no master, so nothing can be sent to it" for name in headless),
        *(_silent(row) for row in rows if row["error"] and row["role"] == "master"),
        *outages_of_groups(nodes),
        *_outages_under_controllers(rows),
    ]


def degradations_of(rows: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> list[str]:
    """What does not keep clients from anything, but protects less than it should."""
    with_master = _with_master(rows, nodes)
    alone = [row["broker"] for row in rows if row["waits_in_vain"]]
    idle = [row for row in rows if row["broker"] in with_master and _follows_nobody(row["ha"] or {})]
    return [
        *(_silent(row) for row in rows if row["error"] and row["role"] != "master"),
        *(f"{name}: no slave of its SYNC_MASTER, so sends end with SLAVE_NOT_AVAILABLE" for name in alone),
        *(f"{row['broker']}: slave {row['id']} at {row['address']} is not fed: {row['replication']}" for row in idle),
        *degradations_of_groups(nodes),
        *_degradations_under_controllers(rows),
    ]


def _outages_under_controllers(rows: list[dict[str, Any]]) -> list[str]:
    """Masters that refuse sends, or wait for a replica which is gone and have no controller that takes it out of the set."""
    found: list[str] = []
    for row in rows:
        ha: dict[str, Any] = row["ha"] or {}
        controlled = _controlled(row)
        slaves: list[dict[str, Any]] = ha.get("ha_connection_info") or []
        gone = {*controlled.get("waits_for", ())} - {slave.get("broker_id") for slave in slaves}
        in_sync: list[int] = controlled.get("sync_state_set") or []
        if row["role"] == "master" and len(in_sync) < (wanted := controlled.get("min_in_sync_replicas", 0)):
            found.append(f"{row['broker']}: sends are refused, because of {wanted} copies {len(in_sync)} are in sync")
        if controlled.get("trouble") and gone:
            replicas = ", ".join(map(str, sorted(gone)))
            found.append(f"{row['broker']}: sends wait for replica {replicas}, which is gone, until a controller removes it")
    return found


def _degradations_under_controllers(rows: list[dict[str, Any]]) -> list[str]:
    """Brokers that no controller can replace, replicas that it could not elect, and masters that it could not replace."""
    found: list[str] = []
    in_sync: dict[str, list[int]] = {}
    for row in rows:
        controlled = _controlled(row)
        if controlled.get("trouble"):
            found.append(f"{row['broker']}: {row['address']} has no controller, so none elects: {controlled['trouble']}")
        if row["role"] == "master" and controlled:
            in_sync[row["broker"]] = controlled.get("sync_state_set") or []
            if len(in_sync[row["broker"]]) == 1:
                found.append(f"{row['broker']}: no replica is in sync with its master")
    replicas = [row for row in rows if row["role"] != "master" and not _controlled(row).get("async_learner")]
    late = [row for row in replicas if row["id"] not in in_sync.get(row["broker"], [row["id"]])]
    return found + [f"{row['broker']}: replica {row['id']} at {row['address']} is not in sync" for row in late]


def _controlled(row: dict[str, Any]) -> dict[str, Any]:
    """What a broker reports of its controller, in snake case; nothing if it has none."""
    ha: dict[str, Any] = row["ha"] or {}
    return ha.get("controller") or {}


def _with_master(rows: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> set[str]:
    """The names that have a master, or a group that elects one."""
    return {str(row["broker"]) for row in rows if row["role"] == "master"} | {str(node["broker"]) for node in nodes}


def _silent(row: dict[str, Any]) -> str:
    return f"{row['broker']}: {row['role']} {row['id']} at {row['address']}: {row['error']}"


async def _members(admin: Admin) -> list[dict[str, Any]]:
    return [
        {
            "cluster": broker.cluster,
            "broker": broker.name,
            "id": number,
            "role": "slave" if number else "master",
            "address": str(address),
        }
        for broker in (await admin.cluster()).brokers
        for number, address in sorted(broker.addresses.items())
    ]


async def _ask_broker(admin: Admin, row: dict[str, Any]) -> dict[str, Any] | None:
    """Fill the row of a broker; returns its status as a node of a DLedger group if it is one.

    Raises:
        ClientError: the broker does not answer. The row has what it had answered before.
    """
    runtime = await admin.broker_runtime(row["address"])
    own_version = runtime.get("ledgermqVersion")
    row["version"] = f"ledgermq {own_version}" if own_version else runtime.get("brokerVersionDesc")
    row["path"] = runtime.get("ledgermqPath")
    row["in_tps"] = _first_number(runtime.get("putTps"))
    row["out_tps"] = _first_number(runtime.get("getTransferredTps") or runtime.get("getTransferedTps"))
    row["disk_percent"] = round(_first_number(runtime.get("commitLogDiskRatio")) * 100, 2)
    row["log_end"] = number_or_text(runtime.get("commitLogMaxOffset"))
    row["runtime"] = {snake(name): number_or_text(text) for name, text in runtime.items() if "/" not in name}
    try:
        ha = await admin.ha_status(row["address"])
    except (NotSupported, BrokerSystemError):  # an older broker, or one of Apache's that has no such state
        return None
    row["ha"] = snaked(ha)
    row["replication"] = _replication(ha)
    # Under a controller brokerRole counts for nothing: sends wait for the replicas in sync.
    if ha.get("master") and not ha.get("haConnectionInfo") and not ha.get("controller"):
        config = await admin.broker_config(row["address"])
        row["waits_in_vain"] = config.get("brokerRole") == "SYNC_MASTER"
    node = ha.get("dledger")
    return {"broker": row["broker"], "address": row["address"], **node} if node else None


def _follows_nobody(ha: dict[str, Any]) -> bool:
    """Whether a broker reports, in its HA status in snake case, that it is a slave and receives nothing from a master."""
    client: dict[str, Any] = ha.get("ha_client_runtime_info") or {}
    slave = not ha.get("master") and not ha.get("dledger") and "ha_client_runtime_info" in ha
    return slave and (not client.get("master_addr") or bool(client.get("refusal")) or not client.get("activated", True))


def _first_number(text: str | None) -> float:
    try:
        return float((text or "0").split()[0])
    except (IndexError, ValueError):
        return 0.0


def _replication(ha: dict[str, Any]) -> str | None:
    """Summarise the replication of a broker, from its HA status, in one line."""
    if group := ha.get("dledger"):
        return _of_group(group)
    controlled: dict[str, Any] = ha.get("controller") or {}
    if controlled:
        members = " ".join(map(str, controlled.get("syncStateSet") or ()))
        known = f"replica {controlled.get('brokerId')} in epoch {controlled.get('masterEpoch')}"
        rest = _replication({key: value for key, value in ha.items() if key != "controller"})
        return "; ".join([known, *([f"in sync {members}"] if ha.get("master") else []), str(rest)])
    if ha.get("master"):
        slaves: list[dict[str, Any]] = ha.get("haConnectionInfo") or []
        followers = [_follower(slave) for slave in slaves]
        return "; ".join(followers) or "no slave"
    client: dict[str, Any] = ha.get("haClientRuntimeInfo") or {}
    if not client.get("masterAddr"):
        return "follows nobody"
    if client.get("refusal"):
        return f"{client['masterAddr']}: {client['refusal']}"
    state = "follows" if client.get("activated", True) else "cannot reach"
    behind = f", {client['diff']} bytes behind" if "diff" in client else ""
    return f"{state} {client['masterAddr']}{behind}"


def _of_group(group: dict[str, Any]) -> str:
    """Summarise the state of a node of a DLedger group in one line."""
    if group.get("failure"):
        return str(group["failure"])
    role, term, leader = group.get("role"), group.get("term"), group.get("leaderId")
    known = f"{role} {group.get('selfId')} in term {term}" + (
        f" of {leader}" if leader not in (None, group.get("selfId")) else ""
    )
    behind = int(group.get("endIndex", 0)) - int(group.get("committedIndex", 0))
    flush = ", acknowledged before it is synced" if group.get("raftFlush") == "async" else ""
    return f"{known}, {behind} entries not committed{flush}"


def _follower(slave: dict[str, Any]) -> str:
    acked = f", acked {slave['lastAckMillis']} ms ago" if "lastAckMillis" in slave else ""
    return f"{slave.get('addr')} {slave.get('diff', '?')} bytes behind{acked}"
