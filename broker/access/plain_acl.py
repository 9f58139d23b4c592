"""RocketMQ's ACL 1.0: accounts in `plain_acl.yml`, and what they may do. Pure.

Accounts that are no administrators may send and consume as their rights say; what changes topics, groups or the broker is for
administrators. What only reads states and positions is for every account, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import attrs

from ...remoting.codes import ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY, is_signed
from ...store.config import SCHEDULE_TOPIC
from ...world.logs import shortened
from ..json_values import table_of
from .audit import Audit
from .control import OPEN_CODES
from .demands import ASKED, demands_of, named
from .policies import CREATE, DELETE, PUB, SUB, TOPIC, UPDATE, Demand
from .users import User
from .white_list import WhiteList

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Every account may send to it."""
ACCOUNTS_MAX = 10_000
"""The most accounts of all files together."""
_OF_ADMINS = frozenset((CREATE, UPDATE, DELETE))
"""Actions for which there is no right: a request that asks for nothing else is for administrators."""
_RIGHTS = {"DENY": (), "PUB": (PUB,), "SUB": (SUB,), "PUB|SUB": (PUB, SUB), "SUB|PUB": (PUB, SUB)}
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
"""With this begin the texts of RocketMQ's refusals."""


class BadAccounts(ValueError):
    """A file is no list of accounts; the text contains no secret."""


