"""Send and receive messages with a name server, a broker, a producer and a consumer, all in this process.

Run it with `make demo`. It ends with status 0 when every message was received. Given a directory, it keeps the store there and
adds messages for the Spark job that follows.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from contextlib import nullcontext

import click
import trio

from ledgermq import Message, open_admin, open_consumer, open_producer
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.world.real import real_world

MESSAGES = 5
ORDERS, PER_BATCH = 20_000, 200


def say(who: str, colour: str, text: str) -> None:
    click.echo(f"{click.style(f'{who:>11}', fg=colour, bold=True)}  {text}", color=True)


async def main(keep: str | None) -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() if keep is None else nullcontext(keep) as store:
        async with open_namesrv(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"), real_world()) as namesrv:
            say("name server", "blue", f"listens on {namesrv.address}")
            config = BrokerConfig(
                namesrv_addr=str(namesrv.address), listen_port=0, broker_ip1="127.0.0.1", store_path_root_dir=store
            )
            async with open_broker(config) as broker:
                say("broker", "magenta", f"listens on {broker.address}, keeps its log in {store}/commitlog")
                say("broker", "magenta", f"ready {1000 * (time.perf_counter() - started):.0f} ms after the start")
                with trio.fail_after(30):
                    await go_round(str(namesrv.address))
                if keep is not None:
                    await fill(str(namesrv.address))
        say("broker", "magenta", "has stopped, everything is synced")
    say("demo", "green", f"all of it took {time.perf_counter() - started:.1f} s; the README has five-minute guides")


async def go_round(namesrv: str) -> None:
    async with open_admin(namesrv) as admin, open_producer(namesrv, group="demo-producers") as producer:
        await admin.create_topic("orders", queues=4)
        for number in range(MESSAGES):
            message = Message("orders", b"order %d" % number, tag="paid" if number % 2 else "new", keys=[f"order-{number}"])
            result = await producer.send(message)
            where = f"queue {result.queue.queue_id}, {result.status.name}"
            say("producer", "yellow", f"sent 'order {number}' ({message.tag}): {where}")

        async with open_consumer(namesrv, "demo-consumers", "orders", consume_from=ConsumeFrom.FIRST) as consumer:
            received: set[str] = set()
            async for got in consumer:
                text = got.body.decode()
                if text == "order 3" and got.reconsume_times == 0:
                    say("consumer", "red", f"got '{text}' and does not want it now: the broker will bring it again in a second")
                    await got.retry(delay_level=1)
                    continue
                received.add(text)
                again = f" (delivery {got.reconsume_times + 1})" if got.reconsume_times else ""
                say("consumer", "cyan", f"got '{text}' tagged {got.tag}{again}")
                if len(received) == MESSAGES:
                    await got.ack()
                    break

        (found,) = await admin.messages_by_key("orders", "order-4")
        say("admin", "green", f"found key order-4 again: message {found.message_id}, stored at {found.store_timestamp}")


async def fill(namesrv: str) -> None:
    """Send the messages that the Spark job then reads from the store's files."""
    draw = random.Random(1)  # noqa: S311 - draws orders
    async with open_producer(namesrv, group="demo-producers") as producer:
        for begin in range(0, ORDERS, PER_BATCH):
            orders = [
                Message(
                    "orders",
                    b'{"order":%d,"amount":%d}' % (number, draw.randrange(1, 200)),
                    tag=draw.choice(("new", "paid", "paid", "shipped")),
                    keys=[f"customer-{draw.randrange(50)}"],
                )
                for number in range(begin, begin + PER_BATCH)
            ]
            await producer.send_batch(orders)
    say("producer", "yellow", f"sent {ORDERS} more orders, for the job on Spark")


if __name__ == "__main__":
    logging.getLogger("ledgermq").setLevel(logging.ERROR)
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
