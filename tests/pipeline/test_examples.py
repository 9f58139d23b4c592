"""The scripts of the documentation, run as they are."""

from __future__ import annotations

import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_examples_do_what_they_say(
    spark: SparkSession,
    broker: Embedded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table from a topic, and a copy that can be run again; in the session that the tests share."""
    create_topic(broker.namesrv, "orders", 2)
    create_topic(broker.namesrv, "paid", 2)
    send(broker.namesrv, "orders", 40)
    monkeypatch.setattr("ledgermq.pipeline.session.session", lambda: nullcontext(spark))

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, broker.namesrv, *arguments])
        runpy.run_path(str(EXAMPLES / name))

    run("read_topic.py", "orders")
    for _ in range(2):
        run("copy_paid.py", "orders", "paid", str(tmp_path))

    shown = capsys.readouterr().out
    assert "paid|   20|" in shown
    assert all_bodies(broker.namesrv, "paid") == numbered(range(1, 40, 2))
