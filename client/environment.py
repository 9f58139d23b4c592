"""What the clients read from environment variables: the one table of them, for the `open_...` functions and for the reference.

A variable counts where its argument is not given (None). One that is empty counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

import attrs

from ..remoting.credentials import (
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_FILE_VARIABLE,
    SECRET_KEY_VARIABLE,
    credentials_from,
)
from ..remoting.errors import BadProperties, BadTlsSetting
from ..remoting.java_properties import read_properties
from ..remoting.signature import Credentials
from ..remoting.tls import TlsSettings
from ..world.tls import ClientTls
from .arguments import INT_MAX, LONG_MAX, check_integer, check_seconds
from .assigned import BYTES_MAX, BYTES_PER_QUEUE_MAX, MESSAGES_PER_QUEUE_MAX, PULL_MESSAGES_MAX
from .compression import COMPRESS_OVER_BYTES
from .errors import InvalidArgument
from .name_servers import parse_name_servers
from .retry import RETRIES, SEND_TIMEOUT_SECONDS
from .sending import MESSAGE_BYTES_MAX
from .subscription import ReadFrom

T = TypeVar("T")

ALL_CLIENTS = ("open_producer", "open_consumer", "open_pull_consumer", "open_admin")
PRODUCERS, PUSH_CONSUMERS, CONSUMERS = ("open_producer",), ("open_consumer",), ("open_consumer", "open_pull_consumer")
WITH_INSTANCES = (*PRODUCERS, *CONSUMERS)


@attrs.frozen
class Variable(Generic[T]):
    """One environment variable, which stands for an argument that is not given."""

    name: str
    argument: str
    """The argument of the functions `clients`."""
    clients: tuple[str, ...]
    default: T
    """What counts if neither is given."""
    unit: str
    """The unit of the value, or what it consists of."""
    meaning: str
    _read: Callable[[str, str], T]
    """Reads the value of the variable of a name; raises an `InvalidArgument`."""

    def value(self, given: T | None) -> T:
        """`given` unless it is None, else what the variable says, else the default.

        Raises:
            InvalidArgument: the variable is needed and its value is not allowed; the error names it.
        """
        if given is not None:
            return given
        text = os.environ.get(self.name, "").strip()
        return self._read(self.name, text) if text else self.default


def _integer(least: int, most: int, name: str, text: str) -> int:
    try:
        number: object = int(text)
    except ValueError:
        number = text
    return check_integer(name, number, least, most)


def _seconds(name: str, text: str) -> float:
    try:
        number: object = float(text)
    except ValueError:
        number = text
    return check_seconds(name, number)


def _text(_: str, text: str) -> str:
    return text


def _name_servers(name: str, text: str) -> str:
    try:
        parse_name_servers(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error
    return text


def _read_from(name: str, text: str) -> ReadFrom:
    try:
        return ReadFrom[text.upper()]
    except KeyError:
        allowed = ", ".join(each.name.lower() for each in ReadFrom)
        raise InvalidArgument(f"{name} must be one of {allowed} (got {text!r})") from None


def _tls(name: str, text: str) -> ClientTls:
    try:
        with open(text, encoding="utf-8-sig") as file:
            return TlsSettings().updated(read_properties(file.read())).client()
    except (OSError, UnicodeDecodeError, BadProperties, BadTlsSetting) as error:
        raise InvalidArgument(f"{name}={text}: {error}") from error


_NATURAL, _POSITIVE = partial(_integer, 0, INT_MAX), partial(_integer, 1, INT_MAX)


NAMESRV = Variable[str | Iterable[str] | None](
    "LEDGERMQ_NAMESRV", "namesrv", ALL_CLIENTS, None, "HOST:PORT;HOST:PORT", "The name servers.", _name_servers
)
TLS_CONFIG = Variable[bool | ClientTls](
    "LEDGERMQ_TLS_CONFIG",
    "tls",
    ALL_CLIENTS,
    False,
    "path",
    "Encrypt every connection as this file says, which has the keys of RocketMQ's tls.properties (`tls.client.…`).",
    _tls,
)
ACCESS_KEY = Variable[str | None](
    ACCESS_KEY_VARIABLE,
    "credentials",
    ALL_CLIENTS,
    None,
    "text",
    "The user who signs every request, for brokers with access control; together with one of the next two.",
    _text,
)
SECRET_KEY = Variable[str | None](
    SECRET_KEY_VARIABLE, "credentials", ALL_CLIENTS, None, "text", "The password of that user.", _text
)
SECRET_KEY_FILE = Variable[str | None](
    SECRET_KEY_FILE_VARIABLE, "credentials", ALL_CLIENTS, None, "path", "The file that has it instead.", _text
)
INSTANCE_NAME = Variable[str | None](
    "LEDGERMQ_INSTANCE_NAME",
    "instance_name",
    WITH_INSTANCES,
    None,
    "text",
    "Replaces the random part of the client id; every process needs another one, whose clients after the first add a number.",
    _text,
)
SEND_TIMEOUT = Variable[float](
    "LEDGERMQ_SEND_TIMEOUT_SECONDS",
    "send_timeout_seconds",
    PRODUCERS,
    SEND_TIMEOUT_SECONDS,
    "seconds",
    "The time limit of one send, for all attempts together.",
    _seconds,
)
SEND_RETRIES = Variable[int](
    "LEDGERMQ_RETRIES",
    "retries",
    PRODUCERS,
    RETRIES,
    "attempts",
    "How often a send is retried after failures that may have stored the message, if the retry may store it again.",
    _NATURAL,
)
COMPRESS_OVER = Variable[int](
    "LEDGERMQ_COMPRESS_OVER_BYTES",
    "compress_over_bytes",
    PRODUCERS,
    COMPRESS_OVER_BYTES,
    "bytes",
    "Smaller bodies are sent as they are.",
    _NATURAL,
)
MESSAGE_BYTES = Variable[int](
    "LEDGERMQ_MESSAGE_BYTES_MAX",
    "message_bytes_max",
    PRODUCERS,
    MESSAGE_BYTES_MAX,
    "bytes",
    "Larger bodies and batches are refused; a broker has its own limit.",
    _POSITIVE,
)
PULL_MESSAGES = Variable[int](
    "LEDGERMQ_PULL_MESSAGES_MAX",
    "pull_messages_max",
    CONSUMERS,
    PULL_MESSAGES_MAX,
    "messages",
    "How many messages one pull asks for; by default brokers return at most 32.",
    _POSITIVE,
)
MESSAGES_PER_QUEUE = Variable[int](
    "LEDGERMQ_MESSAGES_PER_QUEUE_MAX",
    "messages_per_queue_max",
    CONSUMERS,
    MESSAGES_PER_QUEUE_MAX,
    "messages",
    "A queue with this many messages that are pulled and not done is not pulled.",
    _POSITIVE,
)
BYTES_PER_QUEUE = Variable[int](
    "LEDGERMQ_BYTES_PER_QUEUE_MAX",
    "bytes_per_queue_max",
    CONSUMERS,
    BYTES_PER_QUEUE_MAX,
    "bytes",
    "The same in bytes of pull answers, each of which is kept in memory until its last message is done.",
    _POSITIVE,
)
BYTES = Variable[int](
    "LEDGERMQ_BYTES_MAX",
    "bytes_max",
    CONSUMERS,
    BYTES_MAX,
    "bytes",
    "The same over all queues; while they hold this many bytes, only empty queues are pulled.",
    partial(_integer, 1, LONG_MAX),
)
RECONSUME_TIMES = Variable[int | None](
    "LEDGERMQ_RECONSUME_TIMES_MAX",
    "reconsume_times_max",
    PUSH_CONSUMERS,
    None,
    "deliveries",
    "Failed deliveries before a message is a dead letter; by default as the group's configuration says.",
    _NATURAL,
)
READ_FROM = Variable[ReadFrom](
    "LEDGERMQ_READ_FROM",
    "read_from",
    CONSUMERS,
    ReadFrom.SUGGESTED,
    "suggested, master or slave",
    "Which member of a broker's group is read.",
    _read_from,
)

VARIABLES: tuple[Variable[Any], ...] = (
    NAMESRV,
    TLS_CONFIG,
    ACCESS_KEY,
    SECRET_KEY,
    SECRET_KEY_FILE,
    INSTANCE_NAME,
    SEND_TIMEOUT,
    SEND_RETRIES,
    COMPRESS_OVER,
    MESSAGE_BYTES,
    PULL_MESSAGES,
    MESSAGES_PER_QUEUE,
    BYTES_PER_QUEUE,
    BYTES,
    RECONSUME_TIMES,
    READ_FROM,
)
"""All variables, in the order of the reference."""


_named = count()
"""Numbers the clients of this process whose names come from the environment."""


def instance_name_of(given: str | None) -> str | None:
    """`given` unless it is None, else what the variable says, with a number for each client of this process but the first."""
    name = INSTANCE_NAME.value(None)
    if given is not None or name is None:
        return given
    number = next(_named)
    return f"{name}-{number}" if number else name


def credentials_of(given: Credentials | None) -> Credentials | None:
    """`given` unless it is None, else what the variables say; None if they say nothing.

    Raises:
        InvalidArgument: only a part of them is set, or the file cannot be read.
    """
    if given is not None:
        return given
    try:
        return credentials_from(os.environ)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
