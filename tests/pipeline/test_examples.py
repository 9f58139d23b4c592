"""The scripts of the documentation, run as they are."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import pytest
import trio

from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SCRIPTS = ("copy_paid.py", "read_topic.py")


@attrs.frozen
class Shared:
    """The session that all tests share: a program that ends its session does not stop it."""

    _spark: SparkSession

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def __enter__(self) -> SparkSession:
        return self._spark

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_the_examples_do_what_they_say(
    spark: SparkSession,
    broker: Embedded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table from a topic, and a copy that can be run again; in the session that the tests share.

    The programs in the README and in the guide to the pipeline are run too.
    """
    create_topic(broker.namesrv, "orders", 2)
    create_topic(broker.namesrv, "paid", 2)
    send(broker.namesrv, "orders", 40)
    monkeypatch.setattr("ledgermq.pipeline.session.session", lambda: Shared(spark))

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, broker.namesrv, *arguments])
        runpy.run_path(str(EXAMPLES / name))

    for page in ("README.md", "docs/pipeline.md"):
        for program in programs(page):
            run_program(program, broker.namesrv, tmp_path)
    tables = capsys.readouterr().out
    assert tables.count("paid|   20|") == 1
    assert tables.count("only showing top 20 rows") == 1
    assert "messages behind: 0\n" in tables
    assert spark.read.parquet(f"{tmp_path}/orders").where("queueId is not null").count() == 40

    run("read_topic.py", "orders")
    for _ in range(2):
        run("copy_paid.py", "orders", "paid", str(tmp_path))

    assert sorted(path.name for path in EXAMPLES.iterdir()) == [*SCRIPTS]
    shown = capsys.readouterr().out
    assert "paid|   20|" in shown
    assert all_bodies(broker.namesrv, "paid") == numbered(range(1, 40, 2))


def test_the_demo_shows_a_table_a_plot_and_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both halves of `make demo`, with fewer messages."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    first, second = (importlib.import_module(name) for name in ("demo", "spark_demo"))
    monkeypatch.setattr(first, "ORDERS", 400)
    monkeypatch.setattr(second, "session", lambda *_, **__: Shared(spark))

    trio.run(first.main, str(tmp_path / "store"))
    second.main(str(tmp_path / "store"), tmp_path)

    shown = click.unstyle(capsys.readouterr().out)
    stored = 400 + first.MESSAGES
    assert f"{stored} new messages in " in shown
    assert sum(int(orders) for orders in re.findall(r"(?:new|paid|shipped) +(\d+) +\d+\n", shown)) == stored
    assert sum(int(orders) for orders in re.findall(r"ms #+ (\d+)", shown)) <= stored
    assert (tmp_path / "orders.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert len(list((tmp_path / "orders").rglob("*.parquet"))) == 1


def test_a_batch_that_is_repeated_is_in_the_delta_table_once(
    spark: SparkSession, broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's checkpoint loses the note that its last batch was written, as if the driver had been killed before."""
    deltalake = pytest.importorskip("deltalake", reason="the recipe needs the package deltalake, which no extra brings")
    create_topic(broker.namesrv, "delta", 2)
    send(broker.namesrv, "delta", 40)
    monkeypatch.setattr("ledgermq.pipeline.session.session", lambda: Shared(spark))
    (recipe,) = programs("docs/pipeline.md", needs_deltalake=True)
    recipe = recipe.replace('"subscribe": "orders"', '"subscribe": "delta"')

    run_program(recipe, broker.namesrv, tmp_path)
    commits = tmp_path / "orders-checkpoint-of-delta" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    for name in (last.name, f".{last.name}.crc"):
        (commits / name).unlink(missing_ok=True)
    run_program(recipe, broker.namesrv, tmp_path)

    assert last.exists()
    table = deltalake.DeltaTable(f"{tmp_path}/orders-delta").to_pyarrow_table()
    assert sorted(table["body"].to_pylist()) == sorted(all_bodies(broker.namesrv, "delta"))
    assert table.num_rows == 40


def run_program(program: str, namesrv: str, directory: Path) -> None:
    """Run a program of a page with files in a directory, because where the JVM runs is not our choice."""
    placed = re.sub(r"\borders(?=/|-checkpoint|-delta)", f"{directory}/orders", program)
    exec(compile(placed.replace("127.0.0.1:9876", namesrv), "a page", "exec"), {})  # noqa: S102


def programs(page: str, *, needs_deltalake: bool = False) -> list[str]:
    """Return the programs in Python on a page that start a session of Spark, with or without the package deltalake."""
    text = (ROOT / page).read_text("utf-8")
    found = [
        each
        for each in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if "session()" in each and ("from deltalake" in each) == needs_deltalake
    ]
    assert found, page
    return found