@attrs.frozen
class Account:
    """One account."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    white_list: WhiteList
    """Where requests of this account need no signature."""
    is_admin: bool
    default_topic: tuple[str, ...]
    default_group: tuple[str, ...]
    topics: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[str, ...]]

    def allows(self, demand: Demand) -> bool:
        """Whether the rights of the account contain what is demanded of a topic or a group."""
        wanted = PUB if PUB in demand.actions else SUB
        if demand.kind == TOPIC:
            default = self.default_topic if demand.name != SCHEDULE_TOPIC else ()  # where messages of all topics wait
            return wanted in self.topics.get(demand.name, default) or (demand.name, wanted) == (TRACE_TOPIC, PUB)
        return wanted in self.groups.get(demand.name, self.default_group)

    @classmethod
    def from_yaml(cls, value: Mapping[str, Any]) -> Self:
        """Read an account; raises ValueError or TypeError."""
        access_key, secret_key = (str(value.get(name) or "") for name in ("accessKey", "secretKey"))
        # RocketMQ's own bounds.
        if len(access_key) <= 6 or len(secret_key) <= 6:
            raise BadAccounts(f"accessKey and secretKey have more than 6 characters (account {shortened(access_key, 60)!r})")
        white = value.get("whiteRemoteAddress")
        return cls(
            access_key,
            secret_key,
            WhiteList.parse(() if white is None else (str(white),)),
            value.get("admin") is True,
            _rights(value.get("defaultTopicPerm")),
            _rights(value.get("defaultGroupPerm")),
            _rights_by_name(value.get("topicPerms"), "topicPerms"),
            _rights_by_name(value.get("groupPerms"), "groupPerms"),
        )


def _rights(value: Any) -> tuple[str, ...]:
    return _RIGHTS.get(str(value or "").strip(), ())


def _rights_by_name(value: Any, key: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for each in _list_of(value, key):
        name, separator, rights = str(each).partition("=")
        if not separator or not name.strip():
            raise BadAccounts(f"{key} has entries NAME=PERM (got {shortened(str(each), 100)!r})")
        found[name.strip()] = _rights(rights)
    return found


def _list_of(value: Any, key: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadAccounts(f"{key} is a list (got {type(value).__name__})")
    return value  # pyright: ignore[reportUnknownVariableType]


@attrs.frozen(eq=False)
class Accounts:
    """All accounts, and the addresses from where everybody may do everything; each reading of the files is another value."""

    white_list: WhiteList = attrs.field(factory=lambda: WhiteList.parse(()))
    by_key: Mapping[str, Account] = attrs.field(factory=dict[str, Account])

    @classmethod
    def of(cls, contents: Iterable[Any]) -> Self:
        """Read the values of YAML files.

        Raises:
            BadAccounts: one is no file of accounts, or an access key is there twice.
        """
        try:
            return cls._read(contents)
        except (TypeError, ValueError) as error:
            raise BadAccounts(str(error)) from error

    @classmethod
    def _read(cls, contents: Iterable[Any]) -> Self:
        addresses: list[str] = []
        accounts: dict[str, Account] = {}
        for content in contents:
            table = table_of(content, "the content")
            addresses += map(str, _list_of(table.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses"))
            for each in _list_of(table.get("accounts"), "accounts"):
                account = Account.from_yaml(table_of(each, "an account"))
                if account.access_key in accounts:
                    raise BadAccounts(f"the account {shortened(account.access_key, 60)!r} is there twice")
                accounts[account.access_key] = account
        if len(accounts) > ACCOUNTS_MAX:
            raise BadAccounts(f"{len(accounts)} accounts, {ACCOUNTS_MAX} are allowed")
        return cls(WhiteList.parse(addresses), accounts)


@attrs.define(eq=False, repr=False, kw_only=True)
class PlainAccessControl:
    """Satisfies `AccessCheck` with accounts, which are replaced when their files change."""

    accounts: Accounts
    nodes: Mapping[str, User]
    """Other nodes of the group, by the names with which they sign."""
    cluster: str
    audit: Audit
    watch: Callable[[], Awaitable[None]] = attrs.field(init=False)
    """Replaces the accounts when their files change, until cancelled."""

    def refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        if request.code in OPEN_CODES:
            return None
        reason = self._reason(connection.remote.host, request)
        return None if reason is None else self._refused(connection, request, reason)

    @property
    def version(self) -> object:
        return self.accounts

    def later_refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        reason = self._reason(connection.remote.host, request, is_proved=True)
        return None if reason is None else self._refused(connection, request, reason)

    def read_refusal(self, connection: ServerConnection, request: RemotingCommand, topic: str) -> RequestRefused | None:
        name, host = request.ext.get(ACCESS_KEY, ""), connection.remote.host
        account = self.accounts.by_key.get(name)
        if name in self.nodes or self.accounts.white_list.matches(host):
            return None
        if account is not None and (
            account.is_admin or account.white_list.matches(host) or account.allows(named(TOPIC, topic, (SUB,)))
        ):
            return None
        return self._refused(connection, request, f"No default permission for {topic}")

    def _reason(self, host: str, request: RemotingCommand, *, is_proved: bool = False) -> str | None:
        """Why a request is refused, in RocketMQ's words and after the checks in its order."""
        if self.accounts.white_list.matches(host):
            return None
        name = request.ext.get(ACCESS_KEY, "")
        if not name:
            return "No accessKey is configured"
        shown = shortened(name, 100)
        if (node := self.nodes.get(name)) is not None:
            return None if is_proved or is_signed(request, node.password) else f"Check signature failed for accessKey={shown}"
        account = self.accounts.by_key.get(name)
        if account is None:
            return f"No acl config for {shown}"
        if account.white_list.matches(host):
            return None
        if not (is_proved or is_signed(request, account.secret_key)):
            return f"Check signature failed for accessKey={shown}"
        return None if account.is_admin else self._lacks(account, request)

    def _lacks(self, account: Account, request: RemotingCommand) -> str | None:
        if request.code not in ASKED:
            return f"Need admin permission for request code={request.code}"
        for demand in demands_of(request, self.cluster):
            if _OF_ADMINS.issuperset(demand.actions):
                return f"Need admin permission for request code={request.code}"
            if (PUB in demand.actions or SUB in demand.actions) and not account.allows(demand):
                return f"No default permission for {shortened(demand.name, 300)}"
        return None

    def _refused(self, connection: ServerConnection, request: RemotingCommand, reason: str) -> RequestRefused:
        self.audit.refused(connection, request, reason)
        return RequestRefused(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}{reason}")
