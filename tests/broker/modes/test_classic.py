"""RocketMQ's keys of replication as settings of a classic node."""

from __future__ import annotations

import pytest

from ledgermq.broker.config import BrokerConfig, read_broker_conf
from ledgermq.broker.modes.classic import ha_settings
from ledgermq.ha.classic.protocol import TransferLimits
from ledgermq.ha.classic.settings import HaSettings


@pytest.mark.parametrize(("listen_port", "ha_listen_port", "expected"), [(10911, 0, 10912), (10911, 11000, 11000), (0, 0, 0)])
def test_the_ha_port_is_the_next_one_unless_it_is_set(listen_port: int, ha_listen_port: int, expected: int) -> None:
    """A broker on a free port takes a free HA port."""
    config = BrokerConfig(listen_port=listen_port, ha_listen_port=ha_listen_port)

    assert ha_settings(config, 10911).listen_port == expected


def test_every_key_of_replication_reaches_it() -> None:
    """Under RocketMQ's names, in its units: milliseconds and bytes."""
    config = read_broker_conf(
        """
        brokerRole=SYNC_MASTER
        haProtocol=rocketmq
        haSecret=s
        haSendHeartbeatInterval=1500
        haHousekeepingInterval=7000
        haTransferBatchSize=4096
        mappedFileSizeCommitLog=8192
        inSyncReplicas=4
        minInSyncReplicas=3
        haMaxGapNotInSync=1000
        slaveTimeout=250
        syncFrom=first
        bindAddress=10.0.0.1
        haListenPort=11
        """
    )

    assert ha_settings(config, 10911) == HaSettings(
        protocol="rocketmq",
        secret=b"s",
        listen_host="10.0.0.1",
        listen_port=11,
        limits=TransferLimits(heartbeat_seconds=1.5, housekeeping_seconds=7.0, batch_size=4096, segment_size=8192),
        sync_master=True,
        in_sync_replicas=4,
        min_in_sync_replicas=3,
        gap_max=1000,
        slave_timeout_seconds=0.25,
        from_first=True,
    )


def test_rocketmq_s_defaults_are_kept_but_for_the_silent_one() -> None:
    """By default a SYNC_MASTER waits for one slave, for three seconds; an ASYNC_MASTER for none."""
    defaults = ha_settings(BrokerConfig(), 10911)

    assert defaults == HaSettings(limits=TransferLimits(segment_size=1 << 30), in_sync_replicas=1)
    assert defaults.limits == TransferLimits(5.0, 20.0, 10.0, 32 * 1024, 1 << 30)
    assert (defaults.replicas, defaults.slave_timeout_seconds, defaults.gap_max) == (1, 3.0, 256 * 1024 * 1024)
    assert ha_settings(BrokerConfig(broker_role="SYNC_MASTER"), 10911).replicas == 2
