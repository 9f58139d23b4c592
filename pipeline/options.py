"""Parses and checks the options of the data source `ledgermq` before anything is read or written. Pure.

Names follow Spark's Kafka source where that has the option, and RocketMQ's properties elsewhere; case does not matter. An
unknown option is an error, so that a misspelt one is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TypeVar

import attrs

from ..message.message import MessageQueue
from ..remoting.signature import Credentials
from ..world.address import Address
from .errors import SECRET_OPTIONS, BadOption
from .offsets import EARLIEST, LATEST, Offsets, parse, parse_assignment

Value = TypeVar("Value")

MIB = 1024 * 1024
PARTITION_BYTES = 128 * MIB
"""Default of `maxBytesPerPartition`, which one core reads in about a quarter of a second."""
PULL_BYTES = 2 * MIB
PULL_MESSAGES = 1024
FAILOVER_MS = 30_000
PULL_TIMEOUT_MS = 3_000
TRIGGER_DELAY_MS = 15 * 60_000
SEND_BATCH_BYTES = MIB
SEND_TIMEOUT_MS = 3_000
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The default consumer group; it exists on every broker, so reading does not need to create one."""
INT_MAX = (1 << 63) - 1

FORMAT = "ledgermq"
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
INCLUDE_PROPERTIES = ("map", "string", "none")
TLS_OPTIONS = (
    "tls.enable", "tls.client.trustCertPath", "tls.client.authServer",
    "tls.client.certPath", "tls.client.keyPath", "tls.client.keyPassword",
)  # fmt: skip

ACL_OPTIONS = ("accessKey", "secretKey", "securityToken")
_SHARED = ("nameServer", "storePath", "brokerName", *TLS_OPTIONS, *ACL_OPTIONS)
READ_OPTIONS = (
    *_SHARED, "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "maxBytesPerPartition", "failOnDataLoss", "mode", "verifyCrc", "subExpression",
    "includeProperties", "columns", "schemaStyle", "pushFilters", "group", "pullMaxBytes", "pullMaxMessages",
    "pullTimeoutMs", "failoverTimeoutMs",
)  # fmt: skip
WRITE_OPTIONS = (
    *_SHARED, "topic", "deliveryGuarantee", "sendBatchBytes", "sendTimeoutMs", "failoverTimeoutMs", "sendStatus",
    "allowNullBody", "checkpointLocation", "maxMessageBytes", "group", "queryName",
)  # fmt: skip
ALIASES = {
    "ledgermq.namesrv.addr": "nameServer",
    "namesrvaddr": "nameServer",
    "namesrv": "nameServer",
    "path": "storePath",
    "topic": "subscribe",
    "kafka.bootstrap.servers": "nameServer",
    "group.id": "group",
    "includeheaders": "includeProperties",
}
"""Other names of options, in lower case. Options of other systems are refused with a suggestion."""
_DIVIDING = ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition")
"""Options that ask for tasks of a certain size, and so for more than one of a queue."""
_TAKEN_ALIASES = ("ledgermq.namesrv.addr", "namesrvaddr", "namesrv", "path")


@attrs.frozen
class Servers:
    """How to reach the brokers."""

    namesrv: tuple[Address, ...]
    tls: tuple[tuple[str, str], ...] = ()
    """The given settings of RocketMQ's TLS client, as pairs of key and value."""
    failover_seconds: float = FAILOVER_MS / 1000
    """How long a call is repeated until a server answers it."""
    call_seconds: float = PULL_TIMEOUT_MS / 1000
    credentials: Credentials | None = None
    """Credentials that sign every request, for brokers with access control."""

    def __str__(self) -> str:
        return ";".join(map(str, self.namesrv))


@attrs.frozen
class Stores:
    """Store directories, each with the name of its broker."""

    paths: tuple[str, ...]
    broker_names: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.paths)


