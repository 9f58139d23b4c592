"""What commands share: errors in words, moments, tables."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import click
import pytest
import trio
import trio.testing
from click.testing import Result

from ledgermq.cli.clients import explain, moment, pairs, watchable
from ledgermq.cli.output import body_fields, table, when
from ledgermq.client.errors import (
    ClientError,
    NoAnswer,
    NoRoute,
    NoRouteReason,
    NotFound,
    NotOnline,
    NotSupported,
    Unreachable,
)

Run = Callable[..., Result]


class Server(Protocol):
    def wait_for(self, pattern: str) -> re.Match[str]: ...


NAMESRV = "10.0.0.1:9876;10.0.0.2:9876"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoRoute("T", NoRouteReason.NAME_SERVER_UNREACHABLE), ("10.0.0.1:9876; 10.0.0.2:9876", "--namesrv", "ledgermq up")),
        (Unreachable("10.0.0.2:9876", "refused"), ("No name server answers", "--namesrv")),
        (NoAnswer("10.0.0.2:9876", "closed"), ("No name server answers", "--namesrv")),
        (NotSupported(3, "code 206", "10.0.0.2:9876"), ("no name server", "--namesrv")),
        (NoRoute("T", NoRouteReason.NO_BROKER), ("knows no broker", "which name servers it registers with")),
        (NoRoute("T", NoRouteReason.TOPIC_UNKNOWN), ("autoCreateTopicEnable", "ledgermq topic create T")),
        (NoRoute("T", NoRouteReason.NO_MASTER), ("lost its master", "restart")),
        (NoRoute("T", NoRouteReason.NO_PERMISSION), ("permissions", "ledgermq topic update T --perm rw")),
        (Unreachable("192.168.7.7:10911", "timed out"), ("192.168.7.7:10911", "brokerIP1", "firewall")),
        (NotOnline(206, "no", "b:1"), ("No member of the group",)),
        (NotFound(22, "no such message", "b:1"), ("no such message",)),
    ],
)
def test_an_error_names_its_cause_and_a_cure(error: ClientError, words: tuple[str, ...]) -> None:
    """Each of the reasons why there is no route has a cure of its own."""
    text = explain(error, NAMESRV)

    assert all(word in text for word in words), text


def test_moments_are_written_as_people_write_them() -> None:
    """Names, so long ago, dates, milliseconds."""
    now_ms = time.time() * 1000

    assert (moment("earliest"), moment("latest"), moment("1700000000000")) == (0, -1, 1700000000000)
    assert moment("10m") == pytest.approx(now_ms - 600_000, abs=60_000)
    assert moment("2026-01-31T12:00+00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000
    for text in ("yesterday", "", "10x", "-1", "1969-12-31T23:59:59.999+00:00", "99999999999999999999d"):
        with pytest.raises(click.BadParameter, match="a time is"):
            moment(text)


@pytest.mark.parametrize("text", ["20260131", "1700000000", "202601311200", "20260131120000"])
def test_dates_and_seconds_are_not_taken_for_milliseconds(text: str) -> None:
    """A group would be moved to January 1970, that is back to its oldest message."""
    with pytest.raises(click.BadParameter, match=f"milliseconds since 1970 have 13 digits.*{text}"):
        moment(text)
    assert moment("0") == 0


def test_latest_is_refused_where_nothing_would_follow(runner: Run, tmp_path: Path) -> None:
    """It is a marker of the protocol, which these commands cannot send."""
    for command in (
        ("consume", "t", "--since", "latest"),
        ("message", "by-key", "t", "k", "--since", "latest"),
        ("store", "restore", str(tmp_path), "target", "--until", "latest"),
    ):
        assert "nothing is newer than latest" in runner(*command, status=2).stderr


def test_pairs_keep_what_follows_the_first_sign() -> None:
    """Values may hold `=`; names may not be missing."""
    assert pairs(("a=b=c", "d="), "--property") == {"a": "b=c", "d": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(click.BadParameter):
            pairs((wrong,), "--property")


def test_a_table_aligns_texts_left_and_numbers_right() -> None:
    """Nothing is `-`, lists are words, no line ends in spaces."""
    text = table([{"name": "a", "lag": 5, "tags": ["x", "y"]}, {"name": "longer", "lag": 1000, "tags": None}])

    assert text.splitlines() == ["NAME     LAG  TAGS", "a          5  x y", "longer  1000  -"]


def test_what_a_message_brings_stays_in_its_line() -> None:
    """A line feed would begin a row of its own, and an escape would speak to the terminal."""
    text = table([{"body": "a\nb\x1b[2J\té", "keys": ["k\r"]}])

    assert text.splitlines()[1:] == [r"a\nb\x1b[2J\té  k\r"]


def test_bodies_are_text_or_hex() -> None:
    """A program knows which one by the name of the field."""
    assert body_fields("é".encode()) == {"body": "é", "body_hex": None}
    assert body_fields(b"\xff") == {"body": None, "body_hex": "ff"}


def test_no_time_is_a_dash() -> None:
    """Brokers say 0 or -1 for never."""
    assert when(0) == when(-1) == "-"
    assert datetime.fromisoformat(when(1700000000123)).timestamp() == 1700000000.123


def test_a_server_that_accepts_only_tls_is_recognized(start: Callable[..., Server], runner: Run, tmp_path: Path) -> None:
    """It says nothing to a plain client, it just closes the connection."""
    file = tmp_path / "namesrv.conf"
    file.write_text("tls.server.mode=enforcing\n")
    server = start("namesrv", "-c", str(file), "--host", "127.0.0.1", "--port", "0")
    address = "127.0.0.1:" + server.wait_for(r"127.0.0.1:(\d+)")[1]

    for arguments in (("topic", "list"), ("send", "t", "x")):
        assert "takes TLS alone closes plain connections" in runner(*arguments, status=1, namesrv=address).stderr
    assert "takes TLS alone" not in runner("topic", "list", "--tls", namesrv=address).stderr


async def test_a_watched_command_runs_again_and_again(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it finds missing, and a server that is away for a moment, do not end it."""
    del autojump_clock
    ends = [None, click.exceptions.Exit(1), NoAnswer("10.0.0.1:1", "silence"), None]
    at: list[float] = []

    @watchable
    async def command(namesrv: str) -> None:
        at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if len(at) <= len(ends) and (error := ends[len(at) - 1]) is not None:
            raise error

    began = trio.current_time()
    with trio.move_on_after(9):
        await command(namesrv=NAMESRV, watch_seconds=2.0)

    assert [each - began for each in at] == [0, 2, 4, 6, 8]
    assert "10.0.0.1:1" in capsys.readouterr().err
    await command(namesrv=NAMESRV, watch_seconds=None)
    assert len(at) == 6
