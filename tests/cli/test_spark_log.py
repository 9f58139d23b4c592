"""What a user sees of the output of Spark and its workers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ledgermq.cli import spark_log
from ledgermq.cli.spark_log import SparkLog


def test_warnings_are_shown_once_and_the_file_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else Spark prints stays in the file."""
    log = SparkLog.create()

    with log.watched():
        Path(log.path).write_text(
            "a line of Spark\nledgermq: T: 3 are gone\nledgermq: T: 3 are gone\nledgermq: half a li", "utf-8"
        )

    assert capsys.readouterr().err == "ledgermq: T: 3 are gone\n"
    assert not Path(log.path).exists()


def test_the_file_is_kept_if_it_has_more_warnings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named once."""
    monkeypatch.setattr(spark_log, "WARNINGS_MAX", 2)
    log = SparkLog.create()

    with log.watched():
        Path(log.path).write_text("".join(f"ledgermq: {number}\n" for number in range(5)), "utf-8")

    shown = capsys.readouterr().err
    assert shown.splitlines()[:2] == ["ledgermq: 0", "ledgermq: 1"]
    assert shown.count(log.path) == 1
    Path(log.path).unlink()


def test_what_libraries_log_goes_to_the_file() -> None:
    """Py4J logs a traceback when a call is interrupted, which the user has not asked for."""
    log = SparkLog.create()
    log.keep()

    with log.watched():
        logging.getLogger("py4j.clientserver").error("Exception while sending command.")
    logging.getLogger("py4j.clientserver").error("after the command")

    assert Path(log.path).read_text("utf-8") == "Exception while sending command.\n"
    Path(log.path).unlink()