@attrs.frozen
class Subscription:
    """The queues that are read: exactly one of the three fields is given."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[MessageQueue, ...] = ()

    @property
    def option(self) -> str:
        return "subscribe" if self.topics else "subscribePattern" if self.pattern else "assign"

    def includes(self, queue: MessageQueue) -> bool:
        """Return whether a queue is read if it exists."""
        if self.pattern:
            return re.fullmatch(self.pattern, queue.topic) is not None
        return queue.topic in self.topics or queue in self.queues


@attrs.frozen
class Position:
    """Where the range of every queue begins or ends. The first of the last four fields that is given decides."""

    option: str
    timestamp_ms: int | None = None
    timestamps: Offsets | None = None
    offsets: Offsets | None = None
    everywhere: int = EARLIEST
    """`EARLIEST` or `LATEST`, for queues that `offsets` and `timestamps` do not name."""


@attrs.frozen
class Limits:
    """The limits of a micro-batch."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_seconds: float = TRIGGER_DELAY_MS / 1000


@attrs.frozen
class Split:
    """The limits of a task."""

    partitions_min: int = 1
    records_max: int | None = None
    bytes_max: int = PARTITION_BYTES
    keeps_order: bool = False
    """Whether a queue is never divided among tasks, which run beside each other and so would mix up its order."""


@attrs.frozen
class Pulling:
    """The consumer group and the limits of pull requests."""

    group: str = TOOLS_GROUP
    bytes_max: int = PULL_BYTES
    messages_max: int = PULL_MESSAGES


@attrs.frozen
class Content:
    """Which columns of each message are read, and which messages are read."""

    columns: tuple[str, ...] | None = None
    properties: str = "map"
    style: str = "ledgermq"
    mode: str = "FAILFAST"
    verify_crc: bool = False
    tags: tuple[str, ...] = ()
    """The tags of messages that are read; if there are none, all messages are read."""


@attrs.frozen
class ReadOptions:
    """All options of a read."""

    place: Servers | Stores
    subscription: Subscription
    starting: Position
    ending: Position
    limits: Limits
    split: Split
    pulling: Pulling
    content: Content
    fail_on_data_loss: bool
    strict_timestamps: bool
    push_filters: bool
    brokers: tuple[str, ...] = ()
    """Brokers that must be there when messages are read through name servers."""


@attrs.frozen
class WriteOptions:
    """All options of a write."""

    servers: Servers
    topic: str | None
    exactly_once: bool
    batch_bytes: int
    strict_status: bool
    allow_null_body: bool
    checkpoint: str | None
    message_bytes_max: int
    group: str


_NO_TABLES = (
    "Spark does not hand the options of a table to sources in Python; "
    "CREATE TEMPORARY VIEW ... USING ledgermq OPTIONS (...) does the same, and register_views() for all topics"
)


