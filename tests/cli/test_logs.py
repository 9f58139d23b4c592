"""How events are printed."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

from ledgermq.cli.logs import LogFormat, json_formatter, log_to_stderr, text_formatter
from ledgermq.world.events import get_logger
from ledgermq.world.logs import BURST_LINES

Run = Callable[..., Result]


class _FullDisk:
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")

    def isatty(self) -> bool:
        return False


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == "", "standard output is for results"
    return err


@pytest.mark.usefixtures("runner")
def test_text_is_one_line_with_time_level_name_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """What has spaces is quoted, the places of a trace follow, and levels below the one asked for are dropped."""
    log_to_stderr("info", "text")
    log = get_logger("ledgermq.tests")

    log.debug("dropped")
    log.info("leader_elected", term=3, reason="a vote", queue="t@b:0")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d \[info +\] leader_elected +term=3 reason='a vote' queue=t@b:0\n",
        printed(capsys),
    )
    log.error("request_failed", reason="ValueError: bad", trace=["a.py:1 f", "b.py:2 g"])
    assert printed(capsys).endswith(" reason='ValueError: bad'\n    a.py:1 f\n    b.py:2 g\n")


@pytest.mark.usefixtures("runner")
def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere than on a terminal it is the default; values that JSON does not know are texts."""
    log_to_stderr("debug")
    get_logger("ledgermq.tests").error("request_failed", code=10, what=ValueError("bad"))

    found = json.loads(printed(capsys))
    assert (found["event"], found["level"], found["code"], found["what"]) == ("request_failed", "error", 10, "bad")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", found["timestamp"])


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_its_reason_and_the_places_it_passed(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    """No value of a variable is printed: a frame may hold a whole table or a signature."""
    log_to_stderr("info", log_format)
    secret = "s" * 12
    try:
        int("no number")
    except ValueError:
        get_logger("ledgermq.tests").error("request_failed", exc_info=True)

    text = printed(capsys)
    assert "no number" in text
    assert "test_an_exception_is_its_reason" in text
    assert secret not in text


@pytest.mark.usefixtures("runner")
def test_a_flood_of_one_event_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines beyond a burst are left out; those of other events are written."""
    log_to_stderr("info", "json")
    log = get_logger("ledgermq.tests")

    for _ in range(BURST_LINES + 50):
        log.warning("malformed_frame_received", remote="\x1b[2J")
    log.info("broker_started")

    lines = [json.loads(line) for line in printed(capsys).splitlines()]
    assert 0 < len(lines) - BURST_LINES <= 3, "one a second and the other event"
    assert {line["remote"] for line in lines[:-1]} == {"\\x1b[2J"}


@pytest.mark.usefixtures("runner")
def test_events_of_other_programs_have_a_name_too() -> None:
    """A record that did not come through our loggers is its message."""
    record = logging.LogRecord("ledgermq", logging.INFO, __file__, 1, "plain %s", ("text",), None)

    assert json.loads(json_formatter().format(record))["event"] == "plain text"
    assert "\x1b[32m" in text_formatter(coloured=True).format(record)


@pytest.mark.usefixtures("runner")
def test_a_full_disk_under_the_log_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that reports it goes on."""
    log_to_stderr("info")
    monkeypatch.setattr(sys, "stderr", _FullDisk())

    get_logger("ledgermq.tests").error("disk_full")


@pytest.mark.parametrize("server", ["broker", "namesrv", "up"])
def test_servers_have_options_for_logging(runner: Run, server: str) -> None:
    """As a flag with two values."""
    assert "--log-format [text|json]" in runner(server, "-h").stdout.replace("\n", " ")
    assert "'xml' is not one of 'text', 'json'" in runner(server, "--log-format", "xml", status=2).stderr
