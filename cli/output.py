"""The output of commands: aligned tables for people, JSON for programs."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeGuard, cast

import click
import orjson

from ..message.message import StoredMessage


def print_json(value: Any) -> None:
    """Print one value as one line of JSON."""
    click.echo(orjson.dumps(value).decode())


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, nothing: str = "") -> None:
    """Print rows as a table of `columns`, or as one JSON array with all keys of the rows; see `fitted` for terminals.

    Args:
        rows: one mapping per row.
        columns: keys to show in the table, in order.
        as_json: whether to print JSON.
        nothing: the text for standard error if there are no rows; not printed with `as_json`.
    """
    found = list(rows)
    if as_json:
        print_json(found)
    elif found:
        wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(fitted([{column: row.get(column) for column in columns} for row in found], wide))
    elif nothing:
        click.echo(nothing, err=True)


def fitted(rows: Sequence[Mapping[str, Any]], columns_max: int | None) -> str:
    """A table of at most `columns_max` characters a line; if it is wider, one block per row with a line for each value.

    A terminal would break the lines of a wider table, and shortened values could not be copied.
    """
    text = table(rows)
    if columns_max is None or all(len(line) <= columns_max for line in text.splitlines()):
        return text
    width = max(map(len, rows[0]))
    return "\n\n".join("\n".join(f"{name.upper().ljust(width)}  {_cell(value)}" for name, value in row.items()) for row in rows)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Align rows under their keys, and numbers to the right."""
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
    if _is_table(value):
        return one_line(" ".join(f"{name}={each}" for name, each in value.items())) or "-"
    if isinstance(value, list | tuple):
        return one_line(" ".join(map(str, cast("Iterable[Any]", value))))
    return one_line(str(value))


def one_line(text: str) -> str:
    r"""Escape unprintable characters, so that a text stays on one line and cannot control the terminal: a line feed is `\n`."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def moment_or_none(timestamp_ms: int) -> int | None:
    """A timestamp of a broker for programs; None if there is none, for which brokers send 0 or -1."""
    return timestamp_ms if timestamp_ms > 0 else None


def when(timestamp_ms: int | None) -> str:
    """A timestamp of a broker in ms as local time; `-` if there is none."""
    if timestamp_ms is None or timestamp_ms <= 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone().isoformat(" ", "milliseconds")


def text_or_hex(body: bytes) -> str:
    """A body for people: its text, or its bytes in hex if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex()


def body_fields(body: bytes) -> dict[str, str | None]:
    """A body for programs: `body` if it is UTF-8, else `body_hex`; the other one is None."""
    try:
        return {"body": body.decode(), "body_hex": None}
    except UnicodeDecodeError:
        return {"body": None, "body_hex": body.hex()}


def _is_table(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def snake(name: str) -> str:
    """A name of RocketMQ in snake case: `retryMaxTimes` becomes `retry_max_times`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def snaked(value: Any) -> Any:
    """A JSON value of RocketMQ with all names in snake case, at every depth."""
    if _is_table(value):
        return {snake(str(name)): snaked(each) for name, each in value.items()}
    if _is_list(value):
        return [snaked(each) for each in value]
    return value


def number_or_text(text: str | None) -> int | float | str | None:
    """A text value of RocketMQ as a number if it is one, else unchanged."""
    for kind in (int, float):
        with suppress(ValueError, TypeError):
            return kind(text or "")
    return text


def warn_without_master(brokers: Sequence[str]) -> None:
    """Print on standard error which brokers were left out because they have no master."""
    if brokers:
        click.echo(f"Left out, because they have no master now: {', '.join(brokers)}", err=True)


def fail_if_missing(missing: Sequence[str]) -> None:
    """Print on standard error what a cluster lacks, and end the command with status 1; does nothing if it lacks nothing."""
    if missing:
        click.echo("\n".join(f"missing: {each}" for each in missing), err=True)
        raise click.exceptions.Exit(1)


def stored_fields(message: StoredMessage) -> dict[str, Any]:
    """The fields of a stored message for programs."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.unique_key or message.message_id,
        "offset_message_id": message.message_id,
        "tag": message.tag,
        "keys": message.keys,
        "born_timestamp": message.born_timestamp,
        "born_host": f"{message.born_host[0]}:{message.born_host[1]}",
        "store_timestamp": message.store_timestamp,
        "store_host": f"{message.store_host[0]}:{message.store_host[1]}",
        "physical_offset": message.physical_offset,
        "size": message.size,
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
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
    for name in ("born_timestamp", "store_timestamp"):
        fields[name] = when(fields[name])
    fields["properties"] = [f"{name}={value}" for name, value in message.properties.items()]
    width = max(map(len, fields))
    for name, value in fields.items():
        if name == "body_hex" and value is None:
            continue
        click.echo(f"{name.ljust(width)}  {_cell(value)}")
