"""A broker with users for commands, and a runner that signs as its administrator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from ledgermq.testing.embedded import StartedEmbedded, start_embedded

Run = Callable[..., Result]
SECURED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "swordfish"}),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[StartedEmbedded]:
    with start_embedded(settings=SECURED) as cluster:
        yield cluster


@pytest.fixture
def run(runner: Run, cluster: StartedEmbedded, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as the administrator, whose credentials are in the environment."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "admin")
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "swordfish")
    return lambda *arguments, **options: runner(*arguments, namesrv=cluster.namesrv, **options)


def rows(result: Result) -> list[dict[str, Any]]:
    """The rows that a command prints with `--json`."""
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found
