"""Full states, on a small scale; the full scale is `python -m harness.processes.full_states`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from harness.processes.full_states import (
    ACTS,
    GROUPS_OF_OFFSETS,
    LAGGING_GROUPS,
    LAST_ACTS,
    MEMBERS_GROUP,
    SENDS_OF_PRODUCER,
    FullStates,
    Sizes,
)
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.testing.ports import reserved_ports
from ledgermq.world.network import Address


@pytest.fixture
def metrics_port() -> Iterator[int]:
    with reserved_ports("127.0.0.1", 1) as (port,):
        yield port


@pytest.mark.slow
async def test_every_state_has_as_many_entries_as_its_size_says_and_every_act_is_carried_out(
    tmp_path: Path, metrics_port: int
) -> None:
    """A state that is not there, or an act that is refused, would measure nothing."""
    sizes, reports = Sizes().divided(200), list[str]()
    config = BrokerConfig(
        broker_name="faulty",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=6000,
        max_hash_slot_num=1000,
        max_index_num=4000,
        metrics_exporter_type="PROM",
        metrics_prom_exporter_port=metrics_port,
    )
    async with open_broker(config) as broker, trio.open_nursery() as nursery:
        metrics = Address("127.0.0.1", metrics_port)
        states = FullStates(Address("127.0.0.1", broker.port), nursery, sizes, reports.append, metrics)

        await states.fill()

        kept = sizes.topics - sizes.deletions
        assert sum(name.startswith("full-") for name in broker.topics.topics) == kept + 3
        offsets = (kept * sizes.queues + sizes.wide) * GROUPS_OF_OFFSETS + sizes.wide * (1 + LAGGING_GROUPS)
        assert sum(map(len, broker.offsets.table.values())) == offsets
        assert len(broker.consumers.groups[MEMBERS_GROUP].members) == sizes.members
        of_peers = [group for name, group in broker.consumers.groups.items() if name.startswith("full-of-peers")]
        assert [len(group.members) for group in of_peers] == [sizes.peers] * sizes.groups
        assert broker.store.max_offset("full-keys", 0) == sizes.keyed + sizes.producers * SENDS_OF_PRODUCER
        assert len(broker.numbered.table.producers) == sizes.producers
        assert len(broker.tables.access.users) == len(broker.tables.access.acls) == sizes.users
        assert len(broker.pulls.holds) == sizes.pulls
        assert sum(len(leases) for _, leases in broker.locks.groups()) == sizes.leases

        for act in (*ACTS, LAST_ACTS[0]):
            await act(states)

        assert not [report for report in reports if "answered" in report]
        assert len(broker.pulls.holds) <= sizes.pulls // 2 + 1
        nursery.cancel_scope.cancel()
