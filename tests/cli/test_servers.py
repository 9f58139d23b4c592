"""Servers as processes."""

from __future__ import annotations

import errno
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import attrs
import click
import pytest
from click.testing import Result

from ledgermq.broker.errors import BadConfig
from ledgermq.cli.serving import serve

Run = Callable[..., Result]


class Ledgermq(Protocol):
    process: subprocess.Popen[str]
    output: str

    def wait_for(self, pattern: str) -> re.Match[str]: ...
    def stop(self, number: int = signal.SIGTERM) -> int: ...


Start = Callable[..., Ledgermq]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_name_server_says_that_it_is_ready_and_stops_in_order(start: Start, number: int) -> None:
    """With exit status 0, at once."""
    namesrv = start("namesrv", "--host", "127.0.0.1", "--port", "0")
    namesrv.wait_for("boot success, listening on 127.0.0.1:[1-9]")

    started = time.monotonic()
    assert namesrv.stop(number) == 0, namesrv.output
    assert time.monotonic() - started < 10  # in truth a tenth of a second; the machine may be busy


def test_a_broker_registers_serves_and_leaves_the_routes(start: Start, runner: Run, tmp_path: Path) -> None:
    """From a file of RocketMQ's, with flags of both spellings on top."""
    namesrv = start("namesrv", "--host", "127.0.0.1", "--port", "0")
    address = "127.0.0.1:" + namesrv.wait_for(r"127.0.0.1:(\d+)")[1]
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerName = from-file\nlistenPort=1\nstorePathRootDir={tmp_path}/store\n")
    broker = start(
        "broker", "-c", str(file), "-n", address, "--listenPort", "0", "--broker-name", "b7", "--brokerIP1", "127.0.0.1"
    )
    broker.wait_for(r"The broker\[b7, 127.0.0.1:\d+\] boot success")

    listed = json.loads(runner("cluster", "list", "--json", namesrv=address).stdout)
    assert [row["broker"] for row in listed] == ["b7"]
    runner("send", "hello", "first", namesrv=address)

    assert broker.stop() == 0, broker.output
    assert json.loads(runner("cluster", "list", "--json", namesrv=address).stdout) == []


