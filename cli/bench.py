"""`ledgermq bench`: measure how fast a cluster stores and delivers messages, with our own client."""

from __future__ import annotations

import time
from typing import Any

import attrs
import click
import trio

from ..client.admin import open_admin
from ..client.consumer import open_consumer
from ..client.errors import ClientError, InvalidArgument
from ..client.producer import Producer, open_producer
from ..client.sending import MESSAGE_BYTES_MAX
from ..client.subscription import ConsumeFrom
from ..message.message import Message
from .clients import Seconds, chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import print_json
from .reasons import SuggestingGroup

REPORT_SECONDS = 1.0
MESSAGES_PER_GET = 1024
IN_FLIGHT_MAX = 4096
"""The largest `--in-flight`, which one process can still handle."""


@attrs.define(eq=False)
class Tally:
    """The counts and latencies of a run so far."""

    count: int = 0
    size: int = 0
    failed: int = 0
    latencies: list[float] = attrs.field(factory=list[float])
    """The duration of each call in seconds; the length of the run limits their number."""
    started: float = attrs.field(factory=time.monotonic)

    def summary(self) -> dict[str, Any]:
        elapsed = time.monotonic() - self.started
        ordered = sorted(self.latencies)
        quantiles = {
            f"{name}_ms": round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
            if ordered
        }
        return {
            "messages": self.count,
            "failed": self.failed,
            "seconds": round(elapsed, 3),
            "messages_per_second": round(self.count / elapsed, 1),
            "mib_per_second": round(self.size / elapsed / (1 << 20), 2),
            **quantiles,
        }


@click.group("bench", cls=SuggestingGroup)
def command() -> None:
    """Measure sending and receiving on a running cluster."""


@command.command("produce")
@click.argument("topic", default="BenchmarkTest")
@click.option("--size", type=click.IntRange(1, MESSAGE_BYTES_MAX), default=1024, show_default=True, help="Bytes of a body.")
@click.option(
    "--in-flight", type=click.IntRange(1, IN_FLIGHT_MAX), default=64, show_default=True, help="Sends that wait at once."
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Messages per request.")
@click.option("--seconds", type=Seconds(), default=10.0, show_default=True)
@namesrv_option
@json_option
@talks_to_cluster
async def produce(topic: str, size: int, in_flight: int, batch: int, seconds: float, namesrv: str, as_json: bool) -> None:
    """Send as fast as the brokers acknowledge."""
    tally = Tally()
    # Bytes that hardly compress, so that stored sizes are as requested.
    message = Message(topic, bytes((at * 197 + at // 7 * 31) & 0xFF for at in range(size)))
    async with open_producer(namesrv, "ledgermq-bench", compression=None, tls=chosen_tls()) as producer:
        await producer.send(message)
        tally.started = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report, tally, as_json)
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as senders:
                    for _ in range(in_flight):
                        senders.start_soon(_send_on, producer, message, batch, tally)
            nursery.cancel_scope.cancel()
    _finish(tally, as_json)


async def _send_on(producer: Producer, message: Message, batch: int, tally: Tally) -> None:
    messages = [message] * batch
    while True:
        started = time.perf_counter()
        try:
            if batch == 1:
                await producer.send(message)
            else:
                await producer.send_batch(messages)
        except InvalidArgument:
            raise  # every further send would be refused too, before a request
        except ClientError:
            tally.failed += batch
            continue
        tally.latencies.append(time.perf_counter() - started)
        tally.count += batch
        tally.size += len(message.body) * batch


@command.command("consume")
@click.argument("topic", default="BenchmarkTest")
@click.option("--group", default="ledgermq-bench", show_default=True)
@click.option("--seconds", type=Seconds(), default=10.0, show_default=True, help="At most; ends earlier when caught up.")
@click.option("--max", "count_max", type=click.IntRange(min=1), help="End after so many messages.")
@namesrv_option
@json_option
@talks_to_cluster
async def consume(topic: str, group: str, seconds: float, count_max: int | None, namesrv: str, as_json: bool) -> None:
    """Receive the messages of a topic as fast as they come."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        await admin.topic_route(topic)  # raises if there is no topic, because nothing could be measured
    tally = Tally()  # includes joining the group, which may bring all messages there are
    last = tally.started
    async with (
        open_consumer(namesrv, group, topic, consume_from=ConsumeFrom.FIRST, tls=chosen_tls()) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_report, tally, as_json)
        with trio.move_on_after(seconds):
            wanted = min(MESSAGES_PER_GET, count_max or MESSAGES_PER_GET)
            while wanted:
                async with consumer.take(wanted, 2.0) as messages:
                    tally.count += len(messages)
                    tally.size += sum(message.size for message in messages)
                if not messages:
                    break
                last = time.monotonic()
                if count_max is not None:
                    wanted = min(MESSAGES_PER_GET, count_max - tally.count)
        nursery.cancel_scope.cancel()
    # The wait after the last message is not part of the rate.
    tally.started += time.monotonic() - last
    _finish(tally, as_json)


async def _report(tally: Tally, as_json: bool) -> None:
    before = 0
    while not as_json:
        await trio.sleep(REPORT_SECONDS)
        click.echo(f"{(tally.count - before) / REPORT_SECONDS:>10.0f} messages/s, {tally.failed} failed", err=True)
        before = tally.count


def _finish(tally: Tally, as_json: bool) -> None:
    summary = tally.summary()
    if as_json:
        print_json(summary)
    else:
        for name, value in summary.items():
            click.echo(f"{name.replace('_', ' '):<20} {value}")
    if not tally.count and tally.failed:
        raise click.ClickException("nothing was acknowledged")
