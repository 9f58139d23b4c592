"""Columns, projections and what may be written."""

from __future__ import annotations

import pytest

from ledgermq.pipeline.columns import COLUMNS, KAFKA_COLUMNS, available, check_writable, chosen, ddl, projected
from ledgermq.pipeline.errors import BadOption, BadSchema
from ledgermq.pipeline.options import Content


def test_default_columns_hold_all_of_the_old_connector() -> None:
    """Whoever comes from it finds the nine columns."""
    names = {column.name for column in chosen(Content())}

    assert {
        "topic", "flag", "body", "properties", "brokerName", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp"
    } <= names  # fmt: skip
    assert "bornHost" not in names


def test_a_projection_may_have_any_order_and_case() -> None:
    """The user's spelling is kept, as Spark compares names."""
    found = projected(Content(), [("queueoffset", "bigint"), ("topic", "string")])

    assert ddl(found) == "`queueoffset` bigint, `topic` string"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("tag", "string")], "there is no column 'tag'; did you mean 'tags'"),
        ([("queueId", "bigint")], "has the type int, not bigint"),
        ([("topic", "string"), ("TOPIC", "string")], "names a column twice"),
    ],
)
def test_other_schemas_are_refused(fields: list[tuple[str, str]], reason: str) -> None:
    """With the columns that there are."""
    with pytest.raises(BadSchema) as refused:
        projected(Content(), fields)

    assert reason in str(refused.value)


def test_columns_that_there_are_not_are_refused() -> None:
    """By the option that names them."""
    with pytest.raises(BadOption, match="columns"):
        chosen(Content(columns=("bodies",)))


def test_properties_may_be_text_or_left_out() -> None:
    """`includeProperties` decides."""
    by_name = {column.name: column.type for column in available(Content(properties="string"))}

    assert by_name["properties"] == "string"
    assert "properties" not in {column.name for column in available(Content(properties="none"))}


def test_what_was_read_can_be_written() -> None:
    """Columns that a broker fills are passed over."""
    taken = check_writable([(column.name, column.type) for column in COLUMNS], has_topic=False)

    assert set(taken.values()) == {
        "topic",
        "brokerName",
        "queueId",
        "tags",
        "keys",
        "body",
        "properties",
        "flag",
        "bornTimestamp",
    }


@pytest.mark.parametrize(
    ("fields", "has_topic", "reason"),
    [
        ([("topic", "string")], False, "no column 'body'"),
        ([("body", "binary")], False, "no column 'topic'"),
        ([("body", "int")], True, "must be binary or string, not int"),
        ([("body", "binary"), ("value", "string")], True, "two columns for 'body'"),
        ([("body", "binary"), ("price", "int")], True, "a column 'price' that no message has"),
        ([("body", "binary"), ("properties", "string")], True, "must be map<string,string>"),
    ],
)
def test_rows_that_no_message_can_hold_are_refused(fields: list[tuple[str, str]], has_topic: bool, reason: str) -> None:
    """Before any task runs."""
    with pytest.raises(BadSchema) as refused:
        check_writable(fields, has_topic=has_topic)

    assert reason in str(refused.value)


def test_what_was_read_in_the_style_of_kafka_can_be_written() -> None:
    """Key, value, partition and headers have a place in a message; offset and time are the broker's."""
    taken = check_writable([(column.name, column.type) for column in KAFKA_COLUMNS], has_topic=False)

    assert taken == {"key": "keys", "value": "body", "topic": "topic", "partition": "queueId", "headers": "properties"}
