"""Gives Spark's workers a Python that imports PySpark from where it is installed.

Spark puts archives with the sources of PySpark and Py4J before all other entries of its workers' path. Modules in an archive
have no byte code, so each of the six or so kinds of workers compiles them once more when it starts, which takes two thirds of a
second of processor time. So Python is started through a short script that removes the archives from the path.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from .scripts import keep_script

_SCRIPT = """#!/bin/sh
# Starts Python without the archives of PySpark and Py4J on its path. Both are installed, with byte code.
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
  case "$entry" in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) kept="${kept:+$kept:}$entry" ;;
  esac
done
unset IFS
PYTHONPATH=$kept exec "{python}" "$@"
"""


def python_for_workers(environment: Mapping[str, str] | None = None) -> str:
    """Return the program that starts workers on this machine.

    It is this Python if PySpark would not be found without its archive, or if another Spark is to be used.
    """
    environment = os.environ if environment is None else environment
    spark, py4j = _installed("pyspark", environment), _installed("py4j", environment)
    home = environment.get("SPARK_HOME")
    if spark is None or py4j is None or (home and not _same(home, spark)):
        return sys.executable
    name = hashlib.sha256(sys.executable.encode()).hexdigest()[:12]
    return keep_script(f"python-{name}/python", _SCRIPT.replace("{python}", sys.executable)) or sys.executable


def _installed(package: str, environment: Mapping[str, str]) -> str | None:
    """Return the directory of a package that this Python finds without `PYTHONPATH`; None if there is none."""
    spec = find_spec(package)
    directory = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    if not os.path.isdir(directory):
        return None  # it is in an archive
    given = (entry for entry in environment.get("PYTHONPATH", "").split(":") if entry)
    return None if any(_same(os.path.dirname(directory), entry) for entry in given) else directory


def _same(first: str, second: str) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)
