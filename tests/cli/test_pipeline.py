"""What `ledgermq pipeline` says when something fails that nobody expected, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from click.testing import CliRunner, Result

from ledgermq.cli import pipeline
from ledgermq.cli.main import main
from ledgermq.pipeline.errors import DataLoss
from ledgermq.pipeline.jobs.stats import Stats

from .processes import Run


class Py4JJavaError(Exception):
    """Stands for what Py4J raises; its text begins with a line that says nothing."""


class Session:
    """Stands for a session whose JVM is lost."""

    def stop(self) -> NoReturn:
        raise ConnectionRefusedError(111, "Connection refused")


JAVA = Py4JJavaError(
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": org.apache.spark.SparkException: Could not parse Master URL: 'nonsense'\n\tat org.apache.spark.SparkContext"
)
OF_WORKER = Py4JJavaError(
    "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n"
    "ledgermq.pipeline.errors.DataLoss: T@a:0: gone\n\tat org"
)


class Row(dict[str, int]):
    def asDict(self) -> dict[str, int]:  # noqa: N802 - the name is Spark's
        return dict(self)


class Frame:
    """Stands for a table of Spark with a row for each minute of a day."""

    def __init__(self, count: int = 1440) -> None:
        self.count = count

    def limit(self, count: int) -> Frame:
        return Frame(min(count, self.count))

    def collect(self) -> list[Row]:
        return [Row(window=number) for number in range(self.count)]


class Quiet:
    """Stands for a session."""

    def stop(self) -> None: ...


def raising(error: Exception) -> Any:
    def do(*_: Any, **__: Any) -> NoReturn:
        raise error

    return do


def giving(value: Any) -> Any:
    def do(*_: Any, **__: Any) -> Any:
        return value

    return do


@pytest.fixture
def statistics(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `stats` on such a table."""
    found = Stats(*[cast("Any", Frame())] * 3)
    monkeypatch.setattr(pipeline, "session", giving(Quiet()))
    monkeypatch.setattr("ledgermq.pipeline.jobs.stats.stats", giving(found))
    return lambda *arguments: CliRunner().invoke(main, ["pipeline", "stats", "T", "--store", ".", *arguments])


def run(tmp_path: Path) -> Result:
    return CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path)])


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OSError(28, "No space left on device"),
            4,
            "audit failed: [Errno 28] No space left on device. What Spark printed is in ",
        ),
        (KeyError("x"), 4, "audit failed: KeyError: 'x'. What Spark printed is in "),
        (ConnectionResetError(), 4, "audit failed: ConnectionResetError. What Spark printed is in "),
        (JAVA, 4, "audit failed: org.apache.spark.SparkException: Could not parse Master URL: 'nonsense'. What"),
        (OF_WORKER, 3, "T@a:0: gone"),
        (DataLoss("T@a:0", "it is gone"), 3, "T@a:0: it is gone. Nothing was skipped. "),
    ],
)
def test_a_failure_is_a_sentence_and_not_the_status_of_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, said: str
) -> None:
    """Whatever raised it, and though the session cannot be stopped any more; the traceback is in the file that is named."""

    def start(*_: Any, **__: Any) -> Session:
        return Session()

    monkeypatch.setattr(pipeline, "session", start)
    monkeypatch.setattr("ledgermq.pipeline.jobs.audit.audit", raising(error))

    result = run(tmp_path)

    assert (result.exit_code, result.stderr.startswith(f"Error: {said}")) == (status, True), result.stderr
    if "What Spark printed" in said:
        assert "Traceback" in Path(result.stderr.rpartition(" is in ")[2].strip()).read_text("utf-8")


def test_a_session_that_does_not_start_is_a_sentence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "session", raising(JAVA))

    result = run(tmp_path)

    assert result.exit_code == 4
    assert "Spark did not start: org.apache.spark.SparkException: Could not parse Master URL: 'nonsense'." in result.stderr


def test_statistics_are_printed_whole(statistics: Run) -> None:
    """Windows are sorted by time, so that a cut would leave out the newest ones."""
    assert len(json.loads(statistics("--json").stdout)) == 1440
    assert len(statistics().stdout.splitlines()) == 1441


def test_a_reader_that_goes_away_is_no_failure_of_spark(
    statistics: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command ends as others in a pipe with `head`, and leaves no log file behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(pipeline, "table", raising(BrokenPipeError(32, "Broken pipe")))

    ended = statistics()

    assert (ended.exit_code, ended.stderr, list(tmp_path.iterdir())) == (1, "", [])


def test_the_number_of_redriven_letters_is_json_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "session", giving(Quiet()))
    monkeypatch.setattr("ledgermq.pipeline.jobs.letters.dead_letters", giving(None))
    monkeypatch.setattr("ledgermq.pipeline.jobs.letters.redrive", giving(3))

    command = ["pipeline", "dlq", "shop", "--namesrv", "127.0.0.1:1", "--redrive"]

    assert json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout) == {"group": "shop", "messages": 3}
    assert CliRunner().invoke(main, command).stdout == "3 messages\n"
