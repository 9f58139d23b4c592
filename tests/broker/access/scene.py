"""A broker with access control, its administrator, and users with rights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ledgermq.message.json import dumps
from ledgermq.remoting.signature import Credentials

from ..desk import Desk, Peer, open_desk

ADMIN = Credentials("admin", "swordfish")
ALICE = Credentials("alice", "hush")
BOOTSTRAP = dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}).decode()


@asynccontextmanager
async def open_secured(directory: Path, **settings: Any) -> AsyncGenerator[Desk]:
    """Run a broker that authenticates and authorizes, with one super user."""
    given: dict[str, Any] = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": BOOTSTRAP,
        **settings,
    }
    async with open_desk(directory, **given) as desk:
        yield desk


def create_user(admin: Peer, credentials: Credentials = ALICE, **settings: Any) -> None:
    """Create a user who may sign with these credentials."""
    body = {"password": credentials.secret_key, **settings}
    answer = admin.ask(3001, {"username": credentials.access_key}, body)
    assert answer.code == 0, answer.remark


def allow(admin: Peer, resource: str, *actions: str, user: str = "alice", sources: Sequence[str] = ()) -> None:
    """Give a user rights."""
    entry = {"resource": resource, "actions": actions, "decision": "Allow", "sourceIps": sources}
    answer = admin.ask(3006, {"subject": f"User:{user}"}, {"policies": [{"policyType": "Custom", "entries": [entry]}]})
    assert answer.code == 0, answer.remark
