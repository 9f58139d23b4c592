"""What a user may do: the policies of RocketMQ's ACL 2.0, and which entry of them decides about a demand. Pure.

Of the entries that match resource, action and source, those with the most exact resource decide, and among these one that
denies. The entries of the policy `Custom` come before those of `Default`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import chain
from typing import Any, NamedTuple, Self

import attrs

from ...store.config import SCHEDULE_TOPIC
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
MESSAGES_OF_ALL = f"{TOPIC}:{SCHEDULE_TOPIC}"
"""The topic in which the delayed messages and retries of all topics wait: an entry for several topics does not mean it."""
SUBJECT_CHARACTERS_MAX = 255
SOURCES_MAX = 100
"""The most addresses and networks of one entry."""
SOURCES_OF_USER_MAX = 1000
"""The most addresses and networks in all entries of one user, which are read when the user comes from an address for the first
time, in less than 10 ms."""
KEPT_ENTRIES_MAX = 100_000
"""The most entries that a user's rights keep arranged for all addresses and actions together, in some 10 MB."""


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
    """The addresses or networks to which the entry applies, as texts; none means all. They are read when they are needed."""

    def matches(self, actions: Sequence[str], source: str) -> bool:
        """Whether the entry applies to one of the actions, from this address."""
        return (ALL in self.actions or any(action in self.actions for action in actions)) and self._counts_from(source)

    def _counts_from(self, source: str) -> bool:
        if not self.sources:
            return True
        address = _address(source)
        try:
            return address is not None and any(address in _network(text) for text in self.sources)
        except BadPolicy:  # a file of another version may contain it; what is not understood allows nothing
            return not self.allows

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
        """Read an entry, but not what its sources say; raises BadPolicy."""
        actions = _actions(tuple(dict.fromkeys(_texts(value, "actions"))))
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
    _arranged: dict[tuple[str, tuple[str, ...]], _Arranged] = attrs.field(
        init=False, eq=False, repr=False, factory=dict[tuple[str, tuple[str, ...]], "_Arranged"]
    )
    """What applies to requests from an address for one of some actions; the address is `ALL` if no entry has sources."""

    def refusal(self, demand: Demand, source: str) -> str | None:
        """Why the user may not do what is demanded from this address, in RocketMQ's words; None if allowed."""
        kept, actions = self._arranged, demand.actions
        arranged = kept.get((ALL, actions)) or kept.get((source, actions)) or self._arrange(actions, source)
        allows = arranged.allows(f"{demand.kind}:{demand.name}")
        return NO_POLICY if allows is None else None if allows else "the decision is deny."

    def _arrange(self, actions: tuple[str, ...], source: str) -> _Arranged:
        if (len(self._arranged) + 1) * (len(self.custom) + len(self.default) + 10) > KEPT_ENTRIES_MAX:
            self._arranged.clear()
        arranged = _Arranged.of(self, actions, source)
        self._arranged[source if any(self.sources()) else ALL, actions] = arranged
        return arranged

    def updated(self, other: Acl) -> Acl:
        """These rights with the entries of others, which replace those for the same resources.

        Raises:
            BadPolicy: a source of the others has no meaning, or there would be too many.
        """
        updated = attrs.evolve(self, custom={**self.custom, **other.custom}, default={**self.default, **other.default})
        if (count := sum(map(len, updated.sources()))) > SOURCES_OF_USER_MAX:
            raise BadPolicy(
                f"the entries of {self.subject} would have {count} sources together; at most {SOURCES_OF_USER_MAX} are allowed"
            )
        for text in chain.from_iterable(other.sources()):
            _network(text)
        return updated

    def sources(self) -> Iterator[tuple[str, ...]]:
        """The sources of each entry."""
        return (entry.sources for entry in chain(self.custom.values(), self.default.values()))

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
        """Read rights, but not what their sources say; a subject that is given has priority over the one in the value.

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
class _Arranged:
    """The entries of a user that apply to some actions from an address, by what their resources are called as texts.

    A decision takes a look-up for each length of a beginning, however many entries there are.
    """

    custom: Mapping[str, Entry]
    default: Mapping[str, Entry]
    """The entries of the two policies about one resource each, by the text."""
    beginnings: Mapping[str, tuple[bool, Entry]]
    """The other entries and whether their policy is `Custom`, by the beginning of the text; it is empty for all resources."""
    lengths: Sequence[int]
    """The lengths of these beginnings, shortest first."""
    ends: Sequence[slice]
    """What takes them from a text."""

    @classmethod
    def of(cls, acl: Acl, actions: Sequence[str], source: str) -> Self:
        custom, default = dict[str, Entry](), dict[str, Entry]()
        beginnings = dict[str, tuple[bool, Entry]]()
        for entries, literal in ((acl.default, default), (acl.custom, custom)):
            for resource, entry in entries.items():
                if entry.matches(actions, source):
                    if resource.is_prefix:
                        beginnings[str(resource).removesuffix("*")] = (literal is custom, entry)
                    else:
                        literal[str(resource)] = entry
        lengths = sorted(set(map(len, beginnings)))
        return cls(custom, default, beginnings, lengths, list(map(slice, lengths)))

    def allows(self, wanted: str) -> bool | None:
        """Whether what is demanded of a resource is allowed; None if no entry matches it."""
        found = self.custom.get(wanted)
        if wanted == MESSAGES_OF_ALL:
            found = found or self.default.get(wanted)
        elif found is None:
            ends = reversed(self.ends[: bisect_right(self.lengths, len(wanted))])
            hits = list(filter(None, map(self.beginnings.get, map(wanted.__getitem__, ends))))  # in one pass of compiled code
            found = next((entry for is_custom, entry in hits if is_custom), None)
            if found is None:
                found = self.default.get(wanted, hits[0][1] if hits else None)
        return None if found is None else found.allows


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
    if given in allowed:
        return given
    for each in allowed:
        if each.lower() == given.lower():
            return each
    raise BadPolicy(f"a {what} is one of {', '.join(allowed)} (got {shortened(given, 100)!r})")


@lru_cache(maxsize=256)
def _actions(given: tuple[str, ...]) -> tuple[str, ...]:
    if not given:
        raise BadPolicy("The actions is empty.")
    return tuple(dict.fromkeys(_one_of("action", action, ACTIONS) for action in given))


def _texts(value: Mapping[str, Any], name: str) -> list[str]:
    given: list[Any] = value.get(name) or []
    if type(given) is not list or not {str}.issuperset(map(type, given)):
        raise BadPolicy(f"{name} is a list of texts")
    return given


@lru_cache(maxsize=4096)
def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise BadPolicy(f"The source ip is invalid. (got {shortened(text, 100)!r})") from error


@lru_cache(maxsize=4096)
def _address(source: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(source)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
