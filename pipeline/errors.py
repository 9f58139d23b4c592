"""The errors of the data source and the jobs; each one names the option or the place, and what was not done.

PipelineError
├── BadOption          an option has a value that cannot be used
├── BadSchema          a schema that the source or the sink does not have
├── UnknownTopic       a topic that does not exist or may not be read
├── TopicGone          a topic has been deleted from a live broker
├── Unavailable        a name server or broker does not answer
│   └── BrokerGone     no name server knows a broker
├── DataLoss           messages of a planned range no longer exist, or are missing
├── CorruptStore       bytes of a store that are no message
│   └── CorruptFile    a table or a manifest that is not what was written
├── NotWritten         a row that cannot be sent, or a broker that did not store it as promised
│   └── Replaced       another attempt of the same task has begun
├── NoJava             no Java that Spark runs on
└── NoSpark            the extra `spark` is not installed
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches


def warn(text: str) -> None:
    """Report messages that a read skipped because its options accept it. The standard error of a worker goes to Spark's log."""
    sys.stderr.write(f"{WARNING}{text}\n")


WARNING = "ledgermq: "
"""How a line with a warning begins."""


class PipelineError(Exception):
    """The base class of all errors of the pipeline."""


SECRET_OPTIONS = frozenset(("secretkey", "securitytoken", "tls.client.keypassword"))
"""Options, in lower case, whose values are never part of an error."""


class BadOption(PipelineError, ValueError):
    """An option has a value that cannot be used; nothing was read or written."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        shown = "a secret" if option.lower() in SECRET_OPTIONS and value is not None else repr(value)
        super().__init__(f"option {option!r}: {reason} (got {shown})")
        self.option, self.value = option, value


class BadSchema(PipelineError, ValueError):
    """A schema names columns that do not exist, or gives them other types; nothing was read or written."""


class UnknownTopic(PipelineError):
    """A topic does not exist, or may not be read; nothing was read of it."""

    def __init__(self, topic: str, option: str, where: str, known: Iterable[str] = ()) -> None:
        close = get_close_matches(topic, list(known), 3, 0.6)
        hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
        super().__init__(f"option {option!r}: the topic {topic!r} does not exist, or may not be read, in {where}{hint}")
        self.topic = topic


class TopicGone(PipelineError):
    """A live broker no longer has a topic."""

    def __init__(self, topic: str, broker_name: str) -> None:
        super().__init__(f"the topic {topic!r} has been deleted from the broker {broker_name!r}")
        self.topic, self.broker_name = topic, broker_name


class Unavailable(PipelineError):
    """A server does not answer; nothing more was read or written than was reported before."""


class BrokerGone(Unavailable):
    """No name server knows the broker of a queue: it is down, or has been removed from the cluster."""

    def __init__(self, queue: object, servers: object) -> None:
        super().__init__(f"{queue}: no name server of {servers} knows its broker")


class DataLoss(PipelineError):
    """Messages of a planned range are not there; the batch that needs them was not completed."""

    def __init__(self, queue: object, reason: str) -> None:
        self.reason = f"{queue}: {reason}"
        super().__init__(
            f"{self.reason}. Nothing was skipped. "
            "Set the option 'failOnDataLoss' to 'false' to go on without them, or start from other offsets"
        )


class CorruptStore(PipelineError):
    """Bytes of a store are not the message to which its queue refers; nothing was skipped."""

    def __init__(self, place: str, reason: str) -> None:
        self.reason = f"{place}: {reason}"
        super().__init__(
            f"{self.reason}. Nothing was skipped. Set the option 'mode' to 'DROPMALFORMED' or 'PERMISSIVE' to go on"
        )


class CorruptFile(CorruptStore):
    """A table of a store or a manifest of an archive is not what was written; nothing was read or written."""

    def __init__(self, path: str, what: str, reason: str) -> None:
        self.reason = f"{path}: {what} is not what was written: {reason}"
        PipelineError.__init__(self, f"{self.reason}. Nothing was read or written")


class NotWritten(PipelineError):
    """A row cannot be sent, or was stored less safely than the broker promises."""


class Replaced(NotWritten):
    """Another attempt of the same task has begun, and brokers store nothing of this one any more."""


class NoJava(PipelineError):
    """No Java that Spark runs on was found; no session was started."""


class NoSpark(PipelineError, ImportError):
    """The extra `spark` is not installed, or not completely; nothing was started."""

    def __init__(self, missing: Iterable[str]) -> None:
        super().__init__(
            f"{', '.join(missing)} is missing; install Spark and what belongs to it: pip install 'ledgermq[spark]'"
        )
