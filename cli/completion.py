"""`ledgermq completion`: the script that a shell evaluates to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .main import main


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    For bash: eval "$(ledgermq completion bash)" in ~/.bashrc; for fish: ledgermq completion fish | source.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(main, {}, "ledgermq", "_LEDGERMQ_COMPLETE").source())