def test_messages_outlive_the_cluster_that_kept_them(start: Start, runner: Run, tmp_path: Path) -> None:
    """`up --store` finds again what an earlier one has stored."""
    arguments = ("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    first = start(*arguments)
    runner("send", "hello", "kept", namesrv=first.wait_for(r"name server +(\S+:\d+)\n")[1])
    assert first.stop(signal.SIGINT) == 0, first.output

    second = start(*arguments)
    address = second.wait_for(r"name server +(\S+:\d+)\n")[1]

    assert runner("consume", "hello", "--from-beginning", namesrv=address).stdout == "kept\n"


def test_a_cluster_clears_away_what_a_killed_one_has_left(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one that runs is left alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ("up", "--port", "0", "--broker-port", "0")
    killed, running = start(*arguments), start(*arguments)
    killed.wait_for("Ctrl-C stops")
    running.wait_for("Ctrl-C stops")
    assert len(list(tmp_path.glob("ledgermq-up-*"))) == 2
    killed.stop(signal.SIGKILL)

    third = start(*arguments)
    third.wait_for("Ctrl-C stops")

    assert len(list(tmp_path.glob("ledgermq-up-*"))) == 2
    assert (running.stop(), third.stop()) == (0, 0)
    assert list(tmp_path.glob("ledgermq-up-*")) == []


def test_several_masters_have_slaves_each(start: Start, runner: Run) -> None:
    """`up --mode ha --masters 2` is two broker names of a master and a slave."""
    up = start("up", "--mode", "ha", "--masters", "2", "--port", "0", "--broker-port", "0")
    address = up.wait_for(r"name server +(\S+:\d+)\n")[1]

    listed = json.loads(runner("cluster", "list", "--json", namesrv=address).stdout)

    assert [(row["broker"], row["role"]) for row in listed] == [
        ("broker-a", "master"), ("broker-a", "slave"), ("broker-b", "master"), ("broker-b", "slave"),
    ]  # fmt: skip


@pytest.mark.parametrize("command", [("namesrv", "--host", "127.0.0.1", "--port"), ("up", "--port")])
def test_a_port_that_is_taken_is_named_with_the_cure(runner: Run, command: tuple[str, ...]) -> None:
    """Exit status 1, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        error = runner(*command, port, status=1).stderr

    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert f"choose another port with {'--port or --broker-port' if command[0] == 'up' else '--port'}." in error


def test_a_store_in_use_is_named(start: Start, tmp_path: Path) -> None:
    """Two brokers on one store would destroy it; the second does not start."""
    arguments = ("broker", "--listenPort", "0", "--storePathRootDir", str(tmp_path / "store"))
    start(*arguments).wait_for("boot success")

    second = start(*arguments)
    assert second.process.wait(30) == 1
    assert second.process.stdout is not None
    assert f"Error: the store {tmp_path}/store is in use" in second.process.stdout.read()


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


def test_the_configuration_is_shown_with_rocketmq_s_keys(runner: Run, tmp_path: Path) -> None:
    """A flag wins over the file; what we do not know is shown too."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b1\nlistenPort=1\nsomethingElse=x\n")

    shown = runner("broker", "-c", str(file), "--listen-port", "2", "-p").stdout

    assert {"brokerName=b1", "listenPort=2", "somethingElse=x"} <= set(shown.splitlines())
    assert shown.startswith("brokerClusterName="), "a warning about what we do not know stood in between"
    assert "listenPort=9876" in runner("namesrv", "-p").stdout


def test_a_configuration_is_read_as_utf_8(runner: Run, tmp_path: Path) -> None:
    """With or without the mark that editors of Windows put first; another encoding is named with its place."""
    file = tmp_path / "server.conf"
    file.write_bytes(b"\xef\xbb\xbfbrokerName=b\n")
    assert "brokerName=b\n" in runner("broker", "-c", str(file), "-p").stdout

    file.write_bytes("brokerName=bücher\n".encode("latin-1"))
    for server in ("broker", "namesrv"):
        assert "not text in UTF-8: byte 0xfc at 12" in runner(server, "-c", str(file), "-p", status=2).stderr.replace("\n", " ")


def test_a_broker_reloads_its_file_when_its_terminal_is_closed(start: Start, runner: Run, tmp_path: Path) -> None:
    """SIGHUP stops no server: it takes over what may change, names what needs a restart, and survives a file that is wrong."""
    file = tmp_path / "broker.conf"
    lines = f"listenPort=0\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nstorePathRootDir={tmp_path}/store\n"
    file.write_text(lines)
    namesrv = start("namesrv", "--host", "127.0.0.1", "--port", "0")
    address = "127.0.0.1:" + namesrv.wait_for(r"127.0.0.1:(\d+)")[1]
    broker = start("broker", "-c", str(file), "-n", address)
    broker.wait_for("boot success")

    file.write_text(f"{lines}maxMessageSize=5000\nbrokerClusterName=other\n")
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for(r'"entries":{"maxMessageSize":"5000"},"event":"broker_config_changed"')
    broker.wait_for(r'"keys":\["brokerClusterName"\],"event":"broker_config_needs_restart"')
    assert "maxMessageSize" in runner("send", "t", token_hex(5000), status=1, namesrv=address).stderr
    file.write_text("maxMessageSize=large\n")
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for('maxMessageSize must be a whole number.*"event":"broker_config_not_reloaded"')
    namesrv.process.send_signal(signal.SIGHUP)
    namesrv.wait_for("hangup_taken")

    assert broker.stop() == 0, broker.output
    assert namesrv.stop() == 0


def test_a_broker_that_nobody_finds_says_so(start: Start, tmp_path: Path) -> None:
    """Without a name server no client comes, and a slave without either address follows nobody."""
    broker = start(
        "broker", "--namesrvAddr", "", "--listenPort", "0", "--storePathRootDir", str(tmp_path / "a"), "--log-format", "text"
    )
    broker.wait_for("boot success")
    slave = start(
        "broker",
        "--namesrvAddr",
        "",
        "--brokerRole",
        "SLAVE",
        "--brokerId",
        "1",
        "--listenPort",
        "0",
        "--storePathRootDir",
        str(tmp_path / "b"),
    )
    slave.wait_for("boot success")

    assert "warning  name_server_not_set" in broker.output
    assert "master_address_not_set" not in broker.output
    assert "name_server_not_set" in slave.output
    assert "master_address_not_set" in slave.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topc", "list"), "No such command 'topc'. Did you mean topic?"),
        (("topic", "crate", "t"), "No such command 'crate'. Did you mean create or route?"),
        (("group", "shwo", "g"), "No such command 'shwo'. Did you mean show?"),
        (("xyzzy",), "No such command 'xyzzy'"),
        (("topic", "create", "t", "--queue", "4"), "--queues"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(runner: Run, arguments: tuple[str, ...], words: str) -> None:
    """So does an option."""
    assert words in runner(*arguments, status=2).stderr


def test_a_terminal_that_is_closed_stops_a_cluster_in_order(start: Start, tmp_path: Path) -> None:
    """SIGHUP leaves a store that was closed, as Ctrl-C does."""
    up = start("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    up.wait_for("Ctrl-C stops")

    assert up.stop(signal.SIGHUP) == 0, up.output
    assert not (tmp_path / "store" / "broker-a" / "abort").exists()


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


def test_a_failure_of_several_tasks_is_told_in_a_line() -> None:
    """Whether it comes alone or in groups of trio's; with the cure if there is one."""
    denied = PermissionError(errno.EACCES, "Permission denied", "/store/commitlog")
    for error in (denied, ExceptionGroup("", [ExceptionGroup("", [denied]), denied])):
        assert failure_of(error).startswith("/store/commitlog: Permission denied\nChoose another directory for the store, or")
    assert failure_of(OSError(errno.EACCES, "cannot listen on *:80: Permission denied")).endswith("choose another port.")
    assert "ulimit -n" in failure_of(OSError(errno.EMFILE, "Too many open files"))
    assert failure_of(BadConfig("brokerId", "x", "a whole number")) == "brokerId must be a whole number (got 'x')"


def test_a_failure_that_nobody_expects_keeps_its_traceback() -> None:
    """Even if an expected one comes with it."""
    with pytest.raises(ExceptionGroup):
        serve(_Opened(ExceptionGroup("", [OSError(errno.EACCES, "no"), KeyError("a mistake of ours")])), str)


def test_a_value_that_no_broker_can_run_with_is_found_where_it_stands(runner: Run, tmp_path: Path) -> None:
    """In the file, which is named, or among the flags."""
    file = tmp_path / "broker.conf"
    file.write_text("slaveTimeout=soon\nnamesrvAddr=nowhere\n")

    in_file = runner("broker", "-c", str(file), "-n", "127.0.0.1:9876", status=2).stderr
    in_flag = runner("broker", "-c", str(file), "--slaveTimeout", "later", status=2).stderr
    file.write_text("namesrvAddr=127.0.0.1:9876\n")
    name_server = runner("broker", "-c", str(file), "-n", "nowhere", status=2).stderr

    assert f"Error: {file}: slaveTimeout must be a whole number (got 'soon')" in in_file
    assert "Error: slaveTimeout must be a whole number (got 'later')" in in_flag
    assert "Error: namesrvAddr must be HOST:PORT, several separated by ; (got 'nowhere')" in name_server


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_cluster_does_not_tell_clients_to_come_everywhere(runner: Run, host: str) -> None:
    """A broker would register with an address that only its own machine can use."""
    assert "give one that they can reach" in runner("up", "--host", host, status=2).stderr
