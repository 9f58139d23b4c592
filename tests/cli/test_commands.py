"""Daily use against a running cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .processes import SOURCES, Run, lines_of, pipe


def test_what_is_sent_as_arguments_is_consumed_from_the_beginning(ledgermq: Run) -> None:
    """Looking on changes nothing, so the messages are there as often as somebody looks."""
    sent = lines_of(ledgermq("send", "Args", "first", "zweitens é"))

    assert [line.split()[0] for line in sent] == ["SEND_OK", "SEND_OK"]
    for _ in range(2):
        assert sorted(lines_of(ledgermq("consume", "Args", "--from-beginning"))) == ["first", "zweitens é"]


@pytest.mark.parametrize("extra", [(), ("--batch", "7"), ("--order-key", "k")])
def test_lines_of_standard_input_are_messages(namesrv: str, ledgermq: Run, extra: tuple[str, ...]) -> None:
    """Each line without its end; the last one needs none; an empty line is an empty message."""
    topic = f"Lines{len(extra)}{'-'.join(extra).strip('-')}"
    lines = [*map(str, range(100)), "", "last"]

    done = pipe(namesrv, "\n".join(lines).encode(), "send", topic, *extra)

    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert b"102 messages acknowledged" in done.stderr
    found = lines_of(ledgermq("consume", topic, "--from-beginning"))
    assert sorted(found) == sorted(lines)
    if "--order-key" in extra:
        assert found == lines


@pytest.mark.parametrize("extra", [(), ("--batch", "7")])
def test_lines_of_one_queue_keep_their_order(namesrv: str, ledgermq: Run, extra: tuple[str, ...]) -> None:
    """Many at a time, or a few lines that come now and then."""
    topic = f"Ordered{len(extra)}"
    ledgermq("topic", "create", topic, "--queues", "1")
    lines = list(map(str, range(2000)))

    done = pipe(namesrv, "\n".join(lines).encode(), "send", topic, *extra)

    assert done.returncode == 0, done.stderr
    assert lines_of(ledgermq("consume", topic, "--from-beginning")) == lines


def test_a_file_is_one_message_whatever_its_bytes(ledgermq: Run, as_json: Callable[..., Any], tmp_path: Path) -> None:
    """Bodies that are no text are shown in hex."""
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff\n")

    sent = as_json("send", "Files", "--file", str(file))

    found = as_json("consume", "Files", "--from-beginning")
    assert found["body_hex"] == "00ff0a"
    assert found["message_id"] == sent["message_id"]


def test_tags_keys_properties_and_delays_arrive(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """Everything that a message can carry is given by flags."""
    ledgermq("send", "Rich", "body", "--tag", "a", "--key", "k1", "--key", "k2", "--property", "colour=blue")
    ledgermq("send", "Rich", "other", "--tag", "b")

    message = as_json("consume", "Rich", "--from-beginning", "--tag", "a")

    assert (message["body"], message["tag"], message["keys"]) == ("body", "a", ["k1", "k2"])
    assert message["properties"]["colour"] == "blue"
    assert "tag a" in ledgermq("consume", "Rich", "--from-beginning", "--tag", "a", "-v").stdout


def test_a_group_is_set_back_and_reads_again(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """Reset to the earliest message, then everything comes once more."""
    ledgermq("send", "Again", "x", "y")
    consume = ("consume", "Again", "--group", "again", "--from-beginning")
    assert sorted(lines_of(ledgermq(*consume))) == ["x", "y"]
    assert lines_of(ledgermq(*consume)) == []

    reset = as_json("group", "reset", "again", "Again", "--to", "earliest")

    assert {row["position"] for row in reset} == {0}
    assert sorted(lines_of(ledgermq(*consume))) == ["x", "y"]


def test_the_cluster_is_listed_with_how_it_is(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """Roles and addresses, load and disk."""
    (listed,) = as_json("cluster", "list")
    assert (listed["broker"], listed["role"]) == ("broker-a", "master")

    (status,) = as_json("cluster", "status")
    assert 0 < status["disk_percent"] < 100
    assert "broker-a" in ledgermq("cluster", "status").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topic", "list"), ("127.0.0.1:1", "--namesrv", "ledgermq up")),
        (("send", "T", "x"), ("127.0.0.1:1", "--namesrv", "ledgermq up")),
        (("consume", "T"), ("127.0.0.1:1", "--namesrv", "ledgermq up")),
    ],
)
def test_without_a_name_server_the_error_says_what_to_do(
    runner: Run, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Which addresses were asked, how to give others, how to start a cluster."""
    error = runner(*arguments, status=1).stderr

    assert all(word in error for word in words), error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topic", "delete", "Absent", "--yes"), "there is no topic 'Absent'; if anything was left of it, that is deleted now"),
        (("topic", "list", "--cluster", "Absent"), "there is no cluster 'Absent': known are DefaultCluster"),
        (("group", "show", "absent"), "there is no group 'absent'"),
        (("group", "show", "absent", "--topic", "TBW102"), "there is no group 'absent'"),
        (
            ("group", "delete", "absent", "--yes"),
            "there is no group 'absent'; if any positions were left of it, they are deleted now",
        ),
        (("group", "delete", "absent", "--yes", "--keep-offsets"), "there is no group 'absent'\n"),
    ],
)
def test_what_does_not_exist_is_an_error(ledgermq: Run, arguments: tuple[str, ...], words: str) -> None:
    """And nobody reads of a success."""
    done = ledgermq(*arguments, status=1)

    assert words in done.stderr
    assert done.stdout == ""


def test_a_line_that_no_message_can_hold_is_refused_at_once(namesrv: str) -> None:
    """Before it is read to its end, which may never come."""
    done = pipe(namesrv, b"x" * 30_000_000, "send", "Lines")

    assert done.returncode == 2
    assert b"a line of standard input passes the limit of 4194304 bytes" in done.stderr


