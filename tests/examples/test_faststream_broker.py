"""Handlers of FastStream whose messages come from a broker of ours, in FastStream's test kit and under its command line."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context, Depends, Header, Logger, Response, TestApp
from faststream.exceptions import AckMessage, IncorrectState, NackMessage, RejectMessage, SetupError, SkipMessage
from faststream.message import StreamMessage
from pydantic import BaseModel

from ledgermq import ConsumeFrom, aio
from ledgermq.testing.embedded import Embedded, start_embedded

EXAMPLE = Path(__file__).parents[2] / "examples" / "faststream_broker.py"
PATIENCE_SECONDS = 120
NO_DELAYS = {"messageDelayLevel": "1s 1s 1s 1s"}

Received = Annotated[StreamMessage[Any], Context("message")]


class Order(BaseModel):
    number: int


class Bill(BaseModel):
    total: float


@pytest.fixture(scope="module")
def cluster() -> Generator[Embedded]:
    with start_embedded(settings=NO_DELAYS) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("faststream_broker", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def limited(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await main()

    asyncio.run(run())


async def create(cluster: Embedded, *topics: str) -> None:
    """Create topics before their subscribers open, which otherwise look for them again after a while."""
    async with aio.open_admin(cluster.namesrv) as admin:
        for topic in topics:
            await admin.create_topic(topic)


async def lag(cluster: Embedded, topic: str, group: str) -> int:
    async with aio.open_admin(cluster.namesrv) as admin:
        return sum(position.lag for position in (await admin.group_stats(group, topic)).values())


async def dead_letter(cluster: Embedded, group: str) -> aio.AioMessage:
    topic = f"%DLQ%{group}"
    async with aio.open_consumer(cluster.namesrv, f"{group}-dead", topic, consume_from=ConsumeFrom.FIRST) as consumer:
        message = await consumer.get_one()
    assert message is not None
    return message


def test_a_handler_gets_what_it_declares_and_its_result_is_sent_on(cluster: Embedded, example: Any) -> None:
    """A body as its type, headers, dependencies and the message itself; the correlation id goes along with the result."""

    async def main() -> None:
        broker = example.LedgerMQBroker(cluster.namesrv)
        await create(cluster, "orders", "bills")
        billed = asyncio.Queue[tuple[Bill, str, str | None]]()

        async def price(order: Order) -> float:
            await asyncio.sleep(0)
            return order.number * 1.5

        @broker.subscriber("orders", group="billing")
        @broker.publisher("bills")
        async def bill(
            order: Order, customer: Annotated[str, Header()], logger: Logger, total: Annotated[float, Depends(price)]
        ) -> Response | None:
            assert isinstance(logger, logging.Logger)
            await asyncio.sleep(0)
            return Response(Bill(total=total), headers={"customer": customer}) if order.number else None

        @broker.subscriber("bills", group="printing")
        def print_bill(bill: Bill, customer: Annotated[str, Header()], message: Received) -> None:
            loop.call_soon_threadsafe(billed.put_nowait, (bill, customer, message.correlation_id))

        loop = asyncio.get_running_loop()
        async with TestApp(example.LedgerMQApp(lifespan=broker.lifespan)):
            await broker.publish(Order(number=0), "orders", headers={"customer": "Ada"})
            await broker.publish(Order(number=3), "orders", headers={"customer": "Ada"}, correlation_id="third")
            assert await billed.get() == (Bill(total=4.5), "Ada", "third")
        assert billed.empty()
        assert [await lag(cluster, "orders", "billing"), await lag(cluster, "bills", "printing")] == [0, 0]

    limited(main)


def test_bytes_and_text_are_sent_as_they_are(cluster: Embedded, example: Any) -> None:
    """Everything else as JSON; tags select, and as many messages as there are workers are handled at the same time."""

    async def main() -> None:
        broker = example.LedgerMQBroker(cluster.namesrv)
        await create(cluster, "bodies")
        bodies: list[object] = []
        together = asyncio.Barrier(4)

        @broker.subscriber("bodies", group="bodies", tags="a || b", max_workers=3)
        async def take(body: object, broker: Annotated[object, Context()]) -> None:
            assert broker is taken_by
            bodies.append(body)
            await together.wait()

        taken_by = broker
        async with TestApp(example.LedgerMQApp(lifespan=broker.lifespan)):
            await broker.publish(b"\xff", "bodies", tag="a")
            await broker.publish("42", "bodies", tag="a")
            await broker.publish(b"left out", "bodies", tag="c")
            await broker.publish({"a": [1, None]}, "bodies", tag="b", keys=["k"])
            await together.wait()
        assert sorted(map(str, bodies)) == sorted(map(str, [b"\xff", "42", {"a": [1, None]}]))

    limited(main)


@pytest.mark.parametrize(
    ("policy", "error", "outcome"),
    [
        (AckPolicy.NACK_ON_ERROR, ValueError("scripted"), "again"),
        (AckPolicy.REJECT_ON_ERROR, ValueError("scripted"), "dead letter"),
        (AckPolicy.ACK, ValueError("scripted"), "done"),
        (AckPolicy.ACK_FIRST, ValueError("scripted"), "done"),
        (AckPolicy.NACK_ON_ERROR, AckMessage(), "done"),
        (AckPolicy.NACK_ON_ERROR, SkipMessage(), "done"),
        (AckPolicy.NACK_ON_ERROR, RejectMessage(), "dead letter"),
        (AckPolicy.REJECT_ON_ERROR, NackMessage(delay_level=1), "again"),
    ],
)
def test_a_message_whose_handler_raises_meets_its_policy(
    cluster: Embedded, example: Any, policy: AckPolicy, error: Exception, outcome: str
) -> None:
    """The exceptions of FastStream that name an outcome have it whatever the policy is."""

    async def main() -> None:
        topic = f"fails-{policy.value}-{type(error).__name__}"
        broker = example.LedgerMQBroker(cluster.namesrv)
        await create(cluster, topic)
        deliveries: list[int] = []
        expected = [0, 1] if outcome == "again" else [0]
        handled = asyncio.Event()

        @broker.subscriber(topic, group=topic, ack_policy=policy)
        async def fail(_: bytes, message: Received) -> None:
            await asyncio.sleep(0)
            deliveries.append(message.raw_message.reconsume_times)
            if deliveries == expected:
                handled.set()
            if deliveries == [0]:
                raise error

        async with TestApp(example.LedgerMQApp(lifespan=broker.lifespan)):
            await broker.publish(b"x", topic)
            await handled.wait()
        assert await lag(cluster, topic, topic) == 0
        assert deliveries == expected
        if outcome == "dead letter":
            assert (await dead_letter(cluster, topic)).body == b"x"

    limited(main)


def test_a_body_of_another_shape_is_never_handled(cluster: Embedded, example: Any) -> None:
    """It meets the policy as a handler that raises."""

    async def main() -> None:
        broker = example.LedgerMQBroker(cluster.namesrv)
        await create(cluster, "shapes")
        bills = asyncio.Queue[Bill]()

        @broker.subscriber("shapes", group="shapes", ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def take(bill: Bill) -> None:
            await asyncio.sleep(0)
            bills.put_nowait(bill)

        async with TestApp(example.LedgerMQApp(lifespan=broker.lifespan)):
            await broker.publish({"total": "much"}, "shapes")
            await broker.publish({"total": 1}, "shapes")
            assert await bills.get() == Bill(total=1)
            dead = await dead_letter(cluster, "shapes")
        assert dead.body == b'{"total":"much"}'
        assert bills.empty()

    limited(main)


def test_a_lifespan_of_the_application_may_hold_that_of_the_broker(cluster: Embedded, example: Any) -> None:
    """Handlers see what it has prepared, and end before it does."""

    async def main() -> None:
        broker = example.LedgerMQBroker(cluster.namesrv)
        events: list[str] = []
        await create(cluster, "held")
        begun = asyncio.Event()

        @broker.subscriber("held", group="held")
        async def handle(_: bytes, database: Annotated[str, Context()]) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            events.append(f"handled with {database}")

        @asynccontextmanager
        async def lifespan() -> AsyncGenerator[None]:
            app.context.set_global("database", "a database")
            async with broker.lifespan(app.context):
                yield
            events.append("database closed")

        app = example.LedgerMQApp(lifespan=lifespan)
        async with TestApp(app):
            await broker.publish(b"x", "held")
            await begun.wait()
        assert events == ["handled with a database", "database closed"]
        assert await lag(cluster, "held", "held") == 0

    limited(main)


def test_a_handler_that_takes_too_long_at_the_end_has_its_message_again(
    cluster: Embedded, example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled after the time limit."""
    monkeypatch.setattr(example, "STOP_SECONDS", 0.1)

    async def main() -> None:
        await create(cluster, "late")
        begun = asyncio.Queue[bytes]()
        cancelled: list[bytes] = []

        def application() -> tuple[Any, Any]:
            broker = example.LedgerMQBroker(cluster.namesrv)

            @broker.subscriber("late", group="late")
            async def handle(body: bytes) -> None:
                begun.put_nowait(body)
                try:
                    await asyncio.sleep(PATIENCE_SECONDS)
                except asyncio.CancelledError:
                    cancelled.append(body)
                    raise

            return broker, TestApp(example.LedgerMQApp(lifespan=broker.lifespan))

        broker, first = application()
        async with first:
            await broker.publish(b"x", "late")
            assert await begun.get() == b"x"
        assert cancelled == [b"x"]
        async with application()[1]:
            assert await begun.get() == b"x"

    limited(main)


