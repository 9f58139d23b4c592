"""Decoders of bodies, tables, configurations and the HA handshake: whatever arrives, only the declared error leaves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.broker.config import KEYS as BROKER_KEYS
from ledgermq.broker.config import BrokerConfig, read_broker_conf
from ledgermq.broker.errors import BadConfig
from ledgermq.broker.tables.groups import GroupTable
from ledgermq.broker.tables.offsets import ConsumerOffsets
from ledgermq.broker.tables.persistence import UNREADABLE
from ledgermq.broker.tables.topics import TopicTable
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import (
    Hello,
    NodeIdentity,
    Welcome,
    decode_hello,
    decode_welcome,
    encode_hello,
    encode_welcome,
)
from ledgermq.ha.errors import HaError
from ledgermq.message.batch import decode_batch, encode_batch
from ledgermq.message.errors import BadMessageId, CorruptBatch, JsonError
from ledgermq.message.json import dumps, loads, message_queue_of
from ledgermq.message.message import MessageId
from ledgermq.message.properties import decode_properties
from ledgermq.namesrv.config import KEYS as NAMESRV_KEYS
from ledgermq.namesrv.config import read_namesrv_conf
from ledgermq.namesrv.errors import BadNamesrvConfig
from ledgermq.namesrv.kv_config import KvConfig
from ledgermq.remoting.java_properties import read_properties, write_properties

CPU_SECONDS_MAX = 2.0
"""Of one input of the corpus: each takes milliseconds; a hang, or work that explodes, takes for ever."""

# ---------------------------------------------------------------------------------------------------------- JSON

BODIES = (
    b"",
    b"\xef\xbb\xbf",
    b"\xef\xbb\xbf{}",
    b"null",
    b"{",
    b"{{",
    b"{{}:",
    b"[" * 100_000,
    b"{{}:" * 100_000,
    b'{"a":' * 100_000,
    b"[{" * 50_000,
    b'{"a":[' * 50_000,
    b"{1:" * 50_000,
    b"{1:{1:" * 20_000 + b"1",
    b"{0:5,1:7}",
    b"{-0:1,00:2}",
    b"{1:2,\n\t 3 :4}",
    b'{"a":{"$ref":"$"}}',
    b'{"a":{"$ref":"$.a"}}',
    b'{"$ref":"$"}',
    b'{"$ref":5}',
    b'[{"$ref":"$[0]"}]',
    b'{"a":[1],"b":{"$ref":"$.a[9]"}}',
    b'{"a":1,"b":{"$ref":"' + b"$" * 100_000 + b'"}}',
    b'{"a":{"$ref":"..' + b"/.." * 10_000 + b'"}}',
    b'{{"$ref":"$.x.null"}:1}',
    b'{"a":[1],"b":[' + b",".join([b'{"$ref":"$.a"}'] * 20_000) + b"]}",
    b'{{"a":1}:{},{"$ref":"$.null"}:2,{"$ref":"$.null"}:3}',
    b'{{"a":"' + b"\\u0041" * 10_000 + b'"}:1}',
    b'{{}:"\\ud800"}',
    b'{{}:"\\"}',
    b'{{}:"' + b"\\" * 9999,
    b'{{}:"\xff"}',
    b"{{}:" + b"9" * 100_000 + b"}",
    b"{{}:-" + b"9" * 39 + b"}",
    b"{{}:1e999}",
    b"{{}:1e-999}",
    b"{{}:0." + b"1" * 400 + b"}",
    b"{" + b"9" * 100_000 + b":1}",
    b"{{}:tru}",
    b"{{}:nullnull}",
    b'"' + b"\\\\" * 100_000,
    b'"' * 99_999,
    b"{,}" * 30_000,
    b'{"a":1' + b" " * 200_000 + b"2:3}",
    b"{" + b'"a":1,' * 50_000 + b"1:2,}",
    b"-" * 50_000,
    b"{" + b" " * 100_000,
    b"{{} " * 20_000,
    b'{{"topic":"T","queueId":0}:5,{"topic":"T","queueId":"x"}:6}',
    b"[1,2,]",
    b"{\x00:1}",
    b'{"\x00":1}',
    b"NaN",
    b"[Infinity]",
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:24]))
def test_kept_bodies_are_read_or_refused_in_time(body: bytes, cpu_seconds: Callable[[], float]) -> None:
    """What is read can be written, and neither takes long."""
    before = cpu_seconds()

    with contextlib.suppress(JsonError):
        dumps(loads(body))

    assert cpu_seconds() - before < CPU_SECONDS_MAX


tokens = st.sampled_from(
    (
        *'{}[],:"',
        '"$ref"',
        '"$"',
        '"$.a"',
        '"$.a[0]"',
        '"$.null"',
        '"a"',
        "0",
        "-1",
        "1.5",
        "1e400",
        "true",
        "null",
        " ",
        "\\",
        "\u4e3b",
    )
)


@settings(max_examples=400)
@given(st.lists(tokens, max_size=40).map("".join))
def test_any_row_of_tokens_is_read_or_refused(text: str) -> None:
    """The grammar's own words, in any order."""
    with contextlib.suppress(JsonError):
        dumps(loads(text.encode()))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(("", "5", "-1", "T@g", "x", "1e400")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("topic", "queueId", "brokerName", "0")), inner)
    ),
    max_leaves=6,
)