def test_lines_that_cannot_be_stored_leave_the_others_alone(namesrv: str, ledgermq: Run) -> None:
    """They are counted and named, with the reason."""
    long = b"x" * 3_000_000

    done = pipe(namesrv, b"\n".join((b"first", b"second", long, long, b"fifth")), "send", "Mixed", "--batch", "2")

    assert done.returncode == 1
    assert b"3 messages acknowledged" in done.stderr
    assert b"Error: 2 of 5 messages not acknowledged\n  2 not stored (number 3, 4): batch of 60" in done.stderr
    assert sorted(lines_of(ledgermq("consume", "Mixed", "--from-beginning"))) == ["fifth", "first", "second"]


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_closed_standard_streams_are_nobody_s(namesrv: str, ledgermq: Run, closed: str) -> None:
    """No traceback, and no socket in their place that somebody prints into."""
    ledgermq("send", "Closed", "body")
    for command in ("consume Closed --from-beginning -v", "topic list", "send Closed"):
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {sys.executable} -m ledgermq.cli.main {command} {closed}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "LEDGERMQ_NAMESRV": namesrv},
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


def test_arguments_are_bytes(namesrv: str, ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """A text in another encoding than the terminal's arrives as it was typed."""
    done = subprocess.run(
        [sys.executable, "-m", "ledgermq.cli.main", "send", "Latin", b"b\xfccher"],
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "LEDGERMQ_NAMESRV": namesrv},
    )

    assert done.returncode == 0
    assert as_json("consume", "Latin", "--from-beginning", "--max", "1")["body_hex"] == b"b\xfccher".hex()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
@pytest.mark.parametrize(
    "arguments",
    [
        ("completion", "bash"),
        ("consume", "Brimful", "--group", "brimful", "--from-beginning"),
        ("up", "--port", "0", "--broker-port", "0"),
    ],
)
def test_a_full_disk_under_the_output_is_said_once(namesrv: str, ledgermq: Run, arguments: tuple[str, ...]) -> None:
    """Without a traceback, with the exit status of any other error, and nothing is acknowledged that nobody has got."""
    if "consume" in arguments:
        ledgermq("send", "Brimful", "kept")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ledgermq.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "LEDGERMQ_NAMESRV": namesrv, "PYTHONUNBUFFERED": ""},  # as for users
        )

    assert done.stderr.decode() == "Error: standard output: No space left on device; not all was printed\n"
    assert done.returncode == 1
    if "consume" in arguments:
        assert lines_of(ledgermq(*arguments)) == ["kept"]


def test_a_broker_that_there_is_not_is_answered_with_those_there_are(ledgermq: Run) -> None:
    """A typing error is no broker that died."""
    ledgermq("send", "Found", "body")

    said = ledgermq("message", "by-offset", "Found", "0", "--queue", "0", "--broker", "nope", status=2).stderr

    assert "no broker 'nope' has the topic Found: known are " in said


def test_a_command_that_waits_says_so(namesrv: str, ledgermq: Run) -> None:
    """Without --from-beginning nothing old is shown, and nothing may come for long."""
    ledgermq("send", "Silent", "old")
    waiting = subprocess.Popen(
        [sys.executable, "-m", "ledgermq.cli.main", "consume", "Silent"],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "LEDGERMQ_NAMESRV": namesrv},
    )
    try:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == b"Waiting for messages of Silent; Ctrl-C ends.\n"
    finally:
        waiting.kill()
        waiting.communicate()


def test_an_unknown_topic_is_named(ledgermq: Run) -> None:
    """Reading does not create a topic, and says how to."""
    error = ledgermq("consume", "Nowhere", "--from-beginning", status=1).stderr

    assert "Nowhere" in error
    assert "ledgermq topic create Nowhere" in error


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "T", "x", "--property", "novalue"),
        ("send", "T", "--batch", "5", "--delay-level", "1"),
        ("send", "bad topic!", "x"),
        ("topic", "list", "--namesrv", "nowhere:99999"),
        ("consume", "T", "--from-beginning", "--since", "10m"),
        ("consume", "T", "--group", "g", "--since", "10m"),
        ("group", "reset", "g", "T", "--to", "yesterday"),
        ("send", "T", "x", "--timeout", "-1"),
        ("send", "T", "x", "--timeout", "nan"),
        ("bench", "produce", "--seconds", "0"),
        ("bench", "produce", "--batch", "100", "--size", "100000"),
        ("topic", "create", "T", "--broker", "1.2.3:port"),
        ("topic", "create", "T", "--broker", "nobody"),
        ("topic", "create", "T", "--cluster", "nowhere"),
        ("message", "by-offset", "T", "0"),
    ],
)
def test_mistakes_of_usage_have_status_2_and_a_reason(ledgermq: Run, arguments: tuple[str, ...]) -> None:
    """Nothing is sent, nothing is changed."""
    assert "Error: " in ledgermq(*arguments, status=2).stderr


def test_commands_speak_tls(ledgermq: Run, tmp_path: Path) -> None:
    """With any certificate, and with one that tls.properties trusts; this cluster made its own, which that does not."""
    ledgermq("send", "Secret", "psst", "--tls")
    assert lines_of(ledgermq("consume", "Secret", "--from-beginning", "--tls")) == ["psst"]

    settings = tmp_path / "tls.properties"
    settings.write_text("tls.client.authServer=true\n")
    refused = ledgermq("topic", "list", "--tls-config", str(settings), status=1)
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
    settings.write_text("tls.client.authServer=perhaps\n")
    assert "true or false" in ledgermq("topic", "list", "--tls-config", str(settings), status=2).stderr