class _Given:
    """The given options by lower-case name. Their names have been checked."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        if "provider" in (key.lower() for key in options):
            raise BadOption("provider", FORMAT, _NO_TABLES)
        if not options:
            raise BadOption("nameServer", None, f"no options were given. If they were those of a table: {_NO_TABLES}")
        for key, value in options.items():
            name = key.lower()
            if name in _TAKEN_ALIASES or (name == "topic" and "subscribe" in known):
                name = ALIASES[name].lower()
            if name not in names:
                close = ALIASES.get(name) or next(iter(get_close_matches(name, names, 1, 0.6)), None)
                hint = (
                    f"did you mean {names.get(close.lower(), close)!r}?" if close else f"there are: {', '.join(sorted(known))}"
                )
                raise BadOption(key, value, f"there is no such option; {hint}")
            if name in self._values and self._values[name] != value:
                other = "" if name in SECRET_OPTIONS else f"; the other value is {self._values[name]!r}"
                raise BadOption(names[name], value, f"it is given twice{other}")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise BadOption(name, value, "it is empty")
        return value.strip() if value is not None else None

    def read(self, name: str, parse_value: Callable[[str, str], Value], default: Value) -> Value:
        value = self.text(name)
        return default if value is None else parse_value(name, value)


def _integer(least: int, most: int = INT_MAX) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text) else None
        if value is None or not least <= value <= most:
            raise BadOption(
                name, text, f"a whole number is expected, at least {least}" + (f", at most {most}" if most < INT_MAX else "")
            )
        return value

    return read


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadOption(name, text, "'true' or 'false' is expected")
    return text.lower() == "true"


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        for value in allowed:
            if value.lower() == text.lower():
                return value
        raise BadOption(name, text, f"one of {', '.join(allowed)} is expected")

    return read


def _names(name: str, text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(found):
        raise BadOption(name, text, "a name in the list is empty")
    return found


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def _duration(name: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|h)", text)
    if match is None:
        raise BadOption(name, text, "a duration is expected, such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def _timestamp(name: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(name, text, "milliseconds since 1970 or an ISO-8601 time are expected") from None
    return max(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000), 0)


def _addresses(name: str, text: str) -> tuple[Address, ...]:
    try:
        found = tuple(Address.parse(part) for part in re.split(r"[;,]", text) if part.strip())
    except ValueError as error:
        raise BadOption(name, text, str(error)) from None
    if not found:
        raise BadOption(name, text, "no address is named")
    return found


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(name, text, f"not a regular expression: {error}") from None
    return text


def _tags(name: str, text: str) -> tuple[str, ...]:
    if text == "*":
        return ()
    tags = tuple(part.strip() for part in text.split("||"))
    if not all(tags):
        raise BadOption(name, text, "tags are separated by '||', and none of them is empty")
    if any(re.search(r"\s", tag) for tag in tags):
        raise BadOption(name, text, "tags are expected, such as 'paid || new'; SQL expressions are for Spark's own WHERE")
    return tags


def _servers(given: _Given) -> Servers:
    text = given.text("nameServer")
    assert text is not None
    tls = tuple((name, value) for name in TLS_OPTIONS if (value := given.text(name)) is not None)
    return Servers(
        _addresses("nameServer", text),
        tls,
        given.read("failoverTimeoutMs", _integer(0), FAILOVER_MS) / 1000,
        credentials=_credentials(given),
    )


def _credentials(given: _Given) -> Credentials | None:
    access_key, secret_key, token = (given.text(name) for name in ACL_OPTIONS)
    if access_key is None and secret_key is None and token is None:
        return None
    if access_key is None or secret_key is None:
        missing = "accessKey" if access_key is None else "secretKey"
        raise BadOption(missing, None, "'accessKey' and 'secretKey' are given together or not at all")
    return Credentials(access_key, secret_key, token)


def _stores(given: _Given) -> Stores:
    text = given.text("storePath") or ""
    paths = tuple(path.rstrip("/") or "/" for path in _names("storePath", text.removeprefix("file://")))
    names = given.read("brokerName", _names, tuple(path.rpartition("/")[2] for path in paths))
    if len(names) != len(paths):
        raise BadOption(
            "brokerName", ",".join(names), f"one name for each of the {len(paths)} stores of 'storePath' is expected"
        )
    if len(set(names)) != len(names):
        raise BadOption(
            "storePath", text, "stores of one broker name would show every message twice; name them by 'brokerName'"
        )
    return Stores(paths, names)


def _place(given: _Given) -> Servers | Stores:
    by_network = given.text("nameServer")
    by_files = given.text("storePath")
    if (by_network is None) == (by_files is None):
        raise BadOption("nameServer", by_network, "exactly one of 'nameServer' and 'storePath' must be given")
    if by_files is not None:
        return _stores(given)
    return attrs.evolve(_servers(given), call_seconds=given.read("pullTimeoutMs", _integer(1), PULL_TIMEOUT_MS) / 1000)


def _subscription(given: _Given) -> Subscription:
    found = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
    if len(found) != 1:
        got = " and ".join(found) or "none"
        raise BadOption("subscribe", got, "exactly one of 'subscribe', 'subscribePattern' and 'assign' must be given")
    return Subscription(
        given.read("subscribe", _names, ()),
        given.read("subscribePattern", _pattern, ""),
        tuple(given.read("assign", parse_assignment, [])),
    )


def _position(given: _Given, side: str, default: int, allowed: tuple[int, ...]) -> Position:
    name = f"{side}Offsets"
    everywhere, offsets = default, None
    words = {"earliest": EARLIEST, "latest": LATEST}
    text = given.text(name)
    if text is not None:
        if text.lower() in words:
            everywhere = words[text.lower()]
            if everywhere not in allowed:
                raise BadOption(name, text, "this cannot be where a range begins or ends here")
        else:
            offsets = parse(name, text)
            for queue, offset in offsets.items():
                if offset < 0 and offset not in allowed:
                    raise BadOption(name, text, f"{queue}: {offset} cannot be where a range begins or ends here")
    timestamp_option, by_timestamp_option = f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    timestamp = given.read(timestamp_option, _timestamp, -1)
    by_timestamp = given.text(by_timestamp_option)
    timestamps = None if by_timestamp is None else parse(by_timestamp_option, by_timestamp, 0)
    option = timestamp_option if timestamp >= 0 else by_timestamp_option if timestamps is not None else name
    return Position(option, timestamp if timestamp >= 0 else None, timestamps, offsets, everywhere)


def read_content(options: Mapping[str, str]) -> Content:
    """Read the options that the schema of a batch or streaming read depends on.

    Raises:
        BadOption: as `read_options`.
    """
    return _content(_Given(options, READ_OPTIONS))


def _content(given: _Given) -> Content:
    return Content(
        given.read("columns", _names, None),
        given.read("includeProperties", _one_of(*INCLUDE_PROPERTIES), "map"),
        given.read("schemaStyle", _one_of("ledgermq", "kafka"), "ledgermq"),
        given.read("mode", _one_of(*MODES), "FAILFAST"),
        given.read("verifyCrc", _boolean, False),
        given.read("subExpression", _tags, ()),
    )


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Read the options of a batch or streaming read.

    Raises:
        BadOption: names the option, the value and what would be allowed.
    """
    given = _Given(options, READ_OPTIONS)
    place = _place(given)
    starting = _position(given, "starting", LATEST if streaming else EARLIEST, (EARLIEST, LATEST) if streaming else (EARLIEST,))
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp") if streaming else ():
        if (text := given.text(name)) is not None:
            raise BadOption(name, text, "a stream has no end; read a batch, or stop the query")
    ending = _position(given, "ending", LATEST, (LATEST,))
    if starting.timestamp_ms is not None and ending.timestamp_ms is not None and starting.timestamp_ms > ending.timestamp_ms:
        raise BadOption(
            "endingTimestamp", given.text("endingTimestamp"), "the range would end before 'startingTimestamp', where it begins"
        )
    limited = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
    optional: dict[str, int | None] = {
        name: given.read(name, _integer(1), 0) or None for name in (*limited, "maxRecordsPerPartition")
    }
    least, most = optional["minOffsetsPerTrigger"], optional["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise BadOption("minOffsetsPerTrigger", least, f"it must not be above 'maxOffsetsPerTrigger', which is {most}")
    return ReadOptions(
        place,
        _subscription(given),
        starting,
        ending,
        Limits(most, optional["maxBytesPerTrigger"], least, given.read("maxTriggerDelay", _duration, TRIGGER_DELAY_MS) / 1000),
        Split(
            given.read("minPartitions", _integer(1, 100_000), 1),
            optional["maxRecordsPerPartition"],
            given.read("maxBytesPerPartition", _integer(1), PARTITION_BYTES),
            (streaming or not isinstance(place, Stores)) and all(given.text(name) is None for name in _DIVIDING),
        ),
        Pulling(
            given.text("group") or TOOLS_GROUP,
            given.read("pullMaxBytes", _integer(1, 15 * MIB), PULL_BYTES),
            given.read("pullMaxMessages", _integer(1, 100_000), PULL_MESSAGES),
        ),
        _content(given),
        given.read("failOnDataLoss", _boolean, True),
        given.read("startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error") == "error",
        given.read("pushFilters", _boolean, False),
        () if isinstance(place, Stores) else given.read("brokerName", _names, ()),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a batch or streaming write; raises as `read_options` does."""
    given = _Given(options, WRITE_OPTIONS)
    for name in ("storePath", "brokerName"):
        if (text := given.text(name)) is not None:
            raise BadOption(name, text, "messages are written through a broker, never into a store's files; give 'nameServer'")
    if given.text("nameServer") is None:
        raise BadOption("nameServer", None, "it must be given: messages are written through a broker")
    servers = attrs.evolve(_servers(given), call_seconds=given.read("sendTimeoutMs", _integer(1), SEND_TIMEOUT_MS) / 1000)
    return WriteOptions(
        servers,
        given.text("topic"),
        given.read("deliveryGuarantee", _one_of("exactly-once", "at-least-once"), "exactly-once") == "exactly-once",
        given.read("sendBatchBytes", _integer(1, 15 * MIB), SEND_BATCH_BYTES),
        given.read("sendStatus", _one_of("strict", "stored"), "strict") == "strict",
        given.read("allowNullBody", _boolean, False),
        given.text("checkpointLocation"),
        given.read("maxMessageBytes", _integer(1, 15 * MIB), 4 * MIB),
        given.text("group") or "spark-ledgermq",
    )
