"""The README's guides, done one after the other as a newcomer does them, print what the README says they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from ledgermq.broker.config import read_broker_conf

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
NAMESRV_IN_GUIDES = "127.0.0.1:9876"
SECONDS_MAX = 120

_SHAPES = (
    (r" --namesrv \S+", ""),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", "TIME"),
    (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\d+(\.\d+)?", "N"),
    (r" +", " "),
)
"""What may differ from run to run, and what stands for it."""


def shape(text: str) -> list[str]:
    """The lines of an output without what may differ: ids, times, addresses, numbers and widths of columns."""
    for pattern, replacement in _SHAPES:
        text = re.sub(pattern, replacement, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def blocks(guide: str, language: str) -> list[str]:
    """The code blocks of one language in the guide "Five minutes: from ..."."""
    section = README.partition(f"## Five minutes: from {guide}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def steps_of(console: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown below it."""
    parts = re.split(r"^\$ (.*)\n", console, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def environment(home: Path, namesrv: str = "") -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHON": sys.executable,
        "HOME": str(home),
        "LEDGERMQ_NAMESRV": namesrv,
    }


def run_in_shell(command: str, home: Path, namesrv: str) -> str:
    """What a command prints on a terminal."""
    done = subprocess.run(
        ["bash", "-c", f'ledgermq() {{ "$PYTHON" -m ledgermq.cli.main "$@"; }}; {command}'],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(home, namesrv),
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


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
    steps = steps_of(blocks("the shell", "console")[1])

    for command, expected in steps:
        assert shape(run_in_shell(command, home, namesrv)) == shape(expected), command
    assert len(steps) >= 7


@pytest.mark.parametrize("guide", ["Python", "asyncio"])
def test_the_python_guides_print_what_they_say(guide: str, namesrv: str, home: Path) -> None:
    """And nothing on standard error."""
    program, expected = blocks(guide, "python")[0], blocks(guide, "text")[0]
    assert NAMESRV_IN_GUIDES in program

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(NAMESRV_IN_GUIDES, namesrv)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(home),
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected


def test_the_guide_to_tests_on_virtual_time_is_right(home: Path) -> None:
    """A send goes on within a second of virtual time after the kill of a master."""
    section = README.partition("## In your tests\n")[2].partition("\n## ")[0]
    program = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    assert "open_virtual" in program

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(home),
        check=False,
    )

    assert done.returncode == 0, done.stderr


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
