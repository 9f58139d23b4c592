"""`ledgermq broker` as a process."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from secrets import token_hex

import pytest

from ledgermq.broker.config import BrokerConfig

from .processes import Run, Start


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


def test_a_store_in_use_is_named(start: Start, tmp_path: Path) -> None:
    """Two brokers on one store would destroy it; the second does not start."""
    arguments = ("broker", "--listenPort", "0", "--storePathRootDir", str(tmp_path / "store"))
    start(*arguments).wait_for("boot success")

    second = start(*arguments)
    assert second.process.wait(30) == 1
    assert second.process.stdout is not None
    assert f"Error: the store {tmp_path}/store is in use" in second.process.stdout.read()


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

    assert "[warning  ] name_server_not_set" in broker.output
    assert "master_address_not_set" not in broker.output
    assert "name_server_not_set" in slave.output
    assert "master_address_not_set" in slave.output


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


def test_a_secret_comes_from_a_file_or_the_environment(runner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no process list and no configuration shows it; what is set in two places, or cannot be read, is refused."""
    file = tmp_path / "secret"
    file.write_text("hush\n")
    secrets: list[str] = []

    def note(config: BrokerConfig) -> None:
        secrets.append(config.ha_secret)

    def serve_nothing(*_arguments: object, **_options: object) -> None:
        pass

    monkeypatch.setattr("ledgermq.cli.broker._warn", note)
    monkeypatch.setattr("ledgermq.cli.broker.serve", serve_nothing)

    runner("broker", "--haSecretFile", str(file))
    monkeypatch.setenv("LEDGERMQ_HA_SECRET", "of the environment")
    runner("broker")
    runner("broker", "--haSecret", "of a flag")
    runner("broker", "--haSecretFile", str(file))

    assert secrets == ["hush", "of the environment", "of a flag", "hush"]
    assert "hush" not in runner("broker", "-p", "--haSecretFile", str(file)).stdout
    twice = runner("broker", "--haSecretFile", str(file), "--haSecret", "x", status=2).stderr
    assert "haSecretFile must be left out where haSecret is set" in twice
    missing = runner("broker", "--haSecretFile", str(tmp_path / "none"), status=2).stderr
    assert "cannot be read" in missing
    assert "No such file" in missing
    file.write_text("\n")
    assert "it is empty" in runner("broker", "--haSecretFile", str(file), status=2).stderr
