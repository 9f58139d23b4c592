"""The broker's configuration."""

from __future__ import annotations

import pytest

from ledgermq.broker.config import BrokerConfig, config_of, read_broker_conf
from ledgermq.broker.errors import BadConfig
from ledgermq.ha.controller.protocol import HEARTBEAT_TIMEOUT_MILLIS_MAX
from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address

CONF = """
# a broker
brokerClusterName = c1
brokerName=b1
brokerId=0
brokerIP1=10.0.0.1
listenPort=10921
namesrvAddr=ns1:9876;ns2:9877
storePathRootDir=/var/store
mappedFileSizeCommitLog=16m
flushDiskType=SYNC_FLUSH
deleteWhen=04;16
autoCreateTopicEnable=FALSE
"""


def test_keys_of_rocketmq_are_read() -> None:
    """A `broker.conf` as RocketMQ's users write it sets our fields, sizes with a unit included."""
    config = read_broker_conf(CONF)

    assert config.broker_cluster_name == "c1"
    assert config.broker_ip1 == "10.0.0.1"
    assert config.listen_port == 10921
    assert config.name_servers == [Address("ns1", 9876), Address("ns2", 9877)]
    assert config.mapped_file_size_commit_log == 16 * 1024 * 1024
    assert config.auto_create_topic_enable is False


def test_the_store_gets_its_part() -> None:
    """Every key that the store knows reaches the store's configuration."""
    store = read_broker_conf(CONF).store_config()

    assert store.store_path_root_dir == "/var/store"
    assert store.flush_disk_type == "SYNC_FLUSH"
    assert store.delete_when == "04;16"
    assert store.mapped_file_size_commit_log == 16 * 1024 * 1024


@pytest.mark.parametrize("key", ["enableSlaveActingMaster"])
def test_protection_that_is_not_there_is_refused_and_not_left_out(key: str) -> None:
    """Who switched on access control or leader election must not run without it because the key is unknown here."""
    with pytest.raises(BadConfig, match=f"{key} must be false: .*\\(got 'true'\\)"):
        config_of({key: "true"})
    assert config_of({key: "false"}).others == {key: "false"}


def test_two_ways_to_elect_a_master_are_refused() -> None:
    with pytest.raises(BadConfig, match="enableControllerMode must be false with enableDLegerCommitLog=true"):
        config_of({"enableControllerMode": "true", "enableDLegerCommitLog": "true", "controllerAddr": "10.0.0.1:9878"})


@pytest.mark.parametrize("entries", [{}, {"controllerAddr": " ; "}])
def test_controller_mode_without_a_controller_is_refused(entries: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="controllerAddr must be all controllers"):
        config_of({"enableControllerMode": "true", **entries})


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ({"brokerHeartbeatInterval": "1000"}, "more than brokerHeartbeatInterval, which is 1000"),
        ({"controllerHeartBeatTimeoutMills": "200"}, "more than brokerHeartbeatInterval, which is 200"),
        ({"controllerHeartBeatTimeoutMills": str(HEARTBEAT_TIMEOUT_MILLIS_MAX + 1)}, "a number from 1 to 600000"),
    ],
)
def test_a_master_whose_heartbeats_would_count_too_short_or_be_refused_does_not_start(
    entries: dict[str, str], allowed: str
) -> None:
    """It would be dead between two of them. The file of a broker of RocketMQ may name the first of these keys only."""
    controlled = {"enableControllerMode": "true", "controllerAddr": "10.0.0.1:9878"}
    with pytest.raises(BadConfig, match=f"controllerHeartBeatTimeoutMills must be {allowed}"):
        config_of(controlled | entries)

    config_of(controlled | {"controllerHeartBeatTimeoutMills": str(HEARTBEAT_TIMEOUT_MILLIS_MAX)})


def test_controllers_without_their_mode_are_refused() -> None:
    with pytest.raises(BadConfig, match="controllerAddr must be empty without enableControllerMode=true"):
        config_of({"controllerAddr": "10.0.0.1:19876"})


