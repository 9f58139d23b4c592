"""Running servers from the command line: signals, limits of the process, and the line that announces readiness."""

from __future__ import annotations

import errno
import faulthandler
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar, cast

import click
import trio

from ..remoting.errors import BadProperties
from ..remoting.java_properties import read_properties
from ..world.garbage import GarbageBound, collect_rarely
from ..world.memory import bound_freed_memory
from .reasons import output_lost, reason_of
from .systemd import ServiceManager

SWITCH_SECONDS = 0.0001
"""The thread switch interval: how long a worker may wait for the interpreter before it starts a sync or reports its end.
Python's default is longer than most syncs."""

Server = TypeVar("Server")


def text_of(file: Path) -> str:
    """The text of a configuration file in UTF-8, independent of the locale.

    Raises:
        click.UsageError: the file is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{file} is not text in UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
        ) from error


def properties_of(file: Path) -> dict[str, str]:
    """The entries of a configuration file.

    Raises:
        click.UsageError: the file is not UTF-8, or not in the properties format.
    """
    try:
        return read_properties(text_of(file))
    except BadProperties as error:
        raise click.UsageError(f"{file}: {error}") from error


def serve(
    opened: AbstractAsyncContextManager[Server],
    announce: Callable[[Server], str],
    *expected: type[Exception],
    port_options: str = "",
    on_hangup: Callable[[Server], None] | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, then stop it in order; a second signal, or one during the start, stops it at once.

    Args:
        opened: the context manager that opens the server.
        announce: makes the text that is printed when the server is ready.
        expected: errors that are printed as one line, like OSErrors.
        port_options: the options that choose another port, for the error text.
        on_hangup: called on SIGHUP; without it SIGHUP, which means that the terminal was closed, stops the server too.

    Raises:
        click.ClickException: the server could not start or continue because of an `expected` error or an OSError.
    """
    reasons: tuple[type[Exception], ...] = (click.ClickException, OSError, *expected)
    if not faulthandler.is_enabled():
        faulthandler.enable()  # a full tmpfs ends us with SIGBUS at a write into a mapped file, otherwise without a line
    _take_all_descriptors()
    bound_freed_memory()
    try:
        trio.run(_serve, opened, announce, on_hangup)
    except reasons as error:
        raise _explained(error, port_options) from error
    except BaseExceptionGroup as group:
        # Not except*, which would wrap the exception raised here in a group again, and click would print a traceback.
        if group.split(reasons)[1] is not None:
            raise
        raise _explained(first_of(group), port_options) from group


def _take_all_descriptors() -> None:
    """Raise this process's limit of descriptors to the hard limit, because every queue and every connection needs one."""
    import resource  # noqa: PLC0415 - other commands run on Windows too, which lacks this module

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def first_of(error: BaseException) -> BaseException:
    """The first error that is not a group in nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _explained(error: BaseException, port_options: str) -> click.ClickException:
    if not isinstance(error, OSError):
        return click.ClickException(str(error))
    hint = _hint(error, port_options)
    return click.ClickException(reason_of(error) + (f"\n{hint}" if hint else ""))


def _hint(error: OSError, port_options: str) -> str | None:
    with_option = f" with {port_options}" if port_options else ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Each queue and each connection takes one: raise the limit (ulimit -n)."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, or choose another directory for the store."
    if error.errno == errno.EADDRINUSE:
        return f"Another server runs there: stop it, or choose another port{with_option}."
    if error.errno in (errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN):
        return "Choose an address that this machine has."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        if error.filename is None:
            return f"Low ports are the administrator's: choose another port{with_option}."
        return "Choose another directory for the store, or give this user the right to write there."
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENOENT) and error.filename is not None:
        return "The store needs a directory there: choose another one, or move away the file that is in its place."
    return None


async def _serve(
    opened: AbstractAsyncContextManager[Server], announce: Callable[[Server], str], on_hangup: Callable[[Server], None] | None
) -> None:
    stop, manager = trio.Event(), ServiceManager.of()
    taken = [signal.SIGTERM, signal.SIGINT]
    if on_hangup is not None or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        taken.append(signal.SIGHUP)
    with trio.open_signal_receiver(*taken) as signals:
        async with trio.open_nursery() as nursery:
            servers: list[Server] = []

            def hangup() -> bool:
                if on_hangup is None:
                    return False
                for server in servers:  # empty during the start, when the file has just been read
                    on_hangup(server)
                return True

            def serving() -> bool:
                return bool(servers)

            nursery.start_soon(_stop_on_signal, signals, stop, nursery.cancel_scope, hangup, serving)
            async with opened as server:
                collect_rarely()
                sys.setswitchinterval(SWITCH_SECONDS)
                servers.append(server)
                _print(announce(server))
                manager.ready()
                nursery.start_soon(manager.keep_watched)
                nursery.start_soon(GarbageBound().keep)
                await stop.wait()
                manager.stopping()
                servers.clear()
            nursery.cancel_scope.cancel()


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        raise click.ClickException(output_lost(error)) from error


async def _stop_on_signal(
    signals: AsyncIterator[int],
    stop: trio.Event,
    scope: trio.CancelScope,
    hangup: Callable[[], bool],
    serving: Callable[[], bool],
) -> None:
    async for number in signals:
        if number == signal.SIGHUP and hangup():
            continue
        if stop.is_set() or not serving():  # do not wait for an orderly stop, or for a start that may wait for other nodes
            scope.cancel()
        stop.set()
