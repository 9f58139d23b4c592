"""In which order `ledgermq send` sends, and what becomes of the others when one message fails."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, cast

import attrs
import click
import pytest
import trio
from trio.testing import MockClock

from ledgermq.cli.send import Progress, send_all
from ledgermq.client.errors import ClientError, InvalidArgument, MessageIllegal, MessageTooLarge, SendTimeout, Unreachable
from ledgermq.client.sending import SendResult, SendStatus
from ledgermq.message.message import Message, MessageQueue

if TYPE_CHECKING:
    from ledgermq.client.producer import Producer

NAMESRV = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "a", 0)


@attrs.define(eq=False)
class ScriptedProducer:
    """Lets the bodies fail that the test names, and acknowledges all others."""

    failing: Mapping[bytes, ClientError]
    sent: list[bytes] = attrs.field(factory=list[bytes])

    async def send_many(self, messages: list[Message], *, key: str | None) -> list[SendResult | ClientError]:
        del key
        self.sent += [message.body for message in messages]
        await trio.sleep(1)
        return [
            self.failing.get(message.body) or SendResult("id", QUEUE, 0, SendStatus.SEND_OK, "offset id")
            for message in messages
        ]

    async def send_batch(self, messages: list[Message]) -> list[SendResult]:
        self.sent += [message.body for message in messages]
        await trio.sleep(0.5)
        for message in messages:
            if message.body in self.failing:
                raise self.failing[message.body]
        await trio.sleep(1)
        return [SendResult("id", QUEUE, 0, SendStatus.SEND_OK, "offset id") for _ in messages]


async def run(
    failing: Mapping[bytes, ClientError],
    *bodies: bytes,
    endless: bool = False,
    unreadable: Exception | None = None,
    batch: int = 1,
    as_json: bool = False,
) -> tuple[list[bytes], Progress]:
    """Send `bodies`, and what else the input brings; what was begun, and what became of it."""

    async def source() -> AsyncGenerator[list[bytes]]:
        if bodies:
            yield list(bodies)
        if unreadable is not None:
            raise unreadable
        while endless:
            await trio.sleep(0.1)
            yield [b"later"]

    producer, progress = ScriptedProducer(failing), Progress(as_json, verbose=False)
    await send_all(cast("Producer", producer), source(), lambda body: Message("T", body), batch, None, progress)
    return producer.sent, progress


def error_of(progress: Progress) -> str:
    with pytest.raises(click.ClickException) as caught:
        progress.conclude(NAMESRV)
    assert caught.value.exit_code == 1
    return caught.value.message


async def test_a_failed_message_does_not_cancel_those_that_are_out(autojump_clock: MockClock) -> None:
    """They end in their own way; nothing more is sent, and the command says all of it."""
    failing = {b"two": SendTimeout("T", 3000, 3, may_have_been_stored=True), b"three": Unreachable("b:1", "gone")}

    sent, progress = await run(failing, b"one", b"two", b"three", b"four", endless=True)

    assert sent == [b"one", b"two", b"three", b"four"]
    assert progress.count == 2
    assert error_of(progress).splitlines()[:3] == [
        "2 of 4 messages not acknowledged; what comes after them was not sent",
        "  1 perhaps stored (number 2): no broker acknowledged a message for 'T' within 3000 ms (3 attempts)",
        "  1 not stored (number 3): b:1 cannot be reached: gone",
    ]


@pytest.mark.parametrize("error", [MessageTooLarge("body", 9, 8), MessageIllegal(13, "too long", "b:1")])
async def test_a_message_that_cannot_be_stored_leaves_the_others_alone(error: ClientError, autojump_clock: MockClock) -> None:
    """Those behind it are sent, too."""
    sent, progress = await run({b"bad": error}, b"one", b"bad", b"three")

    assert (sent, progress.count) == ([b"one", b"bad", b"three"], 2)
    assert error_of(progress).splitlines() == [
        "1 of 3 messages not acknowledged",
        f"  1 not stored (number 2): {error}",
    ]


async def test_a_failed_batch_counts_all_its_messages(autojump_clock: MockClock) -> None:
    """With their numbers, the first of them one by one."""
    bodies = [b"%d" % number for number in range(30)]

    _, progress = await run({b"20": Unreachable("b:1", "gone")}, *bodies, batch=15)

    assert error_of(progress).splitlines()[:2] == [
        "15 of 30 messages not acknowledged",
        "  15 not stored (number 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, ...): b:1 cannot be reached: gone",
    ]


async def test_each_failed_message_is_an_object_of_json(capsys: pytest.CaptureFixture[str], autojump_clock: MockClock) -> None:
    """As each acknowledged one is."""
    await run({b"two": Unreachable("b:1", "gone")}, b"one", b"two", as_json=True)

    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["status"] for each in found] == ["SEND_OK", "NOT_ACKNOWLEDGED"]
    assert (found[1]["number"], found[1]["may_have_been_stored"]) == (2, False)


async def test_input_that_cannot_be_read_on_does_not_cancel_what_is_out(autojump_clock: MockClock) -> None:
    """What was read before is sent, a batch that is not full included; then the reason is printed."""
    reason = click.UsageError("a line is too long")

    sent, progress = await run({}, b"one", b"two", b"three", unreadable=reason, batch=2)

    assert (len(sent), progress.count) == (3, 3)
    with pytest.raises(click.UsageError):
        progress.conclude(NAMESRV)

    _, progress = await run({b"one": MessageIllegal(13, "", "b:1")}, b"one", b"two", unreadable=reason)
    assert error_of(progress).endswith("\nthe rest of the input was not read: a line is too long")


@pytest.mark.parametrize("error", [InvalidArgument("no such name"), MessageTooLarge("properties", 9, 8)])
async def test_options_that_cannot_be_are_a_wrong_use(error: ClientError, autojump_clock: MockClock) -> None:
    """All messages have them, so the first one tells it."""
    sent, progress = await run({b"one": error, b"later": error}, b"one", endless=True)

    assert len(sent) < 10
    with pytest.raises(InvalidArgument):
        progress.conclude(NAMESRV)


async def test_what_comes_later_is_sent_when_what_came_before_has_its_answer(autojump_clock: MockClock) -> None:
    """Otherwise lines of one queue could pass each other."""
    producer, progress = ScriptedProducer({}), Progress(as_json=False, verbose=False)
    seen: list[int] = []

    async def source() -> AsyncGenerator[list[bytes]]:
        for number in range(3):
            seen.append(progress.count)
            yield [b"%d" % number] * 2
            await trio.lowlevel.checkpoint()

    await send_all(cast("Producer", producer), source(), lambda body: Message("T", body), 1, None, progress)

    assert seen == [0, 2, 4]
    assert producer.sent == [b"0", b"0", b"1", b"1", b"2", b"2"]


async def test_a_single_message_fails_with_its_own_reason(autojump_clock: MockClock) -> None:
    """There is nothing to count."""
    _, progress = await run({b"one": Unreachable("b:1", "gone")}, b"one")

    with pytest.raises(Unreachable):
        progress.conclude(NAMESRV)