@pytest.mark.parametrize("broker_id", ["-1", "0", "3"])
def test_a_controller_gives_role_and_id_whatever_the_file_says(broker_id: str) -> None:
    entries = {"brokerRole": "SLAVE", "brokerId": broker_id, "enableControllerMode": "true", "controllerAddr": "10.0.0.1:9878"}

    assert not config_of(entries).is_slave


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flushdisktype", "flushDiskType"),
        ("flushDsikType", "flushDiskType"),
        ("brokerRoles", "brokerRole"),
        ("brokerIP3", "brokerIP1"),
        ("enableDledgerCommitLog", "enableDLegerCommitLog"),
        ("aclEnabled", "aclEnable"),
        ("tls.server.keypath", "tls.server.keyPath"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_key_that_was_meant(key: str, meant: str) -> None:
    """A master that ignored `flushDiskTyp` would lose, after a power cut, what its operator believes to be synced."""
    with pytest.raises(BadConfig, match=f"{key} must be spelt {meant}, or left out"):
        config_of({key: "SYNC_FLUSH"})


@pytest.mark.parametrize("key", ["flushCommitLogLeastPages", "putMsgIndexHightWater", "maxDelayTime", "timerMaxDelaySec"])
def test_keys_of_rocketmq_are_no_misspellings(key: str) -> None:
    """None of those that Apache's configuration classes of 4.9.8 and 5.5.0 have is that near to one of ours."""
    assert config_of({key: "1"}).others == {key: "1"}


def test_unknown_keys_are_named_in_one_warning_and_kept() -> None:
    """A key of RocketMQ's that we do not know is no error, is logged once and shown again."""
    with capture_logs() as events:
        config = read_broker_conf("sendMessageThreadPoolNums=8\nuseTLS=false")

    assert [(event["event"], event["keys"]) for event in events] == [
        ("unknown_config_keys_ignored", ["sendMessageThreadPoolNums", "useTLS"])
    ]
    assert config.others == {"sendMessageThreadPoolNums": "8", "useTLS": "false"}
    assert "sendMessageThreadPoolNums=8\n" in config.to_properties()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "70000"),
        ("listenPort", "ten"),
        ("brokerRole", "MASTER"),
        ("flushDiskType", "sync"),
        ("namesrvAddr", "ns1"),
        ("deleteWhen", "24"),
        ("messageDelayLevel", "1s 5x"),
        ("brokerName", "a b"),
        ("autoCreateTopicEnable", "yes"),
        ("maxMessageSize", "1g"),
        ("brokerId", "1"),
        ("brokerIP1", "999.1.1.1"),
        ("brokerIP2", "10.0.0"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(key: str, value: str) -> None:
    """The error names key, value and what is allowed."""
    with pytest.raises(BadConfig) as caught:
        read_broker_conf(f"{key}={value}")

    assert caught.value.key == key
    assert key in str(caught.value)
    assert caught.value.allowed in str(caught.value)


def test_a_slave_needs_an_id_above_0() -> None:
    """A slave that would take the master's id is refused."""
    with pytest.raises(BadConfig):
        BrokerConfig(broker_role="SLAVE")

    assert BrokerConfig(broker_role="SLAVE", broker_id=1).is_slave


def test_properties_are_read_back() -> None:
    """What is shown to an administrator, read again, makes the same configuration."""
    config = read_broker_conf(CONF)

    assert read_broker_conf(config.to_properties()) == config


def test_the_secret_is_not_shown() -> None:
    """GET_BROKER_CONFIG must not tell what master and slave share."""
    assert "s3cret" not in read_broker_conf("haSecret=s3cret").to_properties()


def test_entries_change_a_configuration_that_runs() -> None:
    """UPDATE_BROKER_CONFIG replaces the keys it names and leaves the others alone."""
    config = config_of({"fileReservedTime": "24"}, read_broker_conf(CONF))

    assert config.file_reserved_time == 24
    assert config.broker_name == "b1"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("dLegerSelfId=n0", "dLegerPeers"),
        ("dLegerPeers=n0-h:1", "a letter and a number"),
        ("dLegerPeers=n0-h:1\ndLegerSelfId=node", "a letter and a number"),
        ("dLegerPeers=n0-h:1\ndLegerSelfId=n0\nbrokerRole=SLAVE\nbrokerId=1", "elects its master"),
        ("dLegerPeers=n0-h:1\ndLegerSelfId=n0\nraftFlush=maybe", "sync, async"),
        ("dLegerPeers=n0-h:1\ndLegerSelfId=n0\nstorePathDLedgerCommitLog=/a,/b", "one directory"),
        ("dLegerPeers=n0-h:1\ndLegerSelfId=n0\nraftDialect=java\nhaSecret=s", "cannot prove"),
    ],
)
def test_a_dledger_group_that_cannot_work_is_refused(entries: str, said: str) -> None:
    """The key is named, with what it may be."""
    with pytest.raises(BadConfig, match=said):
        read_broker_conf(f"enableDLegerCommitLog=true\n{entries}\n")


def test_a_node_of_a_dledger_group_has_the_id_after_its_number_while_it_follows() -> None:
    """As RocketMQ numbers them; 0 is the master's."""
    config = read_broker_conf("enableDLegerCommitLog=true\ndLegerSelfId=n2\ndLegerPeers=n0-a:1;n1-b:1;n2-c:1\n")
    assert config.replica_id == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storePathCommitLog", "/a/commitlog,/b/commitlog"),
        ("storePathCommitLog", "/a/commitlog:/b/commitlog"),
        ("readOnlyCommitLogStorePaths", "/c/commitlog"),
        ("readOnlyCommitLogStorePaths", "/c/commitlog:/d/commitlog"),
        ("totalReplicas", "3"),
        ("enableSlaveActingMaster", "true"),
        ("enableAutoInSyncReplicas", "true"),
        ("enableConsumeQueueExt", "true"),
        ("enableMultiDispatch", "true"),
        ("storeType", "defaultRocksDB"),
        ("messageStorePlugIn", "org.example.AuditStore"),
    ],
)
def test_a_key_that_promises_what_is_not_there_stops_the_start(key: str, value: str) -> None:
    """To pass over it would lose messages, or a safety that was asked for."""
    with pytest.raises(BadConfig, match=key):
        config_of({key: value})


def test_a_key_that_promises_nothing_more_than_is_there_is_taken() -> None:
    """RocketMQ's defaults, as its own tools write them into a file."""
    config_of({"totalReplicas": "1", "readOnlyCommitLogStorePaths": "", "enableSlaveActingMaster": "false"})


def test_a_pool_of_buffers_before_the_log_has_no_effect_and_is_named() -> None:
    """It would weaken what an answer promises, so passing over it takes nothing from anybody."""
    with capture_logs() as events:
        config_of({"transientStorePoolEnable": "true"})

    assert [event["keys"] for event in events] == [["transientStorePoolEnable"]]
