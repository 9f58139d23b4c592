"""Write `docs/reference/commands.md`: every command of the command line with its help, from the definitions themselves.

`python docs/commands.py` writes the page; with `--check` it only compares.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ledgermq.cli.main import main as root

PAGE = Path(__file__).with_name("reference") / "commands.md"

_INTRODUCTION = """# Every command

<!-- Made by `python docs/commands.py` from the code; do not edit. -->

`ledgermq COMMAND --help` says the same on a terminal. An option that several commands have means the same in each:
`--namesrv` (or `$LEDGERMQ_NAMESRV`) says where the name servers are, `--json` prints JSON, `--tls` and `--tls-config`
encrypt. The exit status is 0 for success, 1 if something failed or is missing, and 2 for wrong usage.
[`check`](#ledgermq-check) has those of a Nagios plugin instead, and [`pipeline`](../pipeline.md#jobs) has more. Errors are text
on standard error, with `--json` too.
"""


def _commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Context, click.Command]]:
    if not isinstance(command, click.Group):
        yield context, command
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _commands(inner, click.Context(inner, info_name=name, parent=context))


def _help(command: click.Command) -> str:
    """The help of a command as Markdown: blocks that click must not rewrap are code."""
    paragraphs = inspect.cleandoc(command.help or "").replace("\f", "").split("\n\n")
    return "\n\n".join(
        "```text\n" + inspect.cleandoc(text.removeprefix("\b\n")) + "\n```" if text.startswith(("\b", "    ")) else text
        for text in paragraphs
    )


def _rows(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:  # without --help, which all have
        record = parameter.get_help_record(context)
        if record is not None and (isinstance(parameter, click.Option) or record[1]):
            name, text = (re.sub(r"([|*])", r"\\\1", part.replace("\n", " ")) for part in record)
            yield f"| <code>{name}</code> | {text} |\n"


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for context, command in _commands(root, click.Context(root, info_name="ledgermq")):
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        parts.append(f"\n## {context.command_path}\n\n```text\n{usage}\n```\n\n{_help(command)}\n")
        if rows := list(_rows(command, context)):
            parts += ["\n| option | meaning |\n|---|---|\n", *rows]
    return "".join(parts)


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what the commands say: run python {__file__}")


if __name__ == "__main__":
    main()
