"""The services of a broker, and the parts of the broker that each of them uses."""

from __future__ import annotations

from collections.abc import Iterator

from ..remoting.dispatcher import Service
from .access.positions import Positions
from .admin.access import AccessAdministration
from .admin.inspection import Inspection
from .admin.queries import Queries
from .admin.relay import Relay
from .admin.runtime import Runtime
from .admin.topics_and_groups import Administration
from .broker import Broker
from .requests.lock_requests import LockRequests
from .requests.offset_requests import OffsetRequests
from .requests.retry import SendBack
from .requests.send import SendHandler
from .requests.slave_sync import SlaveSync
from .tables.deletions import Deletions


def services_of(broker: Broker) -> Iterator[Service]:
    """All that answers requests, in no particular order."""
    config, clock, store, role = broker.live_config, broker.world.clock, broker.store, broker.role
    topics, groups, offsets = broker.topics, broker.groups, broker.offsets
    table_log, decides = broker.table_log, broker.replication.decides
    positions = Positions(store, broker.access)
    yield from (broker.pulls, broker.clients, broker.registration, broker.settings, broker.numbered)
    yield SendHandler(
        config=config,
        store=store,
        topics=topics,
        table_log=table_log,
        groups=groups,
        stats=broker.stats,
        randomness=broker.world.randomness,
        orderly=lambda group: broker.locks.are_held(group, clock.monotonic()),
        registration=broker.registration,
        numbered=broker.numbered,
        record_max=broker.mode.record_max,
    )
    yield SendBack(
        config=config,
        store=store,
        positions=positions,
        role=role,
        topics=topics,
        table_log=table_log,
        groups=groups,
        stats=broker.stats,
        randomness=broker.world.randomness,
    )
    yield OffsetRequests(
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        commits=broker.commits,
        clock=clock,
        policy=decides,
    )
    yield LockRequests(
        broker_name=broker.config.broker_name,
        clock=clock,
        topics=topics,
        locks=broker.locks,
        table_log=table_log,
        store=store,
        policy=decides,
    )
    yield SlaveSync(tables=broker.tables, role=role, store=store, secret=broker.config.ha_secret.encode())
    yield AccessAdministration(
        table_log=table_log, configured=broker.config.configured_users, is_checked=broker.access is not None
    )
    yield Queries(config=config, store=store, positions=positions, consumers=broker.consumers)
    yield Runtime(
        clock=clock, store=store, stats=broker.stats, delay=broker.delay, replication_status=broker.replication.status
    )
    yield Administration(
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        consumers=broker.consumers,
        deletions=Deletions(store=store, role=role, tables=broker.tables, table_log=table_log),
        table_log=table_log,
        known=broker.registration,
        policy=decides,
    )
    yield Inspection(
        config=config,
        address=broker.address,
        clock=clock,
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        stats=broker.stats,
        consumers=broker.consumers,
        producers=broker.producers,
    )
    yield Relay(
        config=config,
        store=store,
        positions=positions,
        topics=topics,
        groups=groups,
        offsets=offsets,
        commits=broker.commits,
        consumers=broker.consumers,
        table_log=table_log,
        group_reset=broker.pulls.group_reset,
    )
    yield from broker.mode.services()
