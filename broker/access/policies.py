"""What a user may do: the policies of RocketMQ's ACL 2.0, and which entry of them decides about a demand. Pure.

Of the entries that match resource, action and source, those with the most exact resource decide, and among these one that
denies. The entries of the policy `Custom` come before those of `Default`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, Self

import attrs

from ...world.logs import shortened
from ..json_values import table_of

ANY, CLUSTER, NAMESPACE, TOPIC, GROUP = "Any", "Cluster", "Namespace", "Topic", "Group"
KINDS = (ANY, CLUSTER, NAMESPACE, TOPIC, GROUP)
"""The kinds of resources. This broker has no namespaces, but takes rights for them, as RocketMQ does."""
ALL, PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = "All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"
ACTIONS = (ALL, PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST)
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"
USER = "User:"
"""The beginning of a subject, before the name of the user."""
SUBJECT_CHARACTERS_MAX = 255
SOURCES_MAX = 100
"""The most addresses and networks of one entry; each is compared when the entry is looked at."""

_Network = IPv4Network | IPv6Network


class BadPolicy(ValueError):
    """A text of a policy has no meaning; nothing was changed."""


class Demand(NamedTuple):
    """What a request asks for: one of these actions on a resource."""

    kind: str
    name: str
    """The name of the resource; empty for all resources of the kind."""
    actions: tuple[str, ...]


class Resource(NamedTuple):
    """What a policy entry is about: resources of a kind by name, by the beginning of their names, or all."""

    kind: str
    name: str
    is_prefix: bool
    """Whether all names count that begin with `name`, which is empty for all resources of the kind."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `Topic:T1`, `Topic:order*`, `Topic:*` or `*`.

        Raises:
            BadPolicy: it is none of these.
        """
        if text == "*":
            return cls(ANY, "", is_prefix=True)
        kind, separator, name = text.partition(":")
        if not separator or not name or "*" in name[:-1]:
            raise BadPolicy(f"a resource is *, TYPE:NAME, TYPE:BEGINNING* or TYPE:* (got {shortened(text, 100)!r})")
        kind = _one_of("resource type", kind, KINDS)
        return cls(ANY, "", is_prefix=True) if kind == ANY else cls(kind, name.removesuffix("*"), name.endswith("*"))

    def __str__(self) -> str:
        if self.kind == ANY:
            return "*"
        return f"{self.kind}:{self.name}{'*' if self.is_prefix else ''}"


@attrs.frozen
class Entry:
    """One entry of a policy."""

    resource: Resource
    actions: tuple[str, ...]
    allows: bool
    sources: tuple[str, ...] = ()
    """The addresses or networks to which the entry applies; none means all."""
    _networks: tuple[_Network, ...] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_networks", tuple(map(_network, self.sources)))

    def matches(self, actions: Sequence[str], source: str) -> bool:
        """Whether the entry applies to one of the actions, from this address."""
        if ALL not in self.actions and not any(action in self.actions for action in actions):
            return False
        return not self._networks or _is_in(source, self._networks)

    def to_json(self) -> dict[str, Any]:
        """The entry as RocketMQ's `AclInfo` has it."""
        return {
            "actions": list(self.actions),
            "decision": ALLOW if self.allows else DENY,
            "resource": str(self.resource),
            "sourceIps": list(self.sources) or None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read an entry; raises BadPolicy."""
        actions = tuple(dict.fromkeys(_one_of("action", action, ACTIONS) for action in _texts(value, "actions")))
        if not actions:
            raise BadPolicy("The actions is empty.")
        decision = _one_of("decision", str(value.get("decision") or ""), (ALLOW, DENY))
        sources = tuple(_texts(value, "sourceIps"))
        if len(sources) > SOURCES_MAX:
            raise BadPolicy(f"an entry has at most {SOURCES_MAX} sources (got {len(sources)})")
        return cls(Resource.parse(str(value.get("resource") or "")), actions, decision == ALLOW, sources)


_Entries = Mapping[Resource, Entry]


@attrs.frozen
class Acl:
    """All rights of one user; a policy has one entry for each resource."""

    subject: str
    """`User:` and the name of the user."""
    custom: _Entries = attrs.field(factory=dict[Resource, Entry])
    default: _Entries = attrs.field(factory=dict[Resource, Entry])
    _policies: tuple[_Policy, _Policy] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_policies", (_Policy.of(self.custom.values()), _Policy.of(self.default.values())))

    def refusal(self, demand: Demand, source: str) -> str | None:
        """Why the user may not do what is demanded from this address, in RocketMQ's words; None if allowed."""
        for policy in self._policies:
            if (allows := policy.allows(demand, source)) is not None:
                return None if allows else "the decision is deny."
        return NO_POLICY

    def updated(self, other: Acl) -> Acl:
        """These rights with the entries of others, which replace those for the same resources."""
        return attrs.evolve(self, custom={**self.custom, **other.custom}, default={**self.default, **other.default})

    def without(self, policy: str, resource: Resource) -> Acl:
        """These rights without the entry for a resource."""
        custom, default = dict(self.custom), dict(self.default)
        (custom if policy == CUSTOM else default).pop(resource, None)
        return attrs.evolve(self, custom=custom, default=default)

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry."""
        return not self.custom and not self.default

    def to_json(self) -> dict[str, Any]:
        """The rights as RocketMQ's `AclInfo`."""
        policies = ((CUSTOM, self.custom), (DEFAULT, self.default))
        return {
            "policies": [
                {"entries": [entry.to_json() for entry in entries.values()], "policyType": name}
                for name, entries in policies
                if entries
            ],
            "subject": self.subject,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], subject: str | None = None) -> Self:
        """Read rights; a subject that is given has priority over the one in the value.

        Raises:
            BadPolicy: a text has no meaning.
            TypeError: a part has the wrong type.
        """
        found: dict[str, dict[Resource, Entry]] = {CUSTOM: {}, DEFAULT: {}}
        for policy in value.get("policies") or ():
            given = table_of(policy, "a policy")
            name = _one_of("policy type", str(given.get("policyType") or CUSTOM), (CUSTOM, DEFAULT))
            for each in given.get("entries") or ():
                entry = Entry.from_json(table_of(each, "a policy entry"))
                found[name][entry.resource] = entry
        return cls(checked_subject(subject or str(value.get("subject") or "")), found[CUSTOM], found[DEFAULT])


