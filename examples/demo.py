"""A message goes round: a name server, a broker, a producer and a consumer, all in this one process.

Run it with `make demo`. It ends with status 0 when every message has come back.
"""

from __future__ import annotations

import logging
import tempfile
import time

import click
import trio

from ledgermq import Message, open_admin, open_consumer, open_producer
from ledgermq.broker.broker import open_broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.world.real import real_world

MESSAGES = 5


def say(who: str, colour: str, text: str) -> None:
    click.echo(f"{click.style(f'{who:>11}', fg=colour, bold=True)}  {text}", color=True)


async def main() -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as store:
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


if __name__ == "__main__":
    logging.getLogger("ledgermq").setLevel(logging.ERROR)
    trio.run(main)
