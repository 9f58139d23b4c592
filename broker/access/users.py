"""The users of a broker and their rights, as a table of the log (RocketMQ's users and ACLs of version 2.0). Pure.

A user's password is stored as it is, because it is the key with which the user's requests are signed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

import attrs
import orjson

from ...remoting.signature import Credentials
from ..entries import EncodedEntries
from ..json_values import object_of, table_of
from .policies import USER, Acl, user_name_fault

SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
PASSWORD_CHARACTERS_MAX = 255
ACCESS_BYTES_MAX = 512 * 1024
"""The most bytes of all users together, and of all rights together; more are refused. It is some 5,000 users. All of them are
encoded or read in one turn of the event loop, which takes 55 ms for both full tables."""


class BadUser(ValueError):
    """A value cannot be a user; the text does not contain the password."""


@attrs.frozen
class User:
    """Somebody who signs requests."""

    name: str
    password: str = attrs.field(repr=False)
    is_super: bool = False
    """Whether the user may do everything."""
    is_enabled: bool = True

    def to_json(self, *, password: bool = True) -> dict[str, Any]:
        """The user as RocketMQ's `UserInfo`, with or without the password."""
        return {
            "password": self.password if password else None,
            "userStatus": ENABLED if self.is_enabled else DISABLED,
            "userType": SUPER if self.is_super else NORMAL,
            "username": self.name,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], known: User | None = None) -> Self:
        """Read a user; what is absent stays as in `known`.

        Raises:
            BadUser: the name, type or status is not valid, or there is no password.
        """
        name = str(value.get("username") or (known.name if known is not None else ""))
        if (fault := user_name_fault(name)) is not None:
            raise BadUser(fault)
        password: Any = value.get("password") or (known.password if known is not None else "")
        if not isinstance(password, str) or not password:
            raise BadUser("password can not be blank")
        if len(password) > PASSWORD_CHARACTERS_MAX:
            raise BadUser(f"a password has at most {PASSWORD_CHARACTERS_MAX} characters (got {len(password)})")
        is_super = _is(value.get("userType"), SUPER, NORMAL, default=known is not None and known.is_super)
        is_enabled = _is(value.get("userStatus"), ENABLED, DISABLED, default=known is None or known.is_enabled)
        return cls(name, password, is_super, is_enabled)


def _is(given: Any, yes: str, no: str, *, default: bool) -> bool:
    if given is None or given == "":
        return default
    if str(given).lower() not in (yes.lower(), no.lower()):
        raise BadUser(f"{yes} or {no} is expected (got {str(given)[:100]!r})")
    return str(given).lower() == yes.lower()


@attrs.define(eq=False, repr=False)
class AccessTable:
    """All users and rights that the log contains; it changes by events only."""

    users: dict[str, User] = attrs.field(factory=dict[str, User])
    acls: dict[str, Acl] = attrs.field(factory=dict[str, Acl])
    """The rights of users, by subject."""
    changes: int = 0
    """How often the table has changed."""
    _user_entries: EncodedEntries = attrs.field(factory=lambda: EncodedEntries("the table of users", ACCESS_BYTES_MAX))
    _acl_entries: EncodedEntries = attrs.field(factory=lambda: EncodedEntries("the table of rights", ACCESS_BYTES_MAX))

    def check_room(self, users: Iterable[User], acls: Iterable[Acl]) -> None:
        """Refuse entries for which the table has no room; raises as `EncodedEntries.check_room`."""
        self._user_entries.check_room({user.name: user.to_json() for user in users})
        self._acl_entries.check_room({acl.subject: acl.to_json() for acl in acls})

    def apply(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> None:
        """Create, replace and, with None, delete users and rights."""
        for name, user in users.items():
            if user is None:
                self.users.pop(name, None)
                self._user_entries.forget(name)
            else:
                self.users[name] = user
        for subject, acl in acls.items():
            if acl is None:
                self.acls.pop(subject, None)
                self._acl_entries.forget(subject)
            else:
                self.acls[subject] = acl
        self._user_entries.put({name: user.to_json() for name, user in users.items() if user is not None})
        self._acl_entries.put({subject: acl.to_json() for subject, acl in acls.items() if acl is not None})
        self.changes += 1

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all users and rights whose names and subjects are not among these."""
        self.apply(
            {name: None for name in self.users if name not in names},
            {subject: None for subject in self.acls if subject not in names},
        )

    def clear(self) -> None:
        """Remove all users and rights."""
        self.keep_only(())

    def load(self, stored: Any) -> None:
        """Replace the table by the content of its file, or of a master's answer.

        Raises:
            ValueError, TypeError: it is not one. Nothing was changed.
        """
        users, acls = read_access(object_of(stored))
        self.clear()
        self.apply(users, acls)

    def to_json(self) -> dict[str, Any]:
        """The content of the file; users and rights are already encoded."""
        return {"acls": orjson.Fragment(self._acl_entries.joined()), "users": orjson.Fragment(self._user_entries.joined())}


def read_access(content: Mapping[str, Any]) -> tuple[dict[str, User | None], dict[str, Acl | None]]:
    """Users by name and rights by subject; None is a deletion.

    Raises:
        BadUser, BadPolicy, TypeError: an entry is not one.
    """
    users: dict[str, User | None] = dict.fromkeys(map(str, content.get("deletedUsers") or ()))
    acls: dict[str, Acl | None] = dict.fromkeys(map(str, content.get("deletedAcls") or ()))
    for name, value in table_of(content.get("users"), "users").items():
        users[name] = User.from_json({**table_of(value, name), "username": name})
    for subject, value in table_of(content.get("acls"), "acls").items():
        acls[subject] = Acl.from_json(table_of(value, subject), subject)
    return users, acls


def access_content(users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> dict[str, Any]:
    """What `read_access` reads."""
    return {
        "acls": {subject: acl.to_json() for subject, acl in acls.items() if acl is not None},
        "deletedAcls": [subject for subject, acl in acls.items() if acl is None],
        "deletedUsers": [name for name, user in users.items() if user is None],
        "users": {name: user.to_json() for name, user in users.items() if user is not None},
    }


def credentials_in(text: str, name: str, secret: str) -> Credentials | None:
    """Read a JSON object with the name and the secret of a user under these keys; None if the text is blank.

    Raises:
        BadUser: it is not one; the text does not contain the secret.
    """
    if not text.strip():
        return None
    try:
        given = object_of(orjson.loads(text))
    except orjson.JSONDecodeError:
        given = {}
    try:
        user = User.from_json({"username": given.get(name), "password": given.get(secret)})
    except BadUser as error:
        raise BadUser(f'a JSON object such as {{"{name}": "admin", "{secret}": "…"}}: {error}') from None
    return Credentials(user.name, user.password)


def subject_of(user: str) -> str:
    """The subject of a user's rights."""
    return USER + user
