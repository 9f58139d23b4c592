"""Error texts for the command line. Every command imports this module, so it imports nothing that is slow."""

from __future__ import annotations

import os
import sys

import click


class SuggestingGroup(click.Group):
    """A group of commands that suggests the right name for a misspelt command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # noqa: PLC0415 - needed only after a mistake

            near = get_close_matches(args[0], self.list_commands(ctx))
            if not near:
                raise
            # Newer versions of click have suggestions of their own, for some groups.
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?", ctx) from error


def reason_of(error: OSError) -> str:
    """The system's text of an error, with the file but without the error number."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if isinstance(error.filename, str) and error.filename else reason


def output_lost(error: OSError) -> str:
    """The text for output that cannot be written; redirects standard output, so that Python does not flush it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return f"standard output: {reason_of(error)}; not all was printed"
