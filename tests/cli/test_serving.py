"""Servers as processes."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys

import attrs
import click
import pytest
import trio

from ledgermq.broker.errors import BadConfig
from ledgermq.cli.serving import serve

from .processes import Run


@pytest.mark.parametrize("command", [("namesrv", "--host", "127.0.0.1", "--port"), ("up", "--port")])
def test_a_port_that_is_taken_is_named_with_the_cure(runner: Run, command: tuple[str, ...]) -> None:
    """Exit status 1, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        error = runner(*command, port, status=1).stderr

    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert f"choose another port with {'--port or --broker-port' if command[0] == 'up' else '--port'}." in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("broker", "--listenPort", "many"), "listenPort must be a whole number (got 'many')"),
        (("broker", "--broker-role", "KING"), "brokerRole must be one of"),
        (("broker", "--brokerIP1", "10.0.0.1:10911"), "brokerIP1 must be an address or a name of this machine, without a port"),
        (("broker", "--brokerIP1", "my host"), "brokerIP1 must be an address"),
        (("broker", "--storePathRootDir", ""), "storePathRootDir must be a directory (got '')"),
        (("broker", "-c", "/nowhere/broker.conf"), "does not exist"),
        (("namesrv", "--port", "70000"), "70000"),
        (("up", "--mode", "ha", "--nodes", "1"), "a master and at least one slave"),
        (("up", "--masters", "2"), "every node is a master"),
    ],
)
def test_a_wrong_configuration_is_a_mistake_of_usage(runner: Run, arguments: tuple[str, ...], words: str) -> None:
    """Exit status 2, the key, what was given and what is allowed."""
    assert words in runner(*arguments, status=2).stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topc", "list"), "No such command 'topc'. Did you mean topic or top?"),
        (("topic", "crate", "t"), "No such command 'crate'. Did you mean create or route?"),
        (("group", "shwo", "g"), "No such command 'shwo'. Did you mean show?"),
        (("xyzzy",), "No such command 'xyzzy'"),
        (("topic", "create", "t", "--queue", "4"), "--queues"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(runner: Run, arguments: tuple[str, ...], words: str) -> None:
    """So does an option."""
    assert words in runner(*arguments, status=2).stderr


@attrs.frozen
class _Opened:
    """A server that cannot be opened."""

    failure: BaseException

    async def __aenter__(self) -> None:
        raise self.failure

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError


def failure_of(error: BaseException) -> str:
    with pytest.raises(click.ClickException) as failed:
        serve(_Opened(error), str, BadConfig)
    return failed.value.message


def test_a_failure_of_several_tasks_is_printed_in_one_line() -> None:
    """Whether it comes alone or in groups of trio's; with the cure if there is one."""
    denied = PermissionError(errno.EACCES, "Permission denied", "/store/commitlog")
    for error in (denied, ExceptionGroup("", [ExceptionGroup("", [denied]), denied])):
        assert failure_of(error).startswith("/store/commitlog: Permission denied\nChoose another directory for the store, or")
    assert failure_of(OSError(errno.EACCES, "cannot listen on *:80: Permission denied")).endswith("choose another port.")
    assert "ulimit -n" in failure_of(OSError(errno.EMFILE, "Too many open files"))
    assert failure_of(BadConfig("brokerId", "x", "a whole number")) == "brokerId must be a whole number (got 'x')"


def test_a_signal_during_the_start_ends_it() -> None:
    """A start may wait for something that never comes, such as the election of a master."""

    class Waiting:
        async def __aenter__(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError

    serve(Waiting(), str)


def test_a_failure_that_nobody_expects_keeps_its_traceback() -> None:
    """Even if an expected one comes with it."""
    with pytest.raises(ExceptionGroup):
        serve(_Opened(ExceptionGroup("", [OSError(errno.EACCES, "no"), KeyError("a mistake of ours")])), str)


def test_a_signal_that_ends_the_process_leaves_a_stack_on_standard_error() -> None:
    """Such as SIGBUS, when a tmpfs is full at a write into a mapped file: nothing else would say where it ended."""
    server = """
import contextlib, os, signal
from ledgermq.cli.serving import serve

@contextlib.asynccontextmanager
async def opened():
    os.kill(os.getpid(), signal.SIGBUS)
    yield None

serve(opened(), str)
"""
    ended = subprocess.run([sys.executable, "-c", server], capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == -signal.SIGBUS
    assert "Bus error" in ended.stderr
    assert 'File "<string>", line 7 in opened' in ended.stderr
