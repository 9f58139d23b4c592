"""The README's guides, done one after the other as a newcomer does them, print what the README says they print."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from ledgermq.broker.config import read_broker_conf

from .snippets import NAMESRV, ROOT, SECONDS_MAX, check_console, environment, shape, steps_of

README = (ROOT / "README.md").read_text("utf-8")


def blocks(guide: str, language: str) -> list[str]:
    """The code blocks of one language in the guide "Five minutes: from ..."."""
    section = README.partition(f"## Five minutes: from {guide}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def namesrv(home: Path) -> Generator[str]:
    """The cluster of the first guide, on free ports; what it prints is compared."""
    ((command, expected),) = steps_of(blocks("the shell", "console")[0])
    assert command == "ledgermq up"
    arguments = [sys.executable, "-m", "ledgermq.cli.main", "up", "--port", "0", "--broker-port", "0"]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(home),
    ) as process:
        assert process.stdout is not None
        try:
            printed = ""
            for line in process.stdout:
                printed += line
                if "Ctrl-C stops" in line:
                    break
            assert shape(printed) == shape(expected)
            address = re.search(r"name server +(\S+)", printed)
            assert address is not None
            yield address[1]
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")


def test_the_shell_guide_prints_what_it_says(namesrv: str, home: Path) -> None:
    """Every command of it, one after the other."""
    assert check_console(blocks("the shell", "console")[1], home, namesrv) >= 7


@pytest.mark.parametrize("guide", ["Python", "asyncio"])
def test_the_python_guides_print_what_they_say(guide: str, namesrv: str, home: Path) -> None:
    """And nothing on standard error."""
    program, expected = blocks(guide, "python")[0], blocks(guide, "text")[0]
    assert NAMESRV in program

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(NAMESRV, namesrv)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(home),
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected


def test_the_sample_of_a_configuration_can_be_used_as_it_is() -> None:
    """Every key in it is one that a broker knows, those in comments too."""
    text = (ROOT / "examples" / "broker.conf").read_text("utf-8")

    assert read_broker_conf(text).others == {}
    assert read_broker_conf(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)).others == {}
    assert "examples/broker.conf" in README


def test_the_readme_works_where_there_is_no_repository_around_it() -> None:
    """On a package index a link relative to the repository leads nowhere; a file that is named exists."""
    targets = re.findall(r"\]\(([^)]*)\)", README)
    assert [target for target in targets if not target.startswith("https://")] == []
    named = set(re.findall(r"`((?:docs|examples)/[\w./]+|[A-Z]+\.md)`", README))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_package_says_what_it_is() -> None:
    """Licence, classifiers, and the files that they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / project["license-files"][0]).read_text("utf-8")
    assert "Typing :: Typed" in project["classifiers"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    manifest = (ROOT / "MANIFEST.in").read_text("utf-8")
    assert all(f"graft {folder}" in manifest for folder in ("tests", "docs", "examples"))
