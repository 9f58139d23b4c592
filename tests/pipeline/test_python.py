"""The Python that Spark's workers run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledgermq.pipeline import register
from ledgermq.pipeline.python import python_for_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOW = "import os, sys; print(os.environ['PYTHONPATH'], sys.prefix, *sys.argv[1:], sep='|')"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


def test_archives_of_spark_are_removed_from_the_path_of_workers() -> None:
    """All other entries, the environment of this Python and all arguments stay as they are."""
    pytest.importorskip("pyspark")
    program = python_for_workers({})
    path = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/spark/jars/core.jar:/a b/*"

    said = subprocess.run(
        [program, "-c", SHOW, "a b", "*"], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout

    assert program != sys.executable
    assert said == f"/spark/jars/core.jar:/a b/*|{sys.prefix}|a b|*\n"
    assert python_for_workers({}) == program


def test_python_itself_is_started_if_the_archives_may_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is so if PySpark is not installed, if the user's path leads to it, and for another Spark."""
    pyspark = pytest.importorskip("pyspark")
    package = Path(pyspark.__file__).parent

    assert python_for_workers({"SPARK_HOME": "/opt/spark"}) == sys.executable
    assert python_for_workers({"PYTHONPATH": f"/a:{package.parent}"}) == sys.executable
    assert python_for_workers({"SPARK_HOME": str(package), "PYTHONPATH": "/a"}) != sys.executable
    monkeypatch.setattr("ledgermq.pipeline.python.find_spec", lambda _: None)
    assert python_for_workers({}) == sys.executable


def test_python_itself_is_started_if_no_script_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the cache directory nor in the temporary one."""
    monkeypatch.setattr("ledgermq.pipeline.scripts._write", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))

    assert python_for_workers({}) == sys.executable


@pytest.mark.slow
def test_no_worker_imports_pyspark_from_its_archive(spark: SparkSession) -> None:
    """Neither those that find a source and plan a read, nor those of a source that was registered or of a task."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    register(spark)

    pythons = [jvm.System.getenv("PYSPARK_DRIVER_PYTHON"), context.pythonExec]
    imported = [
        subprocess.run(
            [python, "-c", "import pyspark; print(pyspark.__file__)"],
            env={"PYTHONPATH": jvm.org.apache.spark.api.python.PythonUtils.sparkPythonPath()},
            capture_output=True, text=True, check=True,
        ).stdout
        for python in pythons
    ]  # fmt: skip

    assert not [path for path in imported if ".zip" in path]