@given(json_values)
def test_any_key_is_a_message_queue_or_refused(value: Any) -> None:
    """Also when it is JSON of another shape."""
    with contextlib.suppress(JsonError):
        message_queue_of(json.dumps(value))


# ----------------------------------------------------------------------------------------- batches, properties, ids


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=9), st.binary(max_size=9)), min_size=1, max_size=4),
    st.data(),
)
def test_a_batch_with_some_bytes_changed_is_read_or_refused(items: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    """Never more items than there is room for."""
    changed = bytearray(encode_batch(items))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.sampled_from((0, 1, 22, 127, 128, 255)))

    with contextlib.suppress(CorruptBatch):
        assert len(decode_batch(bytes(changed))) <= len(changed) // 22


@pytest.mark.parametrize(
    "text", ["\x01" * 100_000, "\x02" * 100_000, "a\x01" * 50_000, "\x01b\x02" * 50_000, "a\x01b\x01c\x02" * 9000]
)
def test_kept_property_strings_are_read_in_time(text: str, cpu_seconds: Callable[[], float]) -> None:
    """Nothing but separators is nothing."""
    before = cpu_seconds()
    assert all(decode_properties(text).values())
    assert cpu_seconds() - before < CPU_SECONDS_MAX


@given(st.text(alphabet="0123456789abcdefABCDEF \u0661", max_size=60) | st.text(max_size=60))
def test_any_text_is_a_message_id_or_refused(text: str) -> None:
    """Also digits that are none of ASCII's."""
    with contextlib.suppress(BadMessageId):
        MessageId.parse(text)


# ------------------------------------------------------------------------------------------------------------- HA

EPOCHS = EpochList((Epoch(1, 0, b"w" * 16, 1), Epoch(4, 900, b"v" * 16, 2)))
HELLO = encode_hello(Hello(NodeIdentity("c", "b", 1, b"n" * 16), b"o" * 32, 1 << 20, 0, 1000, True, EPOCHS))
WELCOME = encode_welcome(Welcome(b"m" * 16, 0, 2000, 1024, EPOCHS))


@pytest.mark.parametrize(("decode", "right"), [(decode_hello, HELLO), (decode_welcome, WELCOME)], ids=["hello", "welcome"])
@settings(max_examples=200)
@given(data=st.data())
def test_a_changed_or_cut_part_of_the_handshake_is_read_or_refused(
    decode: Callable[[bytes], object], right: bytes, data: st.DataObject
) -> None:
    """Sizes and counts that do not add up end the handshake in the declared way."""
    changed = bytearray(right)
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))]) + data.draw(st.binary(max_size=5))

    with contextlib.suppress(HaError):
        decode(cut)


# ------------------------------------------------------------------------------------------------- configurations

setting_texts = st.sampled_from(
    (
        "",
        "0",
        "-1",
        "1",
        "1_000",
        "\u0661",
        "\u00b2",
        "5k",
        "5kk",
        "k",
        "1e3",
        "9" * 5000,
        "true",
        "TRUE ",
        "nope",
        "a:1",
        "a",
        ":",
        "a:b",
        "[::1]:9876",
        "a:99999",
        ";",
        "04;23",
        "\u00b2",
        "\u00b2;1",
        "0" * 5000,
        "24",
        "1s 2m",
        "1x",
        "1s" * 50,
        "-1s",
        "SYNC_FLUSH",
        "\x00",
        "\\",
        "a\\u12",
        " ",
    )
)


