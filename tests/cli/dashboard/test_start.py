"""The options of `ledgermq dashboard`, and that it serves."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from ..conftest import Run, Start

PASSWORD = "correct horse battery"  # noqa: S105 - of a test


def test_beyond_loopback_a_password_is_needed(runner: Run) -> None:
    text = runner("dashboard", "--host", "0.0.0.0", status=2).stderr

    assert "whoever reaches 0.0.0.0 could see the cluster" in text
    assert "--password-file or $LEDGERMQ_DASHBOARD_PASSWORD" in text
    assert "nothing was started" in text


def test_a_short_password_is_refused_and_not_printed(runner: Run, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("tiny-secret\nsecond line that does not count\n")

    text = runner("dashboard", "--password-file", str(file), status=2).stderr

    assert "has 11 characters and needs 12" in text
    assert "tiny-secret" not in text


def test_a_malformed_name_server_is_one_line(runner: Run) -> None:
    text = runner("dashboard", "-n", "nowhere:x", "--port", "0", status=1).stderr

    assert "HOST:PORT" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("by", ["file", "environment"])
def test_it_serves_until_it_is_stopped(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Beyond loopback with a password, which is on no page and in no argument."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    if by == "environment":
        monkeypatch.setenv("LEDGERMQ_DASHBOARD_PASSWORD", PASSWORD)
    more = ["--password-file", str(file)] if by == "file" else []

    dashboard = start("dashboard", "--host", "0.0.0.0", "--port", "0", *more)
    port = dashboard.wait_for(r"The dashboard is at http://0\.0\.0\.0:(\d+)")[1]
    answer = httpx.get(f"http://127.0.0.1:{port}/", follow_redirects=True)

    assert answer.url.path == "/login"
    assert "server" not in answer.headers
    assert dashboard.stop(signal.SIGTERM) == 0
    assert PASSWORD not in dashboard.output
    assert "Traceback" not in dashboard.output


def test_a_port_in_use_is_explained(start: Start) -> None:
    first = start("dashboard", "--port", "0")
    port = first.wait_for(r"The dashboard is at http://127\.0\.0\.1:(\d+)")[1]

    second = start("dashboard", "--port", port)
    second.wait_for("choose another port with --port")

    assert second.process.wait(30) == 1
    assert first.stop() == 0
