"""`ledgermq send`: send messages from arguments, or from the lines of standard input.

The lines that standard input has at one time are sent together, and later ones when all of these are answered. So the lines
of one queue are stored in order. A message that cannot be stored does not affect the others; when the cluster fails to
store one, no more are sent.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import attrs
import click
import trio

from ..client.errors import ClientError, InvalidArgument, MessageIllegal, MessageTooLarge
from ..client.producer import Producer, open_producer
from ..client.sending import MESSAGE_BYTES_MAX, SendResult
from ..message.message import Message
from .clients import Seconds, chosen_tls, explain, json_option, namesrv_option, pairs, talks_to_cluster
from .output import print_json

READ_BYTES = 64 * 1024
TOGETHER_BYTES = 256 * 1024
"""How many bytes of standard input are sent together: enough to keep a broker busy, and few enough to lose on Ctrl-C."""

END_SECONDS = 0.05
"""After a failure, how long we wait for the end of the input; without it the input counts as having more."""

NUMBERS_SHOWN = 10
"""How many messages that failed for one reason are listed by number; the rest are only counted."""


@attrs.frozen
class Failure:
    """Messages of one request that were not acknowledged; the first message of the input has the number 1."""

    numbers: range
    error: ClientError

    @property
    def concerns_others(self) -> bool:
        """Whether later messages would most likely fail too."""
        if isinstance(self.error, MessageTooLarge):
            return self.error.part == "properties"  # all messages of a command have the same
        return not isinstance(self.error, MessageIllegal)


@attrs.define(eq=False)
class Progress:
    """The results of the messages so far, which it also prints."""

    as_json: bool
    verbose: bool
    count: int = 0
    not_ok: int = 0
    failures: list[Failure] = attrs.field(factory=list[Failure])
    stopped: bool = False
    """Whether the cluster has failed a message, so that no further one is sent."""
    more: bool = False
    """Whether there were more messages to send when it stopped."""
    unreadable: Exception | None = None
    """Why the rest of the input was not read."""

    @property
    def failed_count(self) -> int:
        return sum(len(failure.numbers) for failure in self.failures)

    def done(self, results: Sequence[SendResult]) -> None:
        for result in results:
            self.count += 1
            self.not_ok += result.status.name != "SEND_OK"
            if self.as_json:
                print_json(
                    {
                        "status": result.status.name,
                        "message_id": result.message_id,
                        "offset_message_id": result.offset_message_id,
                        "topic": result.queue.topic,
                        "broker_name": result.queue.broker_name,
                        "queue_id": result.queue.queue_id,
                        "queue_offset": result.queue_offset,
                    }
                )
            elif self.verbose:
                click.echo(f"{result.status.name} {result.message_id} {result.queue} offset {result.queue_offset}")

    def failed(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.stopped |= failure.concerns_others
        if self.as_json:
            for number in failure.numbers:
                print_json(
                    {
                        "status": "NOT_ACKNOWLEDGED",
                        "number": number,
                        "reason": str(failure.error),
                        "may_have_been_stored": failure.error.may_have_been_stored,
                    }
                )

    def conclude(self, namesrv: str) -> None:
        """Raise an error if not all messages were stored as requested.

        Raises:
            ClientError: there was only one message, or the options are invalid for all.
            click.ClickException: some messages are not stored as requested.
        """
        for failure in self.failures:
            wrong_options = isinstance(failure.error, InvalidArgument) and failure.concerns_others
            if wrong_options or (self.failed_count == 1 and not self.count and not self.more):
                raise failure.error
        lines = self._failure_lines(namesrv)
        if self.not_ok:
            lines.append(f"{self.not_ok} messages are stored, but not as safely as asked (see their status)")
        if self.unreadable is not None:
            if not lines:
                raise self.unreadable
            lines.append(f"the rest of the input was not read: {self.unreadable}")
        if lines:
            raise click.ClickException("\n".join(lines))

    def _failure_lines(self, namesrv: str) -> list[str]:
        if not self.failures:
            return []
        reasons: dict[tuple[bool, str], list[int]] = {}
        for failure in sorted(self.failures, key=lambda failure: failure.numbers.start):
            kind = failure.error.may_have_been_stored, explain(failure.error, namesrv)
            reasons.setdefault(kind, []).extend(failure.numbers)
        rest = "; what comes after them was not sent" if self.more else ""
        lines = [f"{self.failed_count} of {self.failed_count + self.count} messages not acknowledged{rest}"]
        for (maybe, reason), numbers in reasons.items():
            named = ", ".join(map(str, sorted(numbers)[:NUMBERS_SHOWN])) + (", ..." if len(numbers) > NUMBERS_SHOWN else "")
            stored = "perhaps stored" if maybe else "not stored"
            lines.append(f"  {len(numbers)} {stored} (number {named}): {reason}".replace("\n", "\n    "))
        return lines


@click.command("send")
@click.argument("topic")
@click.argument("bodies", nargs=-1, metavar="[TEXT]...")
@click.option("--file", type=click.File("rb"), help="One message with the whole file as its body.")
@click.option("--tag", help="What consumers filter by.")
@click.option("--key", "keys", multiple=True, help="Finds the message again; may be given several times.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE")
@click.option("--delay-level", type=click.IntRange(0, 18), default=0, help="1..18: 1s 5s 10s 30s 1m ... 2h.")
@click.option("--order-key", help="Send all of them to the one queue of this key.")
@click.option("--batch", type=click.IntRange(min=1), default=1, help="Lines per request, stored next to each other.")
@click.option("--group", default="ledgermq-cli", show_default=True, help="Producer group.")
@click.option("--timeout", "seconds", type=Seconds(), default=3.0, show_default=True, help="Seconds for one message in all.")
@click.option("--no-wait", is_flag=True, help="Let the broker answer before flush and replication.")
@click.option("-v", "--verbose", is_flag=True, help="A line for each acknowledged message; arguments have it always.")
@namesrv_option
@json_option
@talks_to_cluster
async def command(
    topic: str,
    bodies: tuple[str, ...],
    file: Any,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int,
    order_key: str | None,
    batch: int,
    group: str,
    seconds: float,
    no_wait: bool,
    verbose: bool,
    namesrv: str,
    as_json: bool,
) -> None:
    """Send messages: each TEXT is one; without TEXT, each line of standard input is one.

    \b
        ledgermq send orders "first" "second" --tag new
        seq 1000 | ledgermq send numbers --batch 50

    Lines that go to one queue are stored in order. A message that cannot be stored, such as one that is too large, does not
    affect the others. When the cluster fails to store one, no more are sent. Messages that are not acknowledged are counted,
    with the reason; the exit status is then 1.
    """  # noqa: D301 - click needs the character itself, not an escaped spelling, to keep lines apart
    if batch > 1 and (delay_level or order_key):
        raise click.UsageError("a batch has neither a delay nor an order key")
    if file is not None and bodies:
        raise click.UsageError("give either texts or --file")
    entries = pairs(properties, "--property")

    def message(body: bytes) -> Message:
        return Message(topic, body, tag=tag, keys=keys, delay_level=delay_level, properties=entries, wait_stored=not no_wait)

    from_input = not bodies and file is None
    progress = Progress(as_json, verbose or not from_input)
    if from_input and sys.stdin.isatty():
        click.echo("One message a line; Ctrl-D ends.", err=True)
    started = time.monotonic()
    try:
        async with open_producer(namesrv, group, send_timeout_seconds=seconds, tls=chosen_tls()) as producer:
            source = _lines() if from_input else _given(bodies, file)
            await send_all(producer, source, message, batch, order_key, progress)
    finally:
        if from_input and not as_json:
            elapsed = time.monotonic() - started
            click.echo(f"{progress.count} messages acknowledged in {elapsed:.1f} s", err=True)
    progress.conclude(namesrv)


async def _given(bodies: tuple[str, ...], file: Any) -> AsyncGenerator[list[bytes]]:
    # The bytes of arguments are sent unchanged, in any encoding.
    yield [file.read()] if file is not None else [os.fsencode(body) for body in bodies]


async def _lines() -> AsyncGenerator[list[bytes]]:
    """The lines of standard input without their line ends, in lists of those available at one time.

    No thread waits for them, so that Ctrl-C ends the command at once.
    """
    descriptor = sys.stdin.fileno()
    rest = bytearray()
    lines: list[bytes] = []
    size = 0
    while True:
        if lines and (size >= TOGETHER_BYTES or not select.select([descriptor], [], [], 0)[0]):
            yield lines
            lines, size = [], 0
        try:
            await trio.lowlevel.wait_readable(descriptor)
        except OSError:  # a plain file is always readable, and epoll refuses it
            await trio.lowlevel.checkpoint()
        piece = os.read(descriptor, READ_BYTES)
        if not piece:
            break
        size += len(piece)
        first, *others = piece.split(b"\n")
        rest += first
        if len(rest) > MESSAGE_BYTES_MAX:
            raise TooLongLine(lines)
        for line in others:
            lines.append(bytes(rest.removesuffix(b"\r")))
            rest[:] = line
    if rest:
        lines.append(bytes(rest))
    if lines:
        yield lines


class TooLongLine(click.UsageError):
    """A line that is too long for a message; `before` are the lines before it that were not sent yet."""

    def __init__(self, before: list[bytes]) -> None:
        super().__init__(f"a line of standard input passes the limit of {MESSAGE_BYTES_MAX} bytes of a message")
        self.before = before


async def send_all(
    producer: Producer,
    source: AsyncGenerator[list[bytes]],
    message: Callable[[bytes], Message],
    batch: int,
    order_key: str | None,
    progress: Progress,
) -> None:
    """Send the bodies from `source` and record the results in `progress`, until the cluster or the input fails."""
    begun = 0
    waiting: list[Message] = []

    async def send(count: int) -> None:
        """Send the first `count` waiting messages."""
        nonlocal begun
        together, waiting[:] = waiting[:count], waiting[count:]
        numbers = range(begun + 1, begun + 1 + len(together))
        begun += len(together)
        if batch == 1:
            outcomes = await producer.send_many(together, key=order_key)
            for number, outcome in zip(numbers, outcomes, strict=True):
                if isinstance(outcome, ClientError):
                    progress.failed(Failure(range(number, number + 1), outcome))
                else:
                    progress.done([outcome])
            return
        try:
            progress.done(await producer.send_batch(together))
        except ClientError as error:
            progress.failed(Failure(numbers, error))

    async with aclosing(source):
        try:
            async for bodies in source:
                waiting += map(message, bodies)
                while len(waiting) >= batch and not progress.stopped:
                    await send(len(waiting) if batch == 1 else batch)
                if progress.stopped:
                    progress.more = bool(waiting) or await _has_more(source)
                    return
        except (click.UsageError, OSError) as error:
            progress.unreadable = error
            waiting += map(message, error.before if isinstance(error, TooLongLine) else ())
    if waiting:
        await send(len(waiting))


async def _has_more(source: AsyncGenerator[list[bytes]]) -> bool:
    """Whether the rest of the input has lines; True if it does not end within `END_SECONDS`."""
    with trio.move_on_after(END_SECONDS):
        try:
            await anext(source)
        except (StopAsyncIteration, click.UsageError, OSError):
            return False
    return True
