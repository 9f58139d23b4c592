"""What `ledgermq pipeline` says when something fails that nobody expected, and with which exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from ledgermq.cli import pipeline
from ledgermq.cli.main import main
from ledgermq.pipeline.errors import DataLoss


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


def run(tmp_path: Path) -> Result:
    return CliRunner().invoke(main, ["pipeline", "audit", str(tmp_path)])


def raising(error: Exception) -> Any:
    def do(*_: Any, **__: Any) -> NoReturn:
        raise error

    return do


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
