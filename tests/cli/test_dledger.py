"""`ledgermq up --mode dledger` and `ledgermq dledger`: a group that is looked at, handed over, changed and killed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from click.testing import Result

from ledgermq.cli.dledger import leaders_of, missing_of, nodes_of, rows_of
from ledgermq.client.admin import Admin
from ledgermq.client.errors import ClientError
from ledgermq.world.address import Address

from .processes import Run, Start, until


def nodes(runner: Run, namesrv: str) -> dict[str, dict[str, Any]]:
    """What each node says of its group, by its id, once no member is missing: a busy one may answer too late for one look."""
    shown: list[Result] = []

    def is_whole() -> bool:
        shown[:] = [runner("dledger", "status", "--json", status=None, namesrv=namesrv)]
        return shown[0].exit_code == 0

    until(is_whole)
    return {row["self_id"]: row for row in json.loads(shown[0].stdout)}


def leader(runner: Run, namesrv: str) -> str:
    (found,) = (name for name, row in nodes(runner, namesrv).items() if row["role"] == "leader")
    return found


def hand_over(runner: Run, namesrv: str) -> tuple[str, str, str]:
    """Make another node the leader, and see it shown; returns the old leader, the new one and the third node.

    Nodes that get no processor for half a second elect a leader by themselves. If that comes in between, all is done again.
    """
    names: list[str] = []

    def is_done() -> bool:
        old = leader(runner, namesrv)
        other, third = (name for name in ("n0", "n1", "n2") if name != old)
        names[:] = [old, other, third]
        told = runner("dledger", "transfer", other, status=None, namesrv=namesrv).stdout
        shown = runner("dledger", "status", status=None, namesrv=namesrv).stdout
        of_cluster = runner("cluster", "status", status=None, namesrv=namesrv).stdout
        return (
            told == f"{other} leads\n"
            and re.search(rf"broker-a +{other} +leader", shown) is not None
            and f"leader {other} in term" in of_cluster
        )

    until(is_done)
    return names[0], names[1], names[2]


def test_a_group_of_three_is_shown_handed_over_and_made_smaller(start: Start, runner: Run, tmp_path: Path) -> None:
    """Messages come through; the wanted node leads; a node that was removed is no member for the others."""
    store = tmp_path / "not yet there"
    up = start("up", "--mode", "dledger", "--port", "0", "--broker-port", "0", "--store", str(store))
    namesrv = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    up.wait_for(r"Ctrl-C stops")
    assert "SEND_OK" in runner("send", "hello", "first", "--timeout", "60", namesrv=namesrv).stdout

    old, other, third = hand_over(runner, namesrv)
    assert "SEND_OK" in runner("send", "hello", "second", "--timeout", "60", namesrv=namesrv).stdout

    refused = runner("dledger", "remove", "n9", namesrv=namesrv, status=1)
    assert "n9 is no member" in refused.stderr
    until(lambda: "no member any more" in runner("dledger", "remove", third, status=None, namesrv=namesrv).stdout)
    assert nodes(runner, namesrv)[other]["voters"] == sorted({old, other})
    until(lambda: third not in nodes(runner, namesrv))
    assert runner("consume", "hello", "--from-beginning", namesrv=namesrv).stdout.splitlines() in (
        ["first", "second"],
        ["second", "first"],
    )
    assert up.stop() == 0


def test_a_cluster_without_groups_says_so(start: Start, runner: Run) -> None:
    """There is nothing to hand over either."""
    up = start("up", "--port", "0", "--broker-port", "0")
    namesrv = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    up.wait_for(r"Ctrl-C stops")

    assert (
        "no broker that the name server knows belongs to a DLedger group"
        in runner("dledger", "status", namesrv=namesrv, status=1).stderr
    )
    refused = runner("dledger", "transfer", "n1", namesrv=namesrv, status=1)
    assert "no leader of such a DLedger group is known" in refused.stderr


def node(number: int, role: str, *silent: str, leader: str | None = "n0") -> dict[str, Any]:
    """What a node of a group of three says of itself; it does not reach those that are `silent`."""
    others = [name for name in ("n0", "n1", "n2") if name != f"n{number}"]
    return {
        "broker": "b",
        "address": f"127.0.0.1:{number}",
        "group": "g",
        "selfId": f"n{number}",
        "role": role,
        "term": 3,
        "leaderId": leader,
        "voters": ["n0", "n1", "n2"],
        "learners": [],
        "peers": [{"id": name, "connected": name not in silent} for name in others],
    }


async def test_a_silent_broker_of_another_mode_is_no_node() -> None:
    """It says nothing of its mode; only beside a node that reports a group is it one."""
    a, b, silent, classic = (Address("127.0.0.1", port) for port in range(4))

    class Half:
        async def cluster(self) -> Any:
            brokers = [
                SimpleNamespace(name="b", addresses={0: a, 1: silent}),
                SimpleNamespace(name="c", addresses={0: classic}),
            ]
            return SimpleNamespace(brokers=[*brokers, SimpleNamespace(name="d", addresses={0: b})])

        async def ha_status(self, address: str) -> dict[str, Any]:
            if address in (str(silent), str(classic)):
                raise ClientError("no answer")
            return {"dledger": {"selfId": "n0"}} if address == str(a) else {}

    found = await nodes_of(cast("Admin", Half()))

    assert [(node["broker"], node["address"]) for node in found] == [("b", str(a)), ("b", str(silent))]


def test_what_a_group_lacks_is_named() -> None:
    """A healthy group lacks nothing; else a member that is not connected, a node that takes no part, and a leader."""
    leader, follower = node(0, "leader"), node(1, "follower")
    failed = {"broker": "b", "address": "127.0.0.1:2", "group": "g", "selfId": "n2", "failure": "its disk is full"}

    assert missing_of([leader, follower, node(2, "follower")]) == []
    assert missing_of([node(0, "leader", "n2"), node(1, "follower", "n2")]) == ["b: n2 is not connected to n0"]
    assert missing_of([leader, follower, failed]) == ["b: n2 at 127.0.0.1:2: its disk is full"]
    assert missing_of([node(1, "candidate", "n0", "n2", leader=None)]) == [
        "b: no node leads, so nothing can be sent",
        "b: n0 is not connected to the others",
        "b: n2 is not connected to the others",
    ]


def test_a_second_leader_of_one_name_is_a_fault_and_named() -> None:
    """As after `store reset-peers`, when a former member comes back with its old store."""
    alone = {**node(1, "leader", leader="n1"), "term": 4, "voters": ["n1"], "peers": []}
    former = {**node(0, "leader"), "voters": ["n0"], "peers": []}

    (text,) = missing_of([alone, former])
    assert text.startswith("b: n0 at 127.0.0.1:0 leads too, in term 3")
    assert "n1 at 127.0.0.1:1, which leads in term 4" in text


def test_a_node_that_does_not_know_of_its_successor_is_not_taken_for_the_leader() -> None:
    """It was cut off and comes back; the newest term counts, in each group on its own."""
    members = {"voters": ["n0", "n1", "n2"], "learners": ["n3"]}
    deposed = {"broker": "a", "selfId": "n2", "role": "leader", "term": 4, **members}
    leads = {"broker": "a", "selfId": "n0", "role": "leader", "term": 5, **members}
    follower = {"broker": "a", "selfId": "n1", "role": "follower", "term": 5, **members}
    of_another_group = {"broker": "b", "selfId": "n2", "role": "leader", "term": 1, **members}
    silent = {"broker": "b", "selfId": None, "failure": "no answer"}

    assert leaders_of([leads, follower, deposed, silent, of_another_group]) == [leads, of_another_group]


def test_a_learner_is_shown_as_one() -> None:
    """It follows like a voter, and counts for no majority."""
    rows = rows_of([node(0, "leader"), {**node(1, "follower"), "selfId": "n3", "learners": ["n3"]}])

    assert [row["role"] for row in rows] == ["leader", "learner"]


def test_a_node_that_may_not_vote_yet_is_named() -> None:
    """Whoever stops another one now leaves a group that elects nobody."""
    rows = rows_of([node(0, "leader"), {**node(1, "follower"), "mayVote": False}, {**node(2, "follower"), "mayVote": True}])

    assert [row["note"] for row in rows] == [
        None,
        "its store was empty or an older copy, and it votes once it has caught up with a leader: stop no other node now",
        None,
    ]
