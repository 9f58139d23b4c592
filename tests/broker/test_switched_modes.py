"""A classic pair that goes over to a controller, and back, with its messages; on real sockets and files."""

from __future__ import annotations

from pathlib import Path

import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.testing.embedded import OpenEmbedded, open_embedded

# Client and brokers share one loop here, so what is slow on a loaded machine waits instead of failing.
SECONDS_MAX = 60


async def test_a_classic_pair_is_switched_to_a_controller_and_back(tmp_path: Path) -> None:
    sent: list[str] = []
    for mode in ("ha", "controller", "ha"):
        with trio.fail_after(SECONDS_MAX):
            async with open_embedded(mode=mode, nodes=2, store=str(tmp_path)) as cluster:
                if mode == "ha":
                    await _followed(cluster)
                async with open_producer(cluster.namesrv, "producers") as producer:
                    for number in range(3):
                        result = await producer.send(Message("orders", f"{mode} {len(sent)}-{number}".encode()))
                        assert result.status.name == "SEND_OK"
                        sent.append(f"{mode} {len(sent)}-{number}")
                got = await _all_of("orders", cluster.namesrv, f"readers-{len(sent)}", len(sent))
        assert sorted(got) == sorted(sent)


async def _followed(cluster: OpenEmbedded) -> None:
    """Wait until the slave has joined its master."""
    while not any(broker.node.is_following for broker in cluster.brokers):  # noqa: ASYNC110 - no event is set for this
        await trio.sleep(0.01)


async def _all_of(topic: str, namesrv: str, group: str, count: int) -> list[str]:
    got: list[str] = []
    async with open_consumer(namesrv, group, topic, consume_from=ConsumeFrom.FIRST) as consumer:
        async for message in consumer:
            got.append(message.body.decode())
            if len(got) == count:
                break
    return got