@pytest.mark.parametrize("hours", ["\u00b2", "0" * 5000, "24", "-1", "", "4;;5", "4;x"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    """Also what Python takes for a digit, and numbers too long to read."""
    with pytest.raises(BadConfig, match="deleteWhen"):
        read_broker_conf(f"deleteWhen={hours}")


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(BROKER_KEYS)), setting_texts, max_size=3))
def test_any_setting_of_a_broker_is_taken_or_refused_by_name(entries: dict[str, str]) -> None:
    """The refusal names a key; what is taken can be used and written back."""
    try:
        config = read_broker_conf(write_properties(entries))
    except BadConfig as error:
        refused = error.key
    else:
        refused = "listenPort"
        config.store_config()
        config.name_servers  # noqa: B018 - must not raise
        read_broker_conf(config.to_properties())
    assert refused in BROKER_KEYS


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(NAMESRV_KEYS)), setting_texts, max_size=3))
def test_any_setting_of_a_name_server_is_taken_or_refused(entries: dict[str, str]) -> None:
    """What is taken reads back alike."""
    with contextlib.suppress(BadNamesrvConfig):
        config = read_namesrv_conf(write_properties(entries))
        assert read_namesrv_conf(config.to_properties()) == config


@pytest.mark.parametrize("text", ["\\" * 99_999, "\\\n" * 50_000, "=" * 1000, "#" * 99_999, "a\\", ":" + " " * 9999, "\x00"])
def test_kept_property_files_are_read_in_time(text: str, cpu_seconds: Callable[[], float]) -> None:
    """Java forgives them all."""
    before = cpu_seconds()
    read_properties(text)
    assert cpu_seconds() - before < CPU_SECONDS_MAX


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    )
)
def test_entries_are_read_back(entries: dict[str, str]) -> None:
    """Whatever characters they consist of."""
    assert read_properties(write_properties(entries)) == entries


@given(st.text(max_size=60))
def test_any_text_is_a_property_file(text: str) -> None:
    """There is nothing to refuse."""
    read_properties(text)


# ------------------------------------------------------------------------------------------------------- tables

names = st.sampled_from(
    (
        "topicConfigTable",
        "dataVersion",
        "topicName",
        "perm",
        "readQueueNums",
        "attributes",
        "counter",
        "timestamp",
        "order",
        "subscriptionGroupTable",
        "groupName",
        "retryMaxTimes",
        "forbiddenTable",
        "brokerId",
        "consumeEnable",
        "offsetTable",
        "T@g",
        "0",
        "1",
        "-1",
        "x",
        "configTable",
        "topicSysFlag",
        "groupRetryPolicy",
        "topicFilterType",
    )
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats()
    | st.sampled_from(("", "5", "T", "g", "\u00b2", "9" * 5000, "1e400"))
)
tables = st.recursive(
    leaves, lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=2), max_leaves=12
)
shaped = st.fixed_dictionaries(
    {},
    optional={
        "topicConfigTable": st.dictionaries(names, st.dictionaries(names, tables, max_size=4), max_size=2),
        "subscriptionGroupTable": st.dictionaries(names, st.dictionaries(names, tables, max_size=4), max_size=2),
        "forbiddenTable": st.dictionaries(names, st.dictionaries(names, tables, max_size=2), max_size=2),
        "offsetTable": st.dictionaries(names, tables, max_size=3),
        "configTable": st.dictionaries(names, tables, max_size=2),
        "dataVersion": tables,
    },
)
CONFIG = BrokerConfig()


def into_topics(stored: Any) -> None:
    TopicTable.of(CONFIG, int, stored)


def into_groups(stored: Any) -> None:
    GroupTable.of(CONFIG, int, stored)


def into_offsets(stored: Any) -> None:
    ConsumerOffsets().load(stored)


@pytest.mark.parametrize("read", [into_topics, into_groups, into_offsets])
@settings(max_examples=200)
@given(stored=tables | shaped)
def test_any_table_is_read_or_refused(read: Callable[[Any], None], stored: Any) -> None:
    """JSON that is no table of ours ends in what is reported as a table that makes no sense."""
    with contextlib.suppress(*UNREADABLE):
        read(stored)


@given(tables | shaped)
def test_any_kv_configuration_is_read_or_refused(stored: Any) -> None:
    """The name server's only table."""
    with contextlib.suppress(JsonError):
        KvConfig.from_bytes(json.dumps(stored).encode())