def test_misuse_is_refused(example: Any) -> None:
    """What could not be done as asked is not begun."""
    broker = example.LedgerMQBroker()
    app = example.LedgerMQApp(lifespan=broker.lifespan)
    with pytest.raises(IncorrectState, match="nothing was sent"):
        asyncio.run(broker.publish(b"x", "t"))
    with pytest.raises(SetupError, match="NackMessage"):
        broker.subscriber("t", group="g", ack_policy=AckPolicy.MANUAL)
    broker.subscriber("t", group="g")(print)
    with pytest.raises(SetupError, match="its own"):
        broker.subscriber("u", group="g")
    for hook in (app.on_startup, app.after_startup):
        with pytest.raises(SetupError, match="not registered"):
            hook(print)


SHOP = """
import asyncio
from faststream_broker import LedgerMQApp, LedgerMQBroker

broker = LedgerMQBroker()

@broker.subscriber("carts", group="shop", max_workers=5)
async def order(number: int) -> None:
    print("begun", flush=True)
    await asyncio.sleep(0.5)
    print("handled", flush=True)

app = LedgerMQApp(lifespan=broker.lifespan)
"""


def test_the_command_of_faststream_ends_in_order_at_sigterm(cluster: Embedded, example: Any, tmp_path: Path) -> None:
    """Handlers finish what they have, and nothing that they have handled comes again."""
    (tmp_path / "shop.py").write_text(SHOP)

    async def order() -> None:
        broker = example.LedgerMQBroker(cluster.namesrv)
        async with TestApp(example.LedgerMQApp(lifespan=broker.lifespan)):
            await asyncio.gather(*(broker.publish(number, "carts") for number in range(20)))

    limited(order)
    command = [sys.executable, "-m", "faststream", "run", "shop:app"]
    environment = {
        **os.environ,
        "LEDGERMQ_NAMESRV": cluster.namesrv,
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE.parent), str(tmp_path), *sys.path]),
    }
    printed: list[str] = []
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=tmp_path) as service,
    ):
        assert service.stdout is not None
        try:
            for line in service.stdout:
                printed.append(line.strip())
                if len(printed) == 5:
                    service.send_signal(signal.SIGTERM)
        finally:
            service.kill()
    logged = (tmp_path / "log").read_text()
    assert 5 <= printed.count("handled") == printed.count("begun") < 20
    assert "shut down gracefully" in logged
    assert "Traceback" not in logged
    assert asyncio.run(lag(cluster, "carts", "shop")) == 20 - printed.count("handled")
