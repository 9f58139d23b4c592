"""A cluster with access control: the dashboard signs as its environment says, and shows and switches users."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
import trio

from ledgermq.cli.dashboard.guard import Login
from ledgermq.client.admin import open_admin
from ledgermq.message.message import DLQ_PREFIX
from ledgermq.testing.embedded import StartedEmbedded, start_embedded

from ..conftest import Start
from ..secured import SECURED
from .conftest import ADMIN, HOSTILE_KEY, USER_PASSWORD, Visit, fill_secured, send_form

LOGIN_PASSWORD = "correct horse battery"  # noqa: S105 - of a test
PATHS = ("/", "/topics", "/topic?topic=orders", "/groups", "/group?group=slow", "/letters?group=slow", "/users")


@pytest.fixture(scope="module")
def cluster() -> Generator[StartedEmbedded]:
    """One broker with access control, two users and a dead letter."""
    with start_embedded(settings=SECURED) as embedded:
        trio.run(fill_secured, embedded.namesrv)
        yield embedded


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Signs as the administrator, whom a test may replace."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "admin")
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "swordfish")
    return monkeypatch


def cells_of(page: httpx.Response, user: str) -> list[str]:
    """The cells of a user's row, without markup."""
    row = next(row for row in page.text.split("<tr>") if f">{user}<" in row)
    return [" ".join(re.sub("<[^>]*>", " ", cell).split()) for cell in re.split("<t[hd]", row.partition("</tr>")[0])[1:]]


async def test_users_are_listed_with_their_rights_and_sources(visit: Visit, sign: pytest.MonkeyPatch) -> None:
    async with visit() as client:
        page = await client.get("/users")
        found = await client.get("/users?find=bo")

    alice, admin = cells_of(page, "alice"), cells_of(page, "admin")
    assert alice[1].endswith("broker-a")
    assert alice[2].endswith("enabled")
    assert "Pub, Sub Topic:orders from 127.0.0.1, 10.1.0.0/16" in alice[3]
    assert "not All Topic:salaries" in alice[3]
    assert admin[3].endswith("everything, as a super user")
    assert cells_of(page, "bob")[3].endswith("nothing")
    assert "alice" not in found.text
    assert "<button>Disable" not in page.text
    assert USER_PASSWORD not in page.text
    assert ADMIN.secret_key not in page.text


async def test_a_user_is_disabled_and_enabled_again(visit: Visit, sign: pytest.MonkeyPatch) -> None:
    fields = {"broker": "broker-a", "user": "bob"}
    async with visit(allow_changes=True) as client:
        await send_form(client, "/users", "/users/switch", {**fields, "to": "disabled"})
        off = await client.get("/users")
        await send_form(client, "/users", "/users/switch", {**fields, "to": "enabled"})
        on = await client.get("/users")

    assert "User bob of broker-a is disabled." in off.text
    assert [cells_of(page, "bob")[2].split()[-2:] for page in (off, on)] == [["disabled", "Enable"], ["enabled", "Disable"]]


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"user": "bob", "to": "deleted"}, 400, "switched to enabled or disabled"),
        ({"user": "nobody", "to": "disabled"}, 403, "The user is not exist"),
        ({"user": HOSTILE_KEY, "to": "disabled"}, 403, "The user is not exist"),
        ({"user": "", "to": "disabled"}, 400, "name"),
    ],
)
async def test_a_switch_that_is_refused_says_why(
    visit: Visit, sign: pytest.MonkeyPatch, fields: dict[str, str], status: int, reason: str
) -> None:
    async with visit(allow_changes=True) as client:
        answer = await send_form(client, "/users", "/users/switch", {"broker": "broker-a", **fields})

    assert answer.status_code == status
    assert reason in answer.text
    assert "<script>alert" not in answer.text


async def test_a_redrive_is_signed(visit: Visit, sign: pytest.MonkeyPatch, cluster: StartedEmbedded) -> None:
    async with visit(allow_changes=True) as client:
        answer = await send_form(client, "/letters?group=slow", "/letters/redrive", {"group": "slow", "count": "1"})
        page = await client.get("/letters?group=slow")
    async with open_admin(cluster.namesrv) as admin:
        letters = await admin.topic_stats(DLQ_PREFIX + "slow")

    assert answer.status_code == 303
    assert "Dead letters handed out to slow again: 1." in page.text
    assert sum(each.max_offset for each in letters.values()) == 1


@pytest.mark.parametrize("user", ["admin", "stranger", ""])
@pytest.mark.parametrize("path", PATHS)
async def test_wrong_credentials_are_named_on_every_page(visit: Visit, sign: pytest.MonkeyPatch, path: str, user: str) -> None:
    """A list of topics comes from the name server, which asks nobody; what brokers hold of them is refused."""
    sign.setenv("LEDGERMQ_ACCESS_KEY", user)
    sign.setenv("LEDGERMQ_SECRET_KEY", "wrong" if user else "")
    async with visit(allow_changes=True) as client:
        answer = await client.get(path)

    assert answer.status_code == 200
    assert "(NO_PERMISSION)" in answer.text
    assert "Set $LEDGERMQ_ACCESS_KEY to an enabled user of the broker" in answer.text
    assert "wrong" not in answer.text


async def test_a_change_with_wrong_credentials_is_refused(visit: Visit, sign: pytest.MonkeyPatch) -> None:
    sign.setenv("LEDGERMQ_SECRET_KEY", "wrong")
    async with visit(allow_changes=True, login=Login(LOGIN_PASSWORD)) as client:
        await send_form(client, "/login", "/login", {"password": LOGIN_PASSWORD})
        answer = await send_form(client, "/", "/letters/redrive", {"group": "slow", "count": "1"})  # of the button to log out

    assert answer.status_code == 403
    assert "check signature failed" in answer.text


async def test_a_search_without_the_right_is_refused(visit: Visit, sign: pytest.MonkeyPatch) -> None:
    sign.setenv("LEDGERMQ_ACCESS_KEY", "bob")
    sign.setenv("LEDGERMQ_SECRET_KEY", USER_PASSWORD)
    async with visit() as client:
        answer = await client.get("/messages?topic=orders&text=nothing")

    assert "(NO_PERMISSION)" in answer.text
    assert "$LEDGERMQ_ACCESS_KEY" not in answer.text


def test_the_command_signs_as_a_file_says(
    start: Start, cluster: StartedEmbedded, sign: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("swordfish\n")
    sign.delenv("LEDGERMQ_SECRET_KEY")
    sign.setenv("LEDGERMQ_SECRET_KEY_FILE", str(file))

    dashboard = start("dashboard", "--port", "0", "-n", cluster.namesrv)
    url = dashboard.wait_for(r"The dashboard is at (\S+)")[1]
    page = httpx.get(f"{url}/users")

    assert "alice" in page.text
    assert dashboard.stop() == 0
    assert "swordfish" not in dashboard.output


def test_half_of_the_credentials_is_one_line(start: Start, sign: pytest.MonkeyPatch) -> None:
    sign.delenv("LEDGERMQ_SECRET_KEY")

    dashboard = start("dashboard", "--port", "0")
    dashboard.wait_for("LEDGERMQ_ACCESS_KEY is set together with LEDGERMQ_SECRET_KEY")

    assert dashboard.process.wait(30) == 1
    assert "Traceback" not in dashboard.output