NO_POLICY = "no matched policies."


@attrs.frozen
class _Policy:
    """The entries of a policy, arranged so that a decision takes a few look-ups, however many entries there are."""

    literal: Mapping[tuple[str, str], Entry]
    """By kind and name."""
    prefixed: Mapping[tuple[str, str], Entry]
    """By kind and beginning of the name."""
    lengths: tuple[int, ...]
    """The lengths of these beginnings, longest first."""
    of_any: Sequence[Entry]
    """The entries about resources of all kinds, those that deny first."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        literal, prefixed, of_any = dict[tuple[str, str], Entry](), dict[tuple[str, str], Entry](), list[Entry]()
        for entry in entries:
            kind, name, is_prefix = entry.resource
            if kind == ANY:
                of_any.append(entry)
            else:
                (prefixed if is_prefix else literal)[kind, name] = entry
        lengths = sorted({len(name) for _, name in prefixed}, reverse=True)
        return cls(literal, prefixed, tuple(lengths), sorted(of_any, key=lambda entry: entry.allows))

    def allows(self, demand: Demand, source: str) -> bool | None:
        """Whether the demand is allowed; None if no entry matches it."""
        kind, name, actions = demand
        found = self.literal.get((kind, name))
        if found is not None and found.matches(actions, source):
            return found.allows
        for length in self.lengths:
            if length <= len(name):
                found = self.prefixed.get((kind, name[:length]))
                if found is not None and found.matches(actions, source):
                    return found.allows
        return next((entry.allows for entry in self.of_any if entry.matches(actions, source)), None)


def checked_subject(subject: str) -> str:
    """Return the subject of rights, with the name of a user that may exist.

    Raises:
        BadPolicy: it has no such name.
    """
    kind, _, name = subject.partition(":")
    fault = user_name_fault(name) if kind.lower() == "user" else "only users have rights"
    if fault is not None:
        raise BadPolicy(f"a subject is User:NAME: {fault} (got {shortened(subject, 100)!r})")
    return USER + name


def user_name_fault(name: str) -> str | None:
    """Why a user cannot have this name; None if it is valid."""
    if not 1 <= len(name) <= SUBJECT_CHARACTERS_MAX:
        return f"the name of a user has 1 to {SUBJECT_CHARACTERS_MAX} characters (got {len(name)})"
    if not name.isprintable() or not name.isascii() or " " in name or "*" in name or ":" in name:
        return "the name of a user has printable ASCII characters without space, * and :"
    return None


def _one_of(what: str, given: str, allowed: Sequence[str]) -> str:
    for each in allowed:
        if each.lower() == given.lower():
            return each
    raise BadPolicy(f"a {what} is one of {', '.join(allowed)} (got {shortened(given, 100)!r})")


def _texts(value: Mapping[str, Any], name: str) -> list[str]:
    given: Any = value.get(name) or []
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):  # pyright: ignore[reportUnknownVariableType]
        raise BadPolicy(f"{name} is a list of texts")
    return given  # pyright: ignore[reportUnknownVariableType]


def _network(text: str) -> _Network:
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise BadPolicy(f"The source ip is invalid. (got {shortened(text, 100)!r})") from error


def _is_in(source: str, networks: Iterable[_Network]) -> bool:
    address = _address(source)
    return address is not None and any(address in network for network in networks)


@lru_cache(maxsize=4096)
def _address(source: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(source)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
