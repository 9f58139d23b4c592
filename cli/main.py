"""The root of the command `ledgermq`; each command is imported only when it is run."""

from __future__ import annotations

import errno
import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .reasons import SuggestingGroup, output_lost, reason_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class LazyCommand(NamedTuple):
    """The module of a command, and its summary in the overview."""

    module: str
    summary: str


COMMANDS = {
    "up": LazyCommand("up", "Run a whole cluster on this machine."),
    "namesrv": LazyCommand("namesrv", "Run a name server."),
    "broker": LazyCommand("broker", "Run a broker; config get|set and drain of one that runs."),
    "controller": LazyCommand(
        "controller", "Run a controller, which elects masters; status, elect and forget of one that runs."
    ),
    "send": LazyCommand("send", "Send messages, from arguments or line by line."),
    "consume": LazyCommand("consume", "Print messages."),
    "topic": LazyCommand("topic", "Topics: list, create, update, delete, show, route."),
    "group": LazyCommand("group", "Consumer groups: list, show, connections, reset, clone, redrive, create, update, delete."),
    "user": LazyCommand("user", "Users of brokers with access control: create, update, delete, list, show."),
    "acl": LazyCommand("acl", "What users may do: set, delete, show, list."),
    "message": LazyCommand("message", "Single messages: show, find, by-key, by-offset."),
    "cluster": LazyCommand("cluster", "Brokers: list, status."),
    "check": LazyCommand("check", "Check a cluster in one line, with the status of a Nagios plugin."),
    "top": LazyCommand("top", "Show rates, roles, replication and lags of a cluster, again and again."),
    "dashboard": LazyCommand("dashboard", "Serve web pages about a cluster: brokers, topics, groups, messages, dead letters."),
    "dledger": LazyCommand("dledger", "DLedger groups: status, transfer, add, learner, remove."),
    "store": LazyCommand(
        "store",
        "A store's files, without a broker: dump, verify, backup, verify-backup, restore, cut, reset-peers, to-classic.",
    ),
    "pipeline": LazyCommand("pipeline", "Jobs on Spark: archive, replay, stream, stats, audit, dlq, compact."),
    "bench": LazyCommand("bench", "Measure sending and receiving."),
    "completion": LazyCommand("completion", "Print the completion script of a shell."),
}


class LazyGroup(SuggestingGroup):
    """A group that imports a command when it is run, not when it is listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command: click.Command = getattr(_import_quickly(f"ledgermq.cli.{lazy.module}"), "command")  # noqa: B009
        return command

    def invoke(self, ctx: click.Context) -> Any:
        _open_closed_streams()
        try:
            return super().invoke(ctx)
        except OSError as error:
            # click handles a broken pipe; other errors, of files and disks, are explained to the user.
            if error.errno == errno.EPIPE:
                raise
            raise click.ClickException(_why_nothing_can_be_printed() or reason_of(error)) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only completion pays for it

        # click would import every command for its summary.
        options = [item for item in super(click.Group, self).shell_complete(ctx, incomplete) if item.value.startswith("-")]
        names = [CompletionItem(name, help=lazy.summary) for name, lazy in COMMANDS.items() if name.startswith(incomplete)]
        return names + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in COMMANDS.items()])


def _open_closed_streams() -> None:
    """Open closed standard streams on the null device, before a socket gets their descriptor number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


def _why_nothing_can_be_printed() -> str | None:
    try:
        sys.stdout.flush()
    except OSError as error:
        return output_lost(error)
    return None


def _import_quickly(module: str) -> ModuleType:
    """Import a module without garbage collection, which would find nothing; this saves a third of the time."""
    if module in sys.modules or not gc.isenabled():
        return import_module(module)
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()  # otherwise the next collection would traverse all these objects
        gc.enable()


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from ..world.version import own_version  # noqa: PLC0415 - only --version pays for it

        click.echo(f"ledgermq {own_version()}")
        if context.params.get("verbose"):
            from ..native import path_text  # noqa: PLC0415 - only --version pays for it

            click.echo(f"sends and deriving: {path_text()}")
        context.exit()


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.option("--version", is_flag=True, expose_value=False, callback=_print_version, help="Show the version.")
@click.option("-v", "verbose", is_flag=True, is_eager=True, help="With --version: also whether the compiled path runs.")
def main(**_: Any) -> None:
    """Run and use LedgerMQ, a message broker that speaks RocketMQ's protocol."""


if __name__ == "__main__":
    main(prog_name="ledgermq")
