"""The columns of the source: one table for Spark's schema, for projections and for building batches. Pure.

`CORRUPT` exists in the mode PERMISSIVE only. `schemaStyle=kafka` gives the columns of Spark's Kafka source instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import attrs

from .errors import BadOption, BadSchema
from .options import Content

CORRUPT = "_corrupt"
HEADERS = "array<struct<key:string,value:binary>>"
"""The type that properties have in the columns of Spark's Kafka source."""


@attrs.frozen
class Column:
    """One column, with its type as Spark writes it."""

    name: str
    type: str
    default: bool = True
    """Whether a read has the column without asking for it."""


COLUMNS = (
    Column("topic", "string"),
    Column("brokerName", "string"),
    Column("queueId", "int"),
    Column("queueOffset", "bigint"),
    Column("tags", "string"),
    Column("keys", "string"),
    Column("body", "binary"),
    Column("properties", "map<string,string>"),
    Column("flag", "int"),
    Column("sysFlag", "int"),
    Column("reconsumeTimes", "int"),
    Column("bornTimestamp", "timestamp"),
    Column("storeTimestamp", "timestamp"),
    Column("msgId", "string"),
    Column("bornHost", "string", default=False),
    Column("storeHost", "string", default=False),
    Column("physicalOffset", "bigint", default=False),
    Column("storeSize", "int", default=False),
    Column("bodySize", "int", default=False),
    Column("bodyCrc", "int", default=False),
    Column("preparedTransactionOffset", "bigint", default=False),
    Column("offsetMsgId", "string", default=False),
)
KAFKA_COLUMNS = (
    Column("key", "binary"),
    Column("value", "binary"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int"),
    Column("headers", HEADERS, default=False),
)
WRITE_TYPES: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>", HEADERS),
    "flag": ("int",),
    "queueId": ("int",),
    "brokerName": ("string",),
    "shardingKey": ("string",),
    "delayLevel": ("int",),
    "bornTimestamp": ("timestamp",),
}
"""Columns that the sink takes, and the types that each may have."""
WRITE_ALIASES = {"value": "body", "key": "keys", "headers": "properties", "partition": "queueId"}
READ_ONLY = frozenset(column.name for column in (*COLUMNS, *KAFKA_COLUMNS)) - {*WRITE_TYPES, *WRITE_ALIASES}
"""Columns that a read returns and a write ignores, so that rows can be written as they were read."""


def available(content: Content) -> tuple[Column, ...]:
    """Return all columns that a read with these options can have."""
    found: tuple[Column, ...]
    if content.style == "kafka":
        found = KAFKA_COLUMNS
    elif content.properties == "map":
        found = COLUMNS
    else:
        found = tuple(
            Column("properties", "string") if column.name == "properties" else column
            for column in COLUMNS
            if column.name != "properties" or content.properties == "string"
        )
    return (*found, Column(CORRUPT, "string")) if content.mode == "PERMISSIVE" else found


def chosen(content: Content) -> tuple[Column, ...]:
    """Return the columns of a read for which the user gives no schema.

    Raises:
        BadOption: `columns` names a column that does not exist.
    """
    columns = available(content)
    if content.columns is None:
        return tuple(column for column in columns if column.default)
    by_name = {column.name.lower(): column for column in columns}
    for name in content.columns:
        if name.lower() not in by_name:
            raise BadOption("columns", ",".join(content.columns), _no_column(name, columns))
    return tuple(by_name[name.lower()] for name in content.columns)


def projected(content: Content, fields: Sequence[tuple[str, str]]) -> tuple[Column, ...]:
    """Return the columns of a schema that the user has given: any of the available ones, in any order.

    Args:
        content: decides which columns are available.
        fields: names and types.

    Raises:
        BadSchema: a column does not exist, or has another type.
    """
    columns = available(content)
    by_name = {column.name.lower(): column for column in columns}
    found: list[Column] = []
    for name, type_name in fields:
        column = by_name.get(name.lower())
        if column is None:
            raise BadSchema(f"the given schema: {_no_column(name, columns)}")
        if column.type != type_name:
            raise BadSchema(
                f"the given schema: the column {column.name!r} has the type {column.type}, not {type_name}; "
                f"read it as {column.type} and cast it afterwards"
            )
        found.append(Column(name, column.type))
    if len({column.name.lower() for column in found}) != len(found):
        raise BadSchema("the given schema names a column twice")
    return tuple(found)


def ddl(columns: Iterable[Column]) -> str:
    """Return columns as the text of a Spark schema."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def _no_column(name: str, columns: Sequence[Column]) -> str:
    names = [column.name for column in columns]
    close = get_close_matches(name, names, 1, 0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"there is no column {name!r}; {hint}There are: {', '.join(names)}"


def check_writable(fields: Sequence[tuple[str, str]], *, has_topic: bool) -> dict[str, str]:
    """Check a schema that is to be written; returns the sink's name for each column that it takes.

    Args:
        fields: names and types of the rows.
        has_topic: the option `topic` is given.

    Raises:
        BadSchema: no body, no topic, an unknown column or a wrong type.
    """
    by_name = {name.lower(): name for name in WRITE_TYPES}
    passed_over = {name.lower() for name in READ_ONLY} | {CORRUPT}
    taken: dict[str, str] = {}
    for name, type_name in fields:
        target = by_name.get(name.lower()) or WRITE_ALIASES.get(name.lower())
        if target is None:
            if name.lower() in passed_over or type_name == "void":
                continue
            raise BadSchema(
                f"rows to write have a column {name!r} that no message has; drop it, or put it into 'properties'. "
                f"There are: {', '.join(WRITE_TYPES)}"
            )
        allowed = WRITE_TYPES[target]
        if type_name not in allowed and not (target == "keys" and name.lower() == "key" and type_name == "binary"):
            raise BadSchema(f"rows to write: the column {name!r} must be {' or '.join(allowed)}, not {type_name}")
        if target in taken.values():
            raise BadSchema(f"rows to write have two columns for {target!r}; one of them is {name!r}")
        taken[name] = target
    if "body" not in taken.values():
        raise BadSchema("rows to write have no column 'body' (binary or string); rename or build one")
    if "topic" not in taken.values() and not has_topic:
        raise BadSchema("rows to write have no column 'topic', and the option 'topic' is not given")
    return taken
