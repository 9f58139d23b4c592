"""What the events of tables cost: bytes of the log and processor time for the commits of so many active queues.

A queue is active if its group has moved on since the last commit, which clients make every five seconds (RocketMQ's
`persistConsumerOffsetInterval`). Each commit is one row of an event; the figures are those of one master that appends and
derives them, for one period and for a day.
"""

import argparse
import json
import logging
import tempfile
import time

import trio

from ledgermq.broker.config import config_of
from ledgermq.broker.opening import open_broker
from ledgermq.broker.tables.topics import TopicConfig

PERIOD_SECONDS = 5
QUEUES_PER_TOPIC = 8


async def measure(queues: int, periods: int) -> dict[str, float]:
    """Commit on every queue once a period, and return what that has cost."""
    with tempfile.TemporaryDirectory() as directory:
        config = config_of({"storePathRootDir": directory, "listenPort": "0", "bindAddress": "127.0.0.1"})
        async with open_broker(config) as broker:
            names = [f"orders-of-region-{number}" for number in range(queues // QUEUES_PER_TOPIC)]
            for start in range(0, len(names), 1000):
                broker.table_log.put_topics(
                    *(TopicConfig(name, QUEUES_PER_TOPIC, QUEUES_PER_TOPIC) for name in names[start : start + 1000])
                )
            spent, began = 0.0, broker.store.log.max_offset
            for period in range(1, periods + 1):
                for name in names:
                    for queue_id in range(QUEUES_PER_TOPIC):
                        broker.offsets.commit("billing-service", name, queue_id, period)
                    await trio.lowlevel.checkpoint()
                before = time.process_time()
                await broker.table_log.append_gathered()
                await broker.store.derived(broker.table_log.changed_end)
                spent += time.process_time() - before
            size = broker.store.log.max_offset - began
    rows = queues * periods
    day = 24 * 3600 / PERIOD_SECONDS
    return {
        "queues": queues,
        "bytes_a_row": round(size / rows, 1),
        "us_a_row": round(spent / rows * 1e6, 1),
        "mib_a_day": round(size / periods * day / (1 << 20)),
        "cpu_percent": round(100 * spent / periods / PERIOD_SECONDS, 2),
    }


def main() -> None:
    """Print a line of JSON for each number of queues."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--periods", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for queues in arguments.queues:
        print(json.dumps(trio.run(measure, queues, arguments.periods)), flush=True)


if __name__ == "__main__":
    main()
