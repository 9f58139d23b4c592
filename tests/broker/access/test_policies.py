"""Which entry of a user's policies decides about a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.access.policies import (
    ACTIONS,
    ALL,
    GET,
    GROUP,
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
        ("sourceIps", ["10.0.0"], "source ip"),
        ("sourceIps", ["10.0.0.1"] * 101, "at most 100"),
    ],
)
def test_a_policy_without_a_meaning_is_refused(field: str, value: Any, said: str) -> None:
    entry = {"resource": "Topic:T1", "actions": ["Pub"], "decision": "Allow", field: value}

    with pytest.raises(BadPolicy, match=said):
        Acl.from_json({"subject": "User:alice", "policies": [{"entries": [entry]}]})


@pytest.mark.parametrize("subject", ["alice", "Role:alice", "User:", "User:a b", "User:a*", "User:" + "a" * 256])
def test_only_users_with_a_name_have_rights(subject: str) -> None:
    with pytest.raises(BadPolicy, match="User:NAME"):
        checked_subject(subject)


def a_resource(kind: str, name: str, end: str) -> str:
    return f"{kind}:{name}{end}" if name or end else f"{kind}:*"


def an_entry(resource: str, actions: list[str], allows: bool) -> Entry:
    return Entry(Resource.parse(resource), tuple(actions), allows)


NAMES = st.text("ab", max_size=3)
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
)


def by_the_rule(entries: list[Entry], demand: Demand) -> str | None:
    """RocketMQ's rule, word for word: sort what matches, and take the first."""
    kind, name, actions = demand
    found = [
        entry
        for entry in entries
        if entry.resource.kind in ("Any", kind)
        and (name.startswith(entry.resource.name) if entry.resource.is_prefix else name == entry.resource.name)
        and (ALL in entry.actions or set(actions) & set(entry.actions))
    ]
    found.sort(
        key=lambda entry: (
            entry.resource.kind == "Any",
            entry.resource.is_prefix,
            -len(entry.resource.name),
            entry.allows,
        )
    )
    return NO_POLICY if not found else None if found[0].allows else DENIED


@given(st.lists(ENTRIES, max_size=8), st.sampled_from([TOPIC, GROUP]), NAMES.filter(bool), st.sampled_from(ACTIONS[1:]))
def test_decisions_are_those_of_the_rule(entries: list[Entry], kind: str, name: str, action: str) -> None:
    """However the entries are arranged for the look-up."""
    rights = Acl("User:alice", {entry.resource: entry for entry in entries})

    assert rights.refusal(Demand(kind, name, (action,)), HOST) == by_the_rule(
        list(rights.custom.values()), Demand(kind, name, (action,))
    )
