"""The root of the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

from ledgermq.cli.main import COMMANDS, main
from ledgermq.native import path_text

Run = Callable[..., Result]

SOURCES = Path(__file__).parents[2] / "src"


def test_the_root_costs_nothing_but_click() -> None:
    """Version, help and completion do not wait for what only servers and clients need."""
    probe = "import sys, ledgermq.cli.main; print(*{'trio', 'logging', 'attrs', 'orjson', 'asyncio'} & set(sys.modules))"

    found = subprocess.run([sys.executable, "-c", probe], env={"PYTHONPATH": str(SOURCES)}, capture_output=True, check=True)

    assert found.stdout.strip() == b""


def test_a_server_is_imported_without_what_it_never_uses() -> None:
    """Half of the standard library depends on asyncio."""
    probe = """if True:
        import sys
        from ledgermq.cli.main import main

        command = main.get_command(None, "broker")
        print(command.name, *{"rich", "asyncio", "structlog"} & set(sys.modules))
    """

    found = subprocess.run([sys.executable, "-c", probe], env={"PYTHONPATH": str(SOURCES)}, capture_output=True, check=True)

    assert found.stdout.decode().splitlines() == ["broker"]


def test_the_version_is_printed(runner: Run) -> None:
    """One line, exit status 0."""
    assert runner("--version").stdout.startswith("ledgermq ")


@pytest.mark.parametrize("flags", [("--version", "-v"), ("-v", "--version")])
def test_the_version_with_v_says_which_path_runs(runner: Run, flags: tuple[str, str]) -> None:
    """On a second line: compiled, or Python."""
    assert runner(*flags).stdout.splitlines()[1:] == [f"sends and deriving: {path_text()}"]


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(runner: Run, flag: str) -> None:
    """Each with a summary, without being imported."""
    text = runner(flag).stdout

    for name, command in COMMANDS.items():
        assert name in text
        assert command.summary.split()[0] in text


def paths_of(group: click.Group, *before: str) -> list[tuple[str, ...]]:
    context = click.Context(group)
    paths: list[tuple[str, ...]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        paths.append((*before, name))
        if isinstance(command, click.Group):
            paths += paths_of(command, *before, name)
    return paths


@pytest.mark.parametrize("path", paths_of(main), ids=" ".join)
def test_every_command_explains_itself(runner: Run, path: tuple[str, ...]) -> None:
    """Short help flag, a sentence, and JSON wherever something of the cluster is printed."""
    text = runner(*path, "-h").stdout

    assert "Usage: " in text
    assert "\\b" not in text, "what keeps lines apart is not to be seen"
    leaf = path[-1] in ("list", "show", "status", "route", "reset", "by-key", "by-offset", "find", "send", "produce")
    if leaf:
        assert "--json" in text
        assert ("--controller" if path[0] == "controller" else "--namesrv") in text


def test_an_unknown_command_is_a_mistake_of_usage(runner: Run) -> None:
    """Exit status 2, and the word that was not understood."""
    assert "nonsense" in runner("nonsense", status=2).stderr


@pytest.mark.parametrize(
    ("words", "incomplete", "found"), [([], "to", {"top", "topic"}), (["topic"], "s", {"show"}), ([], "--v", {"--version"})]
)
def test_words_are_completed(words: list[str], incomplete: str, found: set[str]) -> None:
    """Commands of both levels, and flags."""
    complete = ShellComplete(main, {}, "ledgermq", "_LEDGERMQ_COMPLETE")

    assert {item.value for item in complete.get_completions(words, incomplete)} == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_are_printed(runner: Run, shell: str) -> None:
    """They name our command."""
    assert "_LEDGERMQ_COMPLETE" in runner("completion", shell).stdout


@pytest.mark.parametrize("name", ["topic", "group", "message", "cluster", "store"])
def test_the_summary_of_a_group_names_all_its_commands(name: str) -> None:
    """The overview is written by hand, so that listing it imports nothing."""
    group = main.get_command(click.Context(main), name)
    assert isinstance(group, click.Group)

    named = COMMANDS[name].summary.rstrip(".").rpartition(": ")[2].split(", ")

    assert sorted(named) == sorted(group.commands)
