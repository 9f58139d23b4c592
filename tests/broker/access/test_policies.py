"""Which entry of a user's policies decides about a request."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.access import policies
from ledgermq.broker.access.policies import (
    ACTIONS,
    ALL,
    GET,
    GROUP,
    KEPT_ENTRIES_MAX,
    NO_POLICY,
    PUB,
    SUB,
    TOPIC,
    Acl,
    BadPolicy,
    Demand,
    Entry,
    Resource,
    checked_subject,
)

HOST = "10.1.2.3"
DENIED = "the decision is deny."


def acl(*entries: tuple[str, str, str], policy: str = "Custom", sources: list[str] | None = None) -> Acl:
    """Rights of alice from rows of resource, actions and decision."""
    given_entries = [
        {"resource": resource, "actions": actions.split(","), "decision": decision, "sourceIps": sources}
        for resource, actions, decision in entries
    ]
    return Acl.from_json({"subject": "User:alice", "policies": [{"policyType": policy, "entries": given_entries}]})


def wants(action: str, name: str, kind: str = TOPIC) -> Demand:
    return Demand(kind, name, (action,))


def test_what_no_entry_allows_is_refused() -> None:
    assert acl(("Topic:T1", "Pub", "Allow")).refusal(wants(PUB, "T2"), HOST) == NO_POLICY
    assert acl(("Topic:T1", "Pub", "Allow")).refusal(wants(SUB, "T1"), HOST) == NO_POLICY
    assert acl(("Topic:T1", "Pub", "Allow")).refusal(wants(PUB, "T1", GROUP), HOST) == NO_POLICY


def test_an_entry_allows_its_actions_on_its_resource() -> None:
    assert acl(("Topic:T1", "Pub,Sub", "Allow")).refusal(wants(SUB, "T1"), HOST) is None
    assert acl(("Topic:order*", "All", "Allow")).refusal(wants(PUB, "orders"), HOST) is None
    assert acl(("Topic:*", "Sub", "Allow")).refusal(Demand(TOPIC, "any", (SUB, GET)), HOST) is None
    assert acl(("*", "All", "Allow")).refusal(wants(GET, "g", GROUP), HOST) is None


def test_the_most_exact_resource_decides() -> None:
    """A denial of everything else does not take away what is allowed by name, and the other way round."""
    rights = acl(
        ("*", "All", "Allow"),
        ("Topic:*", "All", "Deny"),
        ("Topic:pay*", "Pub", "Allow"),
        ("Topic:payroll*", "Pub", "Deny"),
        ("Topic:payroll-test", "Pub", "Allow"),
    )

    assert rights.refusal(wants(PUB, "g", GROUP), HOST) is None
    assert rights.refusal(wants(PUB, "orders"), HOST) == DENIED
    assert rights.refusal(wants(PUB, "payments"), HOST) is None
    assert rights.refusal(wants(PUB, "payrolls"), HOST) == DENIED
    assert rights.refusal(wants(PUB, "payroll-test"), HOST) is None
    assert rights.refusal(wants(SUB, "payments"), HOST) == DENIED


def test_the_default_policy_is_asked_after_the_custom_one() -> None:
    rights = acl(("Topic:*", "Sub", "Allow"), policy="Default").updated(acl(("Topic:T1", "Sub", "Deny")))

    assert rights.refusal(wants(SUB, "T1"), HOST) == DENIED
    assert rights.refusal(wants(SUB, "T2"), HOST) is None


def test_an_entry_with_sources_counts_only_for_requests_from_there() -> None:
    rights = acl(("Topic:T1", "Sub", "Allow"), sources=["10.0.0.0/8", "192.168.1.7", "fd00::/8"])

    assert rights.refusal(wants(SUB, "T1"), "10.9.9.9") is None
    assert rights.refusal(wants(SUB, "T1"), "fd00::1") is None
    assert rights.refusal(wants(SUB, "T1"), "::ffff:10.1.1.1") is None
    assert rights.refusal(wants(SUB, "T1"), "192.168.1.8") == NO_POLICY
    assert rights.refusal(wants(SUB, "T1"), "a name") == NO_POLICY


def test_a_request_from_no_known_address_decides_nothing_for_others() -> None:
    rights = acl(("Topic:T", "Pub", "Allow"), ("Topic:*", "Pub", "Deny"), sources=[HOST])

    assert rights.refusal(wants(PUB, "T"), "") == NO_POLICY
    assert rights.refusal(wants(PUB, "T"), HOST) is None
    assert rights.refusal(wants(PUB, "U"), HOST) == DENIED


def test_new_entries_replace_those_for_the_same_resource() -> None:
    rights = acl(("Topic:T1", "Pub", "Allow"), ("Topic:T2", "Pub", "Allow")).updated(acl(("Topic:T1", "Sub", "Allow")))

    assert rights.refusal(wants(PUB, "T1"), HOST) == NO_POLICY
    assert rights.refusal(wants(SUB, "T1"), HOST) is None
    assert rights.refusal(wants(PUB, "T2"), HOST) is None
    assert rights.without("Custom", Resource.parse("Topic:T1")).without("Custom", Resource.parse("Topic:T2")).is_empty


def test_rights_are_written_as_rocketmq_reads_them() -> None:
    stored = {
        "policies": [
            {
                "entries": [
                    {"actions": ["Pub", "Sub"], "decision": "Allow", "resource": "Topic:T1", "sourceIps": ["10.0.0.0/8"]},
                    {"actions": ["All"], "decision": "Deny", "resource": "Group:g*", "sourceIps": None},
                ],
                "policyType": "Custom",
            }
        ],
        "subject": "User:alice",
    }

    assert Acl.from_json(stored).to_json() == stored


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("resource", "Queue:T1", "resource type"),
        ("resource", "T1", "TYPE:NAME"),
        ("resource", "Topic:", "TYPE:NAME"),
        ("resource", "Topic:a*b", "TYPE:NAME"),
        ("actions", ["Read"], "an action is one of|action is one of"),
        ("actions", [], "actions is empty"),
        ("actions", ["Any"], "action is one of"),
        ("actions", "Pub", "list of texts"),
        ("decision", "Maybe", "decision"),
        ("sourceIps", "10.0.0.1", "list of texts"),
        ("sourceIps", [10], "list of texts"),
        ("sourceIps", ["10.0.0.1"] * 101, "at most 100"),
    ],
)
def test_a_policy_without_a_meaning_is_refused(field: str, value: Any, said: str) -> None:
    entry = {"resource": "Topic:T1", "actions": ["Pub"], "decision": "Allow", field: value}

    with pytest.raises(BadPolicy, match=said):
        Acl.from_json({"subject": "User:alice", "policies": [{"entries": [entry]}]})


def test_given_sources_have_a_meaning() -> None:
    with pytest.raises(BadPolicy, match=r"source ip is invalid. \(got '10.0.0'\)"):
        Acl("User:alice").updated(acl(("Topic:T1", "Pub", "Allow"), sources=["10.0.0.1", "10.0.0"]))


def test_an_entry_whose_stored_sources_have_no_meaning_denies_and_does_not_allow() -> None:
    for decision, said in (("Allow", NO_POLICY), ("Deny", DENIED)):
        assert acl(("Topic:T1", "Pub", decision), sources=["of the future"]).refusal(wants(PUB, "T1"), HOST) == said


def many_sources(count: int, first: int = 0) -> Acl:
    """Rights with so many sources, of which only the last one is `HOST`, in entries for beginnings within each other."""
    hosts = [f"172.16.{number // 250}.{number % 250}" for number in range(first, first + count - 1)] + [HOST]
    entries = [
        {"resource": f"Topic:{'t' * (first + at)}*", "actions": ["Sub"], "decision": "Deny", "sourceIps": hosts[at : at + 100]}
        for at in range(0, count, 100)
    ]
    return Acl.from_json({"subject": "User:alice", "policies": [{"entries": entries}]})


def test_the_sources_of_a_user_are_bounded() -> None:
    full = Acl("User:alice").updated(many_sources(600)).updated(many_sources(400, 1000))

    with pytest.raises(BadPolicy, match="User:alice would have 1001 sources together; at most 1000 are allowed"):
        full.updated(acl(("Topic:T1", "Pub", "Allow"), sources=["10.0.0.1"]))
    assert full.updated(acl(("Topic:T1", "Pub", "Allow"))).updated(many_sources(600)).refusal(wants(PUB, "T1"), HOST) is None


def test_rights_are_read_and_changed_in_a_small_part_of_a_turn(cpu_seconds: Callable[[], float]) -> None:
    """What the largest body of a request holds: sources are not read before there are known to be few."""
    sources = [f"::{number:x}" for number in range(100)]
    entries = [
        {"resource": f"Topic:{number}*", "actions": ["Sub"], "decision": "Allow", "sourceIps": sources} for number in range(300)
    ]
    before = cpu_seconds()
    given = Acl.from_json({"subject": "User:alice", "policies": [{"entries": entries}]})
    with pytest.raises(BadPolicy, match="would have 30000 sources"):
        Acl("User:alice").updated(given)

    assert cpu_seconds() - before < 0.05  # 2 ms in truth; with all sources read it would be 200 ms


def test_many_demands_are_decided_in_a_small_part_of_a_turn(cpu_seconds: Callable[[], float]) -> None:
    """A heartbeat with 700 topics, each of which begins as 200 entries say, whose sources are elsewhere."""
    entries = [
        {
            "resource": f"Topic:{'t' * at}*",
            "actions": ["Sub"],
            "decision": "Deny",
            "sourceIps": [f"::{at:x}:{n}" for n in range(5)],
        }
        for at in range(1, 201)
    ]
    entries.append({"resource": "*", "actions": ["Sub"], "decision": "Allow"})
    rights = Acl.from_json({"subject": "User:alice", "policies": [{"entries": entries}]})
    before = cpu_seconds()

    assert all(rights.refusal(wants(SUB, f"{'t' * 240}{number}"), HOST) is None for number in range(700))
    assert cpu_seconds() - before < 0.05  # 6 ms in truth; entry by entry it would be 300 ms


@pytest.mark.parametrize("subject", ["alice", "Role:alice", "User:", "User:a b", "User:a*", "User:" + "a" * 256])
def test_only_users_with_a_name_have_rights(subject: str) -> None:
    with pytest.raises(BadPolicy, match="User:NAME"):
        checked_subject(subject)


def a_resource(kind: str, name: str, end: str) -> str:
    return f"{kind}:{name}{end}" if name or end else f"{kind}:*"


def an_entry(resource: str, actions: list[str], allows: bool, sources: tuple[str, ...]) -> Entry:
    return Entry(Resource.parse(resource), tuple(actions), allows, sources)


NAMES = st.text("ab", max_size=3)
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.1.1", "fd00::1", "a name")
RESOURCES = st.one_of(
    st.just("*"),
    st.builds(
        a_resource,
        st.sampled_from(["Topic", "Group"]),
        NAMES,
        st.sampled_from(["", "*"]),
    ),
)
ENTRIES = st.builds(
    an_entry,
    RESOURCES,
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=2),
    st.booleans(),
    st.sampled_from([(), ("10.0.0.1",), ("10.0.0.0/24", "fd00::/8"), ("10.0.0.0/16",)]),
).map(lambda entry: (entry.resource, entry))
DEMANDS = st.builds(Demand, st.sampled_from([TOPIC, GROUP]), NAMES, st.sampled_from(ACTIONS[1:]).map(lambda action: (action,)))


def by_the_rule(rights: Acl, demand: Demand, host: str) -> str | None:
    """RocketMQ's rule, word for word: sort what matches, and take the first."""
    kind, name, actions = demand
    for policy in (rights.custom, rights.default):
        found = [
            entry
            for entry in policy.values()
            if entry.resource.kind in ("Any", kind)
            and (name.startswith(entry.resource.name) if entry.resource.is_prefix else name == entry.resource.name)
            and (ALL in entry.actions or set(actions) & set(entry.actions))
            and (
                not entry.sources or (host != "a name" and any(ip_address(host) in ip_network(each) for each in entry.sources))
            )
        ]
        found.sort(
            key=lambda entry: (
                entry.resource.kind == "Any",
                entry.resource.is_prefix,
                -len(entry.resource.name),
                entry.allows,
            )
        )
        if found:
            return None if found[0].allows else DENIED
    return NO_POLICY


@given(
    st.lists(ENTRIES, max_size=8).map(dict),
    st.lists(ENTRIES, max_size=8).map(dict),
    st.lists(st.tuples(DEMANDS, st.sampled_from(HOSTS)), min_size=1, max_size=8),
    st.sampled_from([1, KEPT_ENTRIES_MAX]),
)
def test_decisions_are_those_of_the_rule(
    custom: dict[Resource, Entry],
    default: dict[Resource, Entry],
    asked: list[tuple[Demand, str]],
    kept: int,
) -> None:
    """However the entries are arranged for the look-up, and whether what was arranged is kept for the next request or not."""
    rights = Acl("User:alice", custom, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "KEPT_ENTRIES_MAX", kept)
        for demand, host in asked + asked:
            assert rights.refusal(demand, host) == by_the_rule(rights, demand, host)
