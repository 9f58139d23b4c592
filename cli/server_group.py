"""Commands that run a server, and have commands about servers that run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from .reasons import SuggestingGroup


class ServerGroup(SuggestingGroup):
    """Imports the commands about running servers when they are wanted: running one does not need an admin client.

    Args:
        module: the module of `ledgermq.cli` with these commands.
        names: their names, which are also those of their functions.
    """

    def __init__(self, *args: Any, module: str, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module = module
        self._names = names

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        found: click.Command | None = None
        if cmd_name in self._names:
            found = getattr(import_module(f"ledgermq.cli.{self._module}"), cmd_name)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse options that only running a server reads: with `-n` before its name, a command would ask other servers."""
        found = super().resolve_command(ctx, args)
        for option in () if ctx.resilient_parsing else self.params:  # completion suggests names behind a wrong option, too
            if ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
                spellings = " or ".join(option.opts)
                raise click.UsageError(f"{args[0]} does not read an option before it: give {spellings} behind {args[0]}", ctx)
        return found
