"""A broker's node of a DLedger group: what becomes of its store when the ledger begins anew."""

from __future__ import annotations

import pytest
import trio

from ledgermq.broker.dledger import DLedgerReplication
from ledgermq.client.producer import open_producer
from ledgermq.message.message import Message

from ...broker.test_dledger import Group, Node, check_nodes_agree, scenario


async def expire_all_but_the_newest_files(node: Node) -> None:
    """Delete what retention would delete one day."""
    assert node.broker is not None
    store = node.broker.store
    assert store.cleaner is not None
    while len(files := store.log.files()) > 3:
        await store.cleaner.before_removal(files[0].end)
        store.log.remove_oldest()
    await store.cleaner.follow_log()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5, 2.0])
@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_a_node_that_ends_right_after_its_ledger_began_anew_starts_again_and_can_lead(how: str, seconds: float) -> None:
    """The store's recovery mark tells of the old ledger; it must not make the next start look for what was dropped."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 20)
            master = await group.master()
            away = next(node for node in group.nodes if node is not master)
            await trio.sleep(12)
            await away.end("stop")
            for _ in range(60):
                await producer.send(Message("U", group.lots.randbytes(5000)))
            await trio.sleep(12)
            for node in group.nodes:
                if node is not away:
                    await expire_all_but_the_newest_files(node)
            await group.nursery.start(away.run)
            assert away.broker is not None
            with trio.fail_after(30):
                while away.broker.store.log.min_offset == 0:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.001)
            await trio.sleep(seconds)
            await away.end(how)

            await group.nursery.start(away.run)
            await group.produce(producer, 5)
            await check_nodes_agree(group)
            master = await group.master()
            assert master.broker is not None
            assert isinstance(master.broker.replication, DLedgerReplication)
            assert isinstance(away.broker.replication, DLedgerReplication)
            master.broker.replication.node.replica.transfer(away.broker.replication.node.settings.self_id)
            with trio.fail_after(30):
                while group.masters() != [away]:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
            await group.produce(producer, 10)
            await check_nodes_agree(group)

    scenario(story)
