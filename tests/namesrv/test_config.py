"""The configuration of a name server and its KV configuration."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.errors import JsonError
from ledgermq.namesrv.config import CHANGEABLE, NamesrvConfig, read_namesrv_conf
from ledgermq.namesrv.errors import BadNamesrvConfig
from ledgermq.namesrv.kv_config import ENTRY_CHARACTERS, ORDER_TOPIC_CONFIG, KvConfig
from ledgermq.testing.logs import capture_logs


def test_rocketmq_s_keys_are_read_and_unknown_ones_named() -> None:
    """A file of RocketMQ's can be given as it is; what is unknown may be a secret, which request 319 must not show."""
    with capture_logs() as events:
        config = read_namesrv_conf("listenPort=9999\norderMessageEnable = true\nrocketmqHome=/opt/mq\nhaSecret=hush\n")
    assert events == [{"event": "unknown_config_keys_ignored", "log_level": "warning", "keys": ["haSecret", "rocketmqHome"]}]

    assert (config.listen_port, config.order_message_enable) == (9999, True)
    assert read_namesrv_conf(config.to_properties()) == config
    assert "hush" not in config.to_properties()


@pytest.mark.parametrize(("key", "meant"), [("listenport", "listenPort"), ("kvConfigPat", "kvConfigPath")])
def test_a_misspelt_key_is_refused_with_the_key_that_was_meant(key: str, meant: str) -> None:
    """As by a broker: a name server that ignored `listenport` would listen elsewhere than its operator believes."""
    with pytest.raises(BadNamesrvConfig, match=f"{key} must be spelt {meant}, or left out"):
        read_namesrv_conf(f"{key}=3")


@pytest.mark.parametrize(
    "line",
    [
        "listenPort=x",
        "listenPort=65536",
        "listenPort=-1",
        "orderMessageEnable=yes",
        "scanNotActiveBrokerInterval=0",
        "serverChannelMaxIdleTimeSeconds=0",
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(line: str) -> None:
    """The error says which key, what was given and what is allowed."""
    key, _, value = line.partition("=")

    with pytest.raises(BadNamesrvConfig, match=f"{key} must be .* \\(got '{value}'\\)"):
        read_namesrv_conf(line)


def test_the_defaults_are_rocketmq_s() -> None:
    """Port 9876, order configuration for brokers but not in routes."""
    config = NamesrvConfig()

    assert (config.listen_port, config.return_order_topic_config_to_broker, config.order_message_enable) == (9876, True, False)


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), st.text())))
def test_a_kv_configuration_is_read_back(table: dict[str, dict[str, str]]) -> None:
    """Namespaces, keys and values survive the file, whatever their characters."""
    kv_config = KvConfig()
    for namespace, entries in table.items():
        for key, value in entries.items():
            kv_config = kv_config.with_value(namespace, key, value)

    read = KvConfig.from_bytes(kv_config.to_bytes())

    for namespace, entries in table.items():
        assert (read.namespace(namespace) or {}) == entries


def test_deleting_leaves_the_other_keys() -> None:
    """A key that is not there may be deleted too."""
    kv_config = KvConfig.from_bytes(b'{"configTable":{"ns":{"a":"1","b":"2"}}}')

    kv_config = kv_config.without("ns", "a").without("ns", "a").without("other", "a")

    assert kv_config.namespace("ns") == {"b": "2"}
    assert kv_config.get("ns", "a") is None
    assert kv_config.namespace("other") is None


def test_a_namespace_without_keys_takes_no_room() -> None:
    """Else the bound of all namespaces could be used up by names alone; brokers still get an empty order configuration."""
    kv_config = KvConfig().with_value("ns", "a", "1").with_value(ORDER_TOPIC_CONFIG, "T", "b:4")

    kv_config = kv_config.without("ns", "a").without(ORDER_TOPIC_CONFIG, "T")

    assert kv_config.namespace("ns") is None
    assert kv_config.namespace(ORDER_TOPIC_CONFIG) == {}
    assert kv_config.characters == ENTRY_CHARACTERS + len(ORDER_TOPIC_CONFIG)


def test_many_small_entries_count_for_what_encoding_them_takes() -> None:
    """Else a million keys without values would fit, whose table takes a second of the event loop at each registration."""
    kv_config = KvConfig().with_value("ns", "a", "").with_value("ns", "b", "1")

    assert kv_config.characters == 3 * ENTRY_CHARACTERS + len("nsab1")


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"configTable":5}', b'{"configTable":{"a":5}}']))
def test_a_damaged_file_is_refused_or_read_but_nothing_else(content: bytes) -> None:
    """Whatever lies on the disk, the only error is JsonError."""
    with contextlib.suppress(JsonError):
        KvConfig.from_bytes(content)


@pytest.mark.parametrize("key", sorted(CHANGEABLE))
def test_what_may_be_changed_through_the_network_is_a_key(key: str) -> None:
    """A typing error in the list would refuse the key for good."""
    assert key in NamesrvConfig().entries()
