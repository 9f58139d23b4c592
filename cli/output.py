"""What commands print: aligned tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import click
import orjson

from ..message.message import StoredMessage


def print_json(value: Any) -> None:
    """Print one value as one line of JSON."""
    click.echo(orjson.dumps(value).decode())


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, nothing: str = "") -> None:
    """Print rows as a table of `columns`, or as one JSON array with all that the rows hold.

    Args:
        rows: one mapping per row.
        columns: keys to show in the table, in order.
        as_json: whether a program reads.
        nothing: what to tell a person on standard error when there are no rows.
    """
    found = list(rows)
    if as_json:
        print_json(found)
    elif found:
        click.echo(table([{column: row.get(column) for column in columns} for row in found]))
    elif nothing:
        click.echo(nothing, err=True)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Align rows under their keys; numbers to the right."""
    names = list(rows[0])
    cells = [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[at]) for line in cells)) for at, name in enumerate(names)]
    numeric = [all(isinstance(row[name], int | float) for row in rows) for name in names]
    lines = [[name.upper() for name in names], *cells]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return one_line(" ".join(map(str, cast("Iterable[Any]", value))))
    return one_line(str(value))


def one_line(text: str) -> str:
    r"""Write what a message brought so that it stays in its line and tells the terminal nothing: a line feed as `\n`."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def when(timestamp_ms: int) -> str:
    """A broker's milliseconds as local time; `-` for none."""
    if timestamp_ms <= 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone().isoformat(" ", "milliseconds")


def text_or_hex(body: bytes) -> str:
    """A body for people: its text, or its bytes in hex if it is none."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex()


def body_fields(body: bytes) -> dict[str, str]:
    """A body for programs: `body` if it is text, else `bodyHex`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyHex": body.hex()}


def stored_fields(message: StoredMessage) -> dict[str, Any]:
    """A stored message under RocketMQ's names."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.unique_key or message.message_id,
        "offsetMsgId": message.message_id,
        "tag": message.tag,
        "keys": message.keys,
        "bornTimestamp": message.born_timestamp,
        "bornHost": f"{message.born_host[0]}:{message.born_host[1]}",
        "storeTimestamp": message.store_timestamp,
        "storeHost": f"{message.store_host[0]}:{message.store_host[1]}",
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "properties": dict(message.properties),
        **body_fields(message.body),
    }


def print_message(message: StoredMessage, *, as_json: bool) -> None:
    """Print everything about one message."""
    fields = stored_fields(message)
    if as_json:
        print_json(fields)
        return
    for name in ("bornTimestamp", "storeTimestamp"):
        fields[name] = when(fields[name])
    fields["properties"] = [f"{name}={value}" for name, value in message.properties.items()]
    width = max(map(len, fields))
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {_cell(value)}")
