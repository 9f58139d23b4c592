"""Errors of the client.

ClientError
├── InvalidArgument              an argument is refused before anything is sent (also a ValueError)
│   └── MessageTooLarge          body or properties exceed their limit
├── WrongEventLoop               the client needs another event loop than the one that runs (also a RuntimeError)
├── OtherProcess                 a client with a thread was used in a process that was forked from the one that opened it
├── NoRoute                      no queue to send to or to read from; see `NoRouteReason`
├── Unreachable                  a broker or name server cannot be connected
├── NoAnswer                     the connection was lost or the time limit reached before the answer came
├── BadAnswer                    an answer lacks a required field
├── OffsetsUnreadable            the file in which a broadcasting consumer keeps its offsets is damaged or in use
├── OffsetsNotWritten            that file could not be written
├── SendTimeout                  the total time limit of a send was reached
├── SendCancelled                stands for a message whose send was cancelled; see `known_outcomes`
├── Closed                       the client was closed before or during the call
├── Stopped                      the consumer was stopped before or during the call
└── Refused                      a server answered with a code; one subclass per family of codes, see `REFUSALS`

Three class attributes say how to react: `retriable` (the same call may succeed later or on another server),
`invalid_metadata` (refresh the route first), `may_have_been_stored` (after a failed send, the message may be in the log).
"""

from __future__ import annotations

from enum import Enum

from ..remoting.codes import ResponseCode


class ClientError(Exception):
    """Base class of all errors of the client.

    Where a subclass says that nothing was sent, done or stored, it speaks of the attempt that ended with it. An earlier attempt
    of the same send may have stored the message, and `may_have_been_stored` covers all of them.
    """

    retriable = False
    invalid_metadata = False
    may_have_been_stored = False


class InvalidArgument(ClientError, ValueError):
    """A topic, group, message or option that no broker would accept. Nothing was sent."""


class MessageTooLarge(InvalidArgument):
    """`part` of a message has `size` bytes; `size_max` are allowed. Nothing was sent."""

    def __init__(self, part: str, size: int, size_max: int) -> None:
        super().__init__(f"{part} of {size} bytes passes the limit of {size_max}")
        self.part = part
        self.size = size
        self.size_max = size_max


class WrongEventLoop(ClientError, RuntimeError):
    """A client was opened or called where the event loop that it needs does not run. Nothing was done."""


class OtherProcess(ClientError, RuntimeError):
    """A client with a thread of its own was used in a process that was forked from the one that opened it. Nothing was done."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"a client cannot be used after a fork: {detail}; open one in each process, after the fork")


EVERY_TOPIC = "*"


class NoRouteReason(Enum):
    """Why there is no queue, and what to do."""

    NAME_SERVER_UNREACHABLE = "no name server answers: check the addresses, and that it runs"
    NO_BROKER = "the name server knows no broker: start one, or check which name servers it registers with"
    TOPIC_UNKNOWN = "no broker has the topic and none creates it: create it, or set autoCreateTopicEnable"
    NO_MASTER = "every broker with the topic has lost its master: restart a master"
    NO_MASTER_AT_ALL = "every broker has lost its master: restart a master"
    NO_PERMISSION = "the topic's permissions allow it on no broker: change its perm"


class NoRoute(ClientError):
    """No queue of `topic` can be used (with `EVERY_TOPIC`: no broker) because of `reason`. Nothing was sent."""

    retriable = True
    invalid_metadata = True

    def __init__(self, topic: str, reason: NoRouteReason, detail: str = "") -> None:
        what = "no broker to ask" if topic == EVERY_TOPIC else f"no route for topic {topic!r}"
        super().__init__(f"{what}: {reason.value}{f' ({detail})' if detail else ''}")
        self.topic = topic
        self.reason = reason
        self.detail = detail


class Unreachable(ClientError):
    """`address` cannot be reached. Nothing was sent to it."""

    retriable = True
    invalid_metadata = True

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"{address} cannot be reached: {detail}")
        self.address = address


class NoAnswer(ClientError):
    """`address` got the request and did not answer; it may have executed it."""

    retriable = True
    may_have_been_stored = True

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"{address} did not answer: {detail}")
        self.address = address


class BadAnswer(ClientError):
    """`address` answered success without the required fields; it has executed the request."""

    may_have_been_stored = True

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"{address} answered without {detail}")
        self.address = address


class OffsetsUnreadable(ClientError):
    """The offsets in the file `path` cannot be used. Nothing was read, and the file was left as it is.

    If another consumer uses it, name another file. Otherwise repair it, or remove it to begin at the position of a new group
    (`consume_from`).
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"the offsets in {path} cannot be used: {detail}")
        self.path = path


class OffsetsNotWritten(ClientError):
    """The offsets could not be written to the file `path`; they are written again with the next commit."""

    retriable = True

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"the offsets could not be written to {path}: {detail}")
        self.path = path


