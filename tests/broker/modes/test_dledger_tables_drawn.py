"""Drawn requests to a DLedger group under drawn faults: whoever leads afterwards, all nodes have the tables that the log has.

The simulator compares topics, groups and queues while others commit and lock. Here everything comes to rest, and each node
leads once, so that commits, locks and positions of delayed messages must be equal, too, also on nodes that were deposed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.tables import table_log
from ledgermq.message.json import dumps
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.history import End
from ledgermq.world.network import Address

from ...ha.dledger.test_node import hand_over
from ..tables.test_tables import tables_of, up
from .test_dledger import Group, scenario
from .test_dledger_requests import SENT, TOPIC

CLIENTS, BLOWS = 6, 1
DELAYED = "DELAY\x011\x02"


EXPIRY = {"fileReservedTime": "0", "mappedFileSizeCommitLog": "16384", "maxMessageSize": "8000"}
"""Settings with which every request for it deletes all files of the log but the last one."""


def drawn(rng: random.Random, *, expiry: bool) -> RemotingCommand:
    """A request about one of three topics and groups, or one that lets messages expire."""
    topic, group, queue_id = f"T{rng.randrange(3)}", f"g{rng.randrange(3)}", str(rng.randrange(2))
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": int(queue_id)}
    locks = dumps({"consumerGroup": group, "clientId": f"c{rng.randrange(2)}", "mqSet": [queue]})
    send = {**SENT, "topic": topic, "queueId": queue_id, "defaultTopicQueueNums": "2"}
    commit = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": str(rng.randrange(30))}
    reset = {"group": group, "topic": topic, "timestamp": rng.choice(("-1", "0")), "isForce": "true"}
    clean = rng.choice(("true", "false"))
    requests: list[tuple[RequestCode, dict[str, str], bytes]] = [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": topic, "perm": rng.choice(("4", "6"))}, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps({"groupName": group, "retryMaxTimes": rng.randrange(5)})),
        (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": group, "topic": topic, "readable": clean}, b""),
        *((RequestCode.UPDATE_CONSUMER_OFFSET, commit, b""),) * 3,
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, b""),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": group, "destGroup": f"g{rng.randrange(3)}", "topic": topic}, b""),
        *((RequestCode.LOCK_BATCH_MQ, dict[str, str](), locks),) * 2,
        (RequestCode.UNLOCK_BATCH_MQ, {}, locks),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, b""),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": clean}, b""),
        *((RequestCode.SEND_MESSAGE, send, b"x"),) * 3,
        (RequestCode.SEND_MESSAGE, {**send, "properties": DELAYED}, b"x"),
    ]
    if expiry:  # messages that fill the files which expire
        requests += [
            *((RequestCode.SEND_MESSAGE, send, rng.randbytes(4000)),) * 10,
            *((RequestCode.DELETE_EXPIRED_COMMITLOG, dict[str, str](), b""),) * 2,
        ]
    return RemotingCommand(*rng.choice(requests))


async def ask_on_and_on(group: Group, rng: random.Random) -> None:
    """Send requests to the node that leads, or seems to, from its own host, so that a partition does not prevent it."""
    while True:
        await trio.sleep(rng.random() * 0.05)
        running = [node for node in group.nodes if node.broker is not None]
        expiry = "fileReservedTime" in group.settings
        candidates = running if rng.random() < 0.1 + 0.2 * expiry else group.masters()
        if candidates:
            node = rng.choice(candidates)
            try:
                async with connected(Address(node.host, 10911), network=node.machine.world().network) as channel:
                    with trio.move_on_after(0.7):
                        await channel.call(drawn(rng, expiry=expiry), 10.0)
            except (RemotingError, OSError):
                pass  # the node has ended


async def strike(group: Group, rng: random.Random) -> None:
    """Cut a node off, or end it, or end all of them; most often the leader."""
    masters = group.masters()
    victim = masters[0] if masters and rng.random() < 0.8 else rng.choice(group.nodes)
    blow = rng.choice((None, None, None, *End, "all"))
    if blow is None:
        group.fabric.part([victim.host], [node.host for node in group.nodes if node is not victim])
        await trio.sleep(rng.choice((0.1, 0.3, 0.5, 1.0, 6.0)))
        group.fabric.heal()
        return
    victims = list(group.nodes) if blow == "all" else [victim]
    for node in victims:
        await node.process.end(blow if isinstance(blow, End) else End.POWER)
    await trio.sleep(rng.choice((0.1, 1.0, 3.0)))
    for node in rng.sample(victims, len(victims)):
        await group.nursery.start(node.process.run)


def all_tables_of(broker: Broker) -> dict[str, Any]:
    queues = broker.store.queues.table
    return {
        **tables_of(broker),
        "offsets": {key: dict(offsets) for key, offsets in broker.offsets.table.items() if offsets},
        "locks": sorted((group, *row) for group, _ in broker.locks.groups() for row in broker.locks.rows_of(group)),
        "positions of delayed messages": broker.delay.offsets(),
        "queues": {key: queue.max_offset for key, queue in queues.items() if queue.max_offset},
    }


MORE: list[tuple[int, dict[str, str]]] = [(0, {}), (1, {}), (2, {}), (3, {}), (6, EXPIRY), (7, EXPIRY)]


@pytest.mark.parametrize(
    ("seed", "settings"),
    [(4, EXPIRY), *(pytest.param(*drawn, marks=pytest.mark.slow) for drawn in MORE)],
    ids=lambda value: value if isinstance(value, int) else "expiry" if value else "all is kept",
)
def test_all_nodes_have_the_tables_of_whoever_leads(
    seed: int, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last leader is cut off and goes on deciding for a moment; when all is healed, each node leads once.

    If messages expire, the tables are appended again in records of two rows each, while requests change them and nodes end; a
    node that was away for too long begins anew, with what the log of the leader has.
    """
    monkeypatch.setattr(table_log, "ROWS_PER_RECORD_MAX", 2)

    async def story(group: Group) -> None:
        rng = random.Random(seed)
        async with trio.open_nursery() as clients:
            for _ in range(CLIENTS):
                clients.start_soon(ask_on_and_on, group, rng)
            for _ in range(BLOWS):
                await trio.sleep(rng.random() * 2)
                await strike(group, rng)
            deposed = await group.master()
            await trio.sleep(0.5)
            others = [node for node in group.nodes if node is not deposed]
            group.fabric.part([deposed.host], [node.host for node in others])
            await trio.sleep(0.7)  # what a leader decides at last that was cut off is on no other node
            clients.cancel_scope.cancel()
        await trio.sleep(2)
        group.fabric.heal()
        await trio.sleep(4)
        for node in (deposed, *others):
            if (leader := await group.master()) is not node:
                await hand_over(group, up(leader), node)
            await trio.sleep(2.5)
            expected = all_tables_of(up(node))
            for other in group.nodes:
                for name, table in all_tables_of(up(other)).items():
                    assert table == expected[name], (name, other.host, node.host, table, expected[name])

    scenario(story, seed, {"useServerSideResetOffset": "true", **settings})
