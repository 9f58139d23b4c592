"""`ledgermq consume`: groups, members that end, and readers that go away."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from ledgermq import Message, blocking
from ledgermq.client.fetch import Fetcher
from ledgermq.message.message import MessageQueue
from ledgermq.message.units import QueueId

from .processes import Run, consuming_process, lines_of, never


def test_a_group_takes_each_message_once(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """What was printed is acknowledged; the next run goes on behind it."""
    ledgermq("send", "Shared", *"abcdef")

    first = lines_of(ledgermq("consume", "Shared", "--group", "takers", "--from-beginning", "--max", "4"))
    rest = lines_of(ledgermq("consume", "Shared", "--group", "takers"))

    assert len(first) == 4
    assert sorted(first + rest) == list("abcdef")
    shown = as_json("group", "show", "takers", "--topic", "Shared")
    assert sum(queue["lag"] for queue in shown["queues"]) == 0


def test_a_member_ends_where_the_queues_ended_when_it_came(ledgermq: Run) -> None:
    """Not by silence: what tags filter out counts as read, and where nothing is left it ends at once."""
    ledgermq("send", "Ended", *"ab", "--tag", "wanted")
    ledgermq("send", "Ended", *["x"] * 40, "--tag", "other")

    began = time.monotonic()
    taken = lines_of(ledgermq("consume", "Ended", "--group", "starters", "--from-beginning", "--tag", "wanted"))
    took = [time.monotonic() - began]
    again = ledgermq("consume", "Ended", "--group", "starters", "--from-beginning", "--tag", "wanted")
    took.append(time.monotonic() - began - took[0])

    assert again.stdout == ""
    assert "Nothing new for starters" in again.stderr
    assert sorted(taken) == ["a", "b"]
    assert max(took) < 15, "a pull that is held for 15 s was waited for"


def test_a_member_of_a_topic_that_does_not_exist_is_warned(ledgermq: Run) -> None:
    """Nothing would ever come."""
    assert "Create it" in ledgermq("consume", "Nowhere", "--group", "g", status=1).stderr


def test_following_ends_with_the_wanted_number(namesrv: str, ledgermq: Run) -> None:
    """A consumer that waits prints what comes after it started, as soon as it comes."""
    ledgermq("send", "Later", "before")
    waiting = consuming_process(namesrv, "Later", "--from-beginning", "--follow", "--max", "2")
    try:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"before\n"
        ledgermq("send", "Later", "after")
        assert waiting.communicate(timeout=60)[0] == b"after\n"
        assert waiting.returncode == 0
    finally:
        waiting.kill()
        waiting.wait()


def test_a_reader_that_goes_away_ends_consuming_quietly(namesrv: str, ledgermq: Run) -> None:
    """As every command does in a pipe with `head`: no traceback, whatever is still to come."""
    ledgermq("send", "Piped", *["x" * 10_000] * 30)
    consuming = consuming_process(namesrv, "Piped", "--from-beginning", "--follow", stderr=subprocess.PIPE)
    assert consuming.stdout is not None
    assert consuming.stderr is not None
    try:
        assert consuming.stdout.read(1) == b"x"
        consuming.stdout.close()
        assert consuming.stderr.read() == b""
        assert consuming.wait(60) == 1
    finally:
        consuming.kill()
        consuming.wait()
        consuming.stderr.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_member_that_is_asked_to_end_commits_what_it_has_printed(
    namesrv: str, ledgermq: Run, as_json: Callable[..., Any], in_background: bool
) -> None:
    """SIGTERM is as good as Ctrl-C, and the only one that a background process of a script does not ignore."""
    topic = f"Asked{in_background}"
    ledgermq("topic", "create", topic, "--queues", "1")  # so that one call within the short time for closing commits all
    ledgermq("send", topic, "one", "two", "three")
    member = consuming_process(namesrv, topic, "--group", topic, "--from-beginning", "--follow", in_background=in_background)
    try:
        assert member.stdout is not None
        assert {member.stdout.readline() for _ in range(3)} == {b"one\n", b"two\n", b"three\n"}
        ledgermq("send", topic, "four")
        assert member.stdout.readline() == b"four\n"  # which may be on its way to its acknowledgement still
        if in_background:
            member.send_signal(signal.SIGINT)
            ledgermq("send", topic, "five")
            assert member.stdout.readline() == b"five\n"
        member.terminate()
        assert member.wait(60) == 1
    finally:
        member.kill()
        member.communicate()

    assert sum(row["position"] for row in as_json("group", "show", topic, "--topic", topic)["queues"]) >= 3


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "Stalled", "--from-beginning"),
        ("consume", "Stalled", "--from-beginning", "--tag", "other"),
        ("consume", "Stalled", "--from-beginning", "--group", "stalled"),
        ("message", "find", "Stalled"),
    ],
)
def test_silence_before_the_end_is_no_end(ledgermq: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """A broker that does not answer must not look like a topic that was read whole, and is not waited for without end."""
    ledgermq("send", "Stalled", "never shown")
    monkeypatch.setattr("ledgermq.client.fetch.Fetcher.run", never)
    monkeypatch.setattr("ledgermq.cli.reading.STALL_SECONDS", 0.5)

    refused = ledgermq(*command, status=1)

    assert refused.stdout == ""
    assert "s from Stalled@broker-a:" in refused.stderr
    assert "and not all was read" in refused.stderr


def test_a_member_that_its_broker_refuses_does_not_pass_for_one_that_has_read_all(
    ledgermq: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a new group cannot be written down: it gets no queue, and has none that it has not read."""
    ledgermq("send", "Refusing", "never shown")

    def names_nobody(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr("ledgermq.client.session.heartbeat", names_nobody)

    refused = ledgermq("consume", "Refusing", "--from-beginning", "--group", "refused", status=1)

    assert refused.stdout == ""
    assert "refused has got no queue of Refusing: no broker has answered a heartbeat; " in refused.stderr


def test_a_member_does_not_wait_for_a_silent_queue_while_others_are_sent_to(
    ledgermq: Run, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job would never end as long as its topic has traffic."""
    ledgermq("topic", "create", "Busy", "--queues", "2")
    ended, fetch = threading.Event(), Fetcher.run

    async def fetch_second(fetcher: Fetcher) -> None:
        if fetcher.assigned.queue.queue_id == 0:
            await trio.sleep_forever()
        await fetch(fetcher)

    def keep_sending(producer: blocking.BlockingProducer[bytes]) -> None:
        while not ended.wait(0.02):
            producer.send(Message("Busy", b"more"), queue=MessageQueue("Busy", "broker-a", QueueId(1)))

    with blocking.open_producer(namesrv) as producer:
        for queue in producer.queues("Busy"):
            producer.send(Message("Busy", b"first"), queue=queue)
        monkeypatch.setattr(Fetcher, "run", fetch_second)
        monkeypatch.setattr("ledgermq.cli.reading.STALL_SECONDS", 0.5)
        sender = threading.Thread(target=keep_sending, args=[producer])
        sender.start()
        try:
            refused = ledgermq("consume", "Busy", "--group", "busy", "--from-beginning", "--max", "1000", status=1)
        finally:
            ended.set()
            sender.join()

    assert "s from Busy@broker-a:0, and not all was read" in refused.stderr
    assert "first" in refused.stdout
