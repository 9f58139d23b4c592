"""Options of the data source."""

from __future__ import annotations

import pytest

from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.options import Servers, Stores, read_options, write_options

STORE = {"storePath": "/data/store", "subscribe": "orders"}
SERVER = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"}


def test_the_least_that_can_be_given() -> None:
    """A place and a topic; a batch begins at the oldest message, a stream behind the newest."""
    batch, stream = read_options(STORE, streaming=False), read_options(SERVER, streaming=True)

    assert batch.place == Stores(("/data/store",), ("store",))
    assert isinstance(stream.place, Servers)
    assert str(stream.place) == "127.0.0.1:9876"
    assert (batch.starting.everywhere, stream.starting.everywhere) == (-2, -1)
    assert batch.fail_on_data_loss


def test_names_are_read_in_any_case_and_by_their_aliases() -> None:
    """Spark hands options over in lower case."""
    found = read_options({"NAMESRVADDR": "a:1;b:2", "topic": "orders"}, streaming=False)

    assert str(found.place) == "a:1;b:2"
    assert found.subscription.topics == ("orders",)


def test_several_stores_are_distinguished_by_broker_name() -> None:
    """By default a store is called like its directory."""
    found = read_options({**STORE, "storePath": "/a/x/, /b/y"}, streaming=False).place

    assert found == Stores(("/a/x", "/b/y"), ("x", "y"))