class SendTimeout(ClientError):
    """No broker acknowledged a message within `timeout_ms`, over `attempts` attempts; `last` is why the last one failed.

    A broker that got the request may have stored the message, unless `may_have_been_stored` is False.
    """

    retriable = True
    may_have_been_stored = True

    def __init__(self, topic: str, timeout_ms: int, attempts: int, *, may_have_been_stored: bool, last: str = "") -> None:
        detail = f"{attempts} attempts; the last one: {last}" if last else f"{attempts} attempts"
        super().__init__(f"no broker acknowledged a message for {topic!r} within {timeout_ms} ms ({detail})")
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.attempts = attempts
        self.last = last
        self.may_have_been_stored = may_have_been_stored


class SendCancelled(ClientError):
    """Stands for a message whose send was cancelled before its outcome was known; never raised, see `known_outcomes`.

    Without `may_have_been_stored` no request with the message was begun: it was not stored.
    """

    def __init__(self, *, may_have_been_stored: bool) -> None:
        known = "the message may have been stored" if may_have_been_stored else "the message was not stored"
        super().__init__(f"the send was cancelled; {known}")
        self.may_have_been_stored = may_have_been_stored


class Closed(ClientError):
    """The client is closed, or was closed during the call; in the second case a sent message may have been stored."""

    def __init__(self, message: str, *, may_have_been_stored: bool = False) -> None:
        super().__init__(message)
        self.may_have_been_stored = may_have_been_stored


class Stopped(ClientError):
    """The consumer hands out no more messages, because the application has stopped it."""


class Refused(ClientError):
    """`address` answered `code` with `remark`."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name = ResponseCode(code).name if code in _KNOWN_CODES else "unknown code"
        super().__init__(f"{address} answered {code} ({name}): {remark or 'no remark'}")
        self.code = code
        self.remark = remark or ""
        self.address = address


class BrokerSystemError(Refused):
    """Code 1: an unexpected error in the broker. Foreign brokers also answer it to bad requests, such as an unknown queue."""

    retriable = True
    invalid_metadata = True
    may_have_been_stored = True


class SystemBusy(Refused):
    """Code 2, 215: the broker sheds load. Nothing was done."""

    retriable = True


class NotSupported(Refused):
    """Code 3: the server does not know this request."""


class MessageIllegal(Refused):
    """Code 13: the size, topic, properties or delay of a message is not allowed. Nothing was stored."""


class ServiceNotAvailable(Refused):
    """Code 14, 1500: the broker is not writable now (starting, stopping, slave, disk full). Nothing was stored."""

    retriable = True
    invalid_metadata = True


class NoPermission(Refused):
    """Code 16: the broker, topic or group forbids the request. Nothing was done."""

    retriable = True
    invalid_metadata = True


class TopicNotExist(Refused):
    """Code 17: the server does not know the topic, or the topic has no such queue there. Nothing was done."""

    retriable = True
    invalid_metadata = True


class NotFound(Refused):
    """Code 22, 208: there is no such offset, message or entry."""


class SubscriptionRefused(Refused):
    """Code 23 to 28: a filter expression, a subscription or a group that the broker cannot use (yet)."""

    retriable = True


class InvalidParameter(Refused):
    """Code 29: a parameter is out of range."""


class NotOnline(Refused):
    """Code 206, 207: the group has no member online, or the member did not answer."""


class NotLeader(Refused):
    """Code 501: another broker leads this queue now. Nothing was stored."""

    retriable = True
    invalid_metadata = True


class ProducerFenced(Refused):
    """Code 60101, of our brokers: a producer with the same id and a higher epoch has replaced this one. Nothing was stored."""


class SendForgotten(Refused):
    """Code 60102, of our brokers: a repeated send is too old to tell whether it was stored. The repetition stored nothing."""


_KNOWN_CODES = frozenset(int(code) for code in ResponseCode)

REFUSALS: dict[int, type[Refused]] = {
    1: BrokerSystemError,
    2: SystemBusy,
    3: NotSupported,
    13: MessageIllegal,
    14: ServiceNotAvailable,
    16: NoPermission,
    17: TopicNotExist,
    22: NotFound,
    23: SubscriptionRefused,
    24: SubscriptionRefused,
    25: SubscriptionRefused,
    26: SubscriptionRefused,
    27: SubscriptionRefused,
    28: SubscriptionRefused,
    29: InvalidParameter,
    206: NotOnline,
    207: NotOnline,
    208: NotFound,
    215: SystemBusy,
    501: NotLeader,
    1500: ServiceNotAvailable,
    60101: ProducerFenced,
    60102: SendForgotten,
}
"""The error class of each response code; other codes become a plain `Refused`, which is not retriable."""


def refusal(code: int, remark: str | None, address: str) -> Refused:
    """Make the error for an answer that is not a success."""
    return REFUSALS.get(code, Refused)(code, remark, address)