@pytest.mark.parametrize(
    ("change", "option", "reason"),
    [
        ({"subscribe": None}, "subscribe", "exactly one of 'subscribe'"),
        ({"subscribePattern": "o.*"}, "subscribe", "exactly one of 'subscribe'"),
        ({"subscribe": "a,,b"}, "subscribe", "a name in the list is empty"),
        ({"subscribe": " "}, "subscribe", "it is empty"),
        ({"nameServer": "h:1"}, "nameServer", "exactly one of 'nameServer' and 'storePath'"),
        ({"storePath": None}, "nameServer", "exactly one of 'nameServer' and 'storePath'"),
        ({"storePath": None, "nameServer": "h"}, "nameServer", "an address is HOST:PORT"),
        ({"storePath": None, "nameServer": "h:99999"}, "nameServer", "an address is HOST:PORT"),
        ({"storePath": None, "nameServer": ";"}, "nameServer", "no address is named"),
        ({"storePath": "/a/x,/b/x"}, "storePath", "every message twice"),
        ({"brokerName": "a,b"}, "brokerName", "one name for each of the 1 stores"),
        ({"startingOffset": "earliest"}, "startingOffset", "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "h:1"}, "kafka.bootstrap.servers", "did you mean 'nameServer'"),
        ({"quite-other": "x"}, "quite-other", "there are: accessKey"),
        ({"startingOffsets": "latest"}, "startingOffsets", "cannot be where a range begins"),
        ({"startingOffsets": "first"}, "startingOffsets", "not valid JSON"),
        ({"startingOffsets": '{"T":{"a":{"0":-1}}}'}, "startingOffsets", "-1 cannot be where a range begins"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "cannot be where a range begins or ends"),
        ({"endingOffsets": '{"T":{"a":{"0":-2}}}'}, "endingOffsets", "-2 cannot be"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "ISO-8601"),
        ({"startingTimestamp": "1001", "endingTimestamp": "1000"}, "endingTimestamp", "before 'startingTimestamp'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "at least 1"),
        ({"maxBytesPerTrigger": "1MB"}, "maxBytesPerTrigger", "a whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger", "not be above"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay", "a duration"),
        ({"minPartitions": "-1"}, "minPartitions", "at least 1"),
        ({"maxBytesPerPartition": "1e9"}, "maxBytesPerPartition", "a whole number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss", "'true' or 'false'"),
        ({"mode": "LENIENT"}, "mode", "FAILFAST, DROPMALFORMED, PERMISSIVE"),
        ({"includeProperties": "json"}, "includeProperties", "map, string, none"),
        ({"schemaStyle": "pulsar"}, "schemaStyle", "ledgermq, kafka"),
        ({"subExpression": "a || "}, "subExpression", "none of them is empty"),
        ({"subExpression": "price > 3"}, "subExpression", "Spark's own WHERE"),
        ({"assign": "{}", "subscribe": None}, "assign", "no queue is named"),
        ({"subscribePattern": "(", "subscribe": None}, "subscribePattern", "not a regular expression"),
        ({"verifyCrc": "1"}, "verifyCrc", "'true' or 'false'"),
        ({"pullMaxBytes": "99999999999"}, "pullMaxBytes", "at most"),
        ({"startingOffsetsByTimestampStrategy": "nearest"}, "startingOffsetsByTimestampStrategy", "error, latest"),
        ({"storePath": "/a", "path": "/b"}, "storePath", "it is given twice"),
    ],
)
def test_bad_values_are_refused_by_option_and_value(change: dict[str, str | None], option: str, reason: str) -> None:
    """Before anything is read."""
    given = {name: value for name, value in {**STORE, **change}.items() if value is not None}

    with pytest.raises(BadOption) as refused:
        read_options(given, streaming=False)

    assert refused.value.option.lower() == option.lower()
    assert reason in str(refused.value)


def test_a_stream_has_no_end() -> None:
    """Whoever gives one meant a batch."""
    with pytest.raises(BadOption, match="a stream has no end"):
        read_options({**STORE, "endingOffsets": "latest"}, streaming=True)


def test_a_stream_may_begin_at_either_end() -> None:
    """As Spark's Kafka source."""
    assert read_options({**STORE, "startingOffsets": "Earliest"}, streaming=True).starting.everywhere == -2


@pytest.mark.parametrize(
    ("place", "streaming", "more", "keeps_order"),
    [
        ({"nameServer": "a:1"}, False, {}, True),
        ({"nameServer": "a:1"}, True, {}, True),
        ({"storePath": "/s"}, True, {}, True),
        ({"storePath": "/s"}, False, {}, False),
        ({"nameServer": "a:1"}, True, {"minPartitions": "8"}, False),
        ({"storePath": "/s"}, True, {"maxBytesPerPartition": "1000"}, False),
    ],
)
def test_a_queue_is_divided_only_if_asked(
    place: dict[str, str], streaming: bool, more: dict[str, str], keeps_order: bool
) -> None:
    """Or if a batch reads files, which is for scans."""
    assert read_options({**place, "subscribe": "T", **more}, streaming=streaming).split.keeps_order == keeps_order


def test_times_are_milliseconds_or_iso() -> None:
    """Without a time zone they are UTC."""
    for text in ("1700000000000", "2023-11-14T22:13:20", "2023-11-14T23:13:20+01:00"):
        assert read_options({**STORE, "startingTimestamp": text}, streaming=False).starting.timestamp_ms == 1_700_000_000_000


def test_a_time_before_1970_is_before_all_messages() -> None:
    """It is given nevertheless: a stream begins there rather than at the newest message."""
    for text in ("1969-12-31", "0001-01-01T00:00:00+14:00"):
        starting = read_options({**STORE, "startingTimestamp": text}, streaming=True).starting
        assert (starting.option, starting.timestamp_ms) == ("startingTimestamp", 0)


@pytest.mark.parametrize(
    ("options", "option", "reason"),
    [
        ({}, "nameServer", "no options were given"),
        ({"topic": "T"}, "nameServer", "it must be given"),
        ({"storePath": "/a"}, "storePath", "never into a store's files"),
        ({"nameServer": "h:1", "deliveryGuarantee": "twice"}, "deliveryGuarantee", "exactly-once, at-least-once"),
        ({"nameServer": "h:1", "sendBatchBytes": "0"}, "sendBatchBytes", "at least 1"),
        ({"nameServer": "h:1", "subscribe": "T"}, "subscribe", "there is no such option"),
        ({"nameServer": "h:1", "sendStatus": "ok"}, "sendStatus", "strict, stored"),
    ],
)
def test_bad_options_of_writing_are_refused(options: dict[str, str], option: str, reason: str) -> None:
    """Before anything is written."""
    with pytest.raises(BadOption) as refused:
        write_options(options)

    assert refused.value.option == option
    assert reason in str(refused.value)
