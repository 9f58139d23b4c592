"""LedgerMQ: a RocketMQ-compatible message broker in Python on trio.

The names below are all that applications need: clients, messages, and the errors that clients raise. They are imported when
they are first used, so that `import ledgermq` costs nothing and the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker.broker import Broker as Broker
    from .broker.opening import start_broker as start_broker
    from .client.admin import Admin as Admin
    from .client.admin import open_admin as open_admin
    from .client.admin.errors import GroupExists as GroupExists
    from .client.admin.errors import MessagesWouldBeHidden as MessagesWouldBeHidden
    from .client.admin.errors import NoSuchGroup as NoSuchGroup
    from .client.admin.errors import NotInRoutes as NotInRoutes
    from .client.admin.errors import TopicExists as TopicExists
    from .client.admin.topic_settings import TopicSettings as TopicSettings
    from .client.cancelled import known_outcomes as known_outcomes
    from .client.cancelled import may_have_been_stored as may_have_been_stored
    from .client.compression import BadBody as BadBody
    from .client.compression import Compression as Compression
    from .client.consumer import Consumer as Consumer
    from .client.consumer import open_consumer as open_consumer
    from .client.errors import BadAnswer as BadAnswer
    from .client.errors import BrokerSystemError as BrokerSystemError
    from .client.errors import ClientError as ClientError
    from .client.errors import Closed as Closed
    from .client.errors import InvalidArgument as InvalidArgument
    from .client.errors import InvalidParameter as InvalidParameter
    from .client.errors import MessageIllegal as MessageIllegal
    from .client.errors import MessageTooLarge as MessageTooLarge
    from .client.errors import NoAnswer as NoAnswer
    from .client.errors import NoPermission as NoPermission
    from .client.errors import NoRoute as NoRoute
    from .client.errors import NoRouteReason as NoRouteReason
    from .client.errors import NotFound as NotFound
    from .client.errors import NotLeader as NotLeader
    from .client.errors import NotOnline as NotOnline
    from .client.errors import NotSupported as NotSupported
    from .client.errors import OffsetsNotWritten as OffsetsNotWritten
    from .client.errors import OffsetsUnreadable as OffsetsUnreadable
    from .client.errors import OtherProcess as OtherProcess
    from .client.errors import ProducerFenced as ProducerFenced
    from .client.errors import Refused as Refused
    from .client.errors import SendCancelled as SendCancelled
    from .client.errors import SendForgotten as SendForgotten
    from .client.errors import SendTimeout as SendTimeout
    from .client.errors import ServiceNotAvailable as ServiceNotAvailable
    from .client.errors import Stopped as Stopped
    from .client.errors import SubscriptionRefused as SubscriptionRefused
    from .client.errors import SystemBusy as SystemBusy
    from .client.errors import TopicNotExist as TopicNotExist
    from .client.errors import Unreachable as Unreachable
    from .client.errors import WrongEventLoop as WrongEventLoop
    from .client.fetch import OffsetMoved as OffsetMoved
    from .client.health import Health as Health
    from .client.producer import Producer as Producer
    from .client.producer import open_producer as open_producer
    from .client.pull import PullConsumer as PullConsumer
    from .client.pull import open_pull_consumer as open_pull_consumer
    from .client.push_consumer import QueueProgress as QueueProgress
    from .client.received import ReceivedMessage as ReceivedMessage
    from .client.sending import SendResult as SendResult
    from .client.sending import SendStatus as SendStatus
    from .client.statistics import ConsumerStatistics as ConsumerStatistics
    from .client.statistics import ProducerStatistics as ProducerStatistics
    from .client.subscription import ConsumeFrom as ConsumeFrom
    from .client.subscription import MessageModel as MessageModel
    from .client.subscription import ReadFrom as ReadFrom
    from .client.subscription import Subscription as Subscription
    from .client.subscription import sql as sql
    from .message.message import Message as Message
    from .message.message import MessageQueue as MessageQueue
    from .message.message import StoredMessage as StoredMessage
    from .remoting.signature import Credentials as Credentials
    from .world.tls import ClientTls as ClientTls

_HOMES = {
    "Admin": "client.admin",
    "BadAnswer": "client.errors",
    "BadBody": "client.compression",
    "Broker": "broker.broker",
    "BrokerSystemError": "client.errors",
    "ClientError": "client.errors",
    "ClientTls": "world.tls",
    "Closed": "client.errors",
    "Compression": "client.compression",
    "ConsumeFrom": "client.subscription",
    "Consumer": "client.consumer",
    "ConsumerStatistics": "client.statistics",
    "Credentials": "remoting.signature",
    "GroupExists": "client.admin.errors",
    "Health": "client.health",
    "InvalidArgument": "client.errors",
    "InvalidParameter": "client.errors",
    "Message": "message.message",
    "MessageIllegal": "client.errors",
    "MessageModel": "client.subscription",
    "MessageQueue": "message.message",
    "MessageTooLarge": "client.errors",
    "MessagesWouldBeHidden": "client.admin.errors",
    "NoAnswer": "client.errors",
    "NoPermission": "client.errors",
    "NoRoute": "client.errors",
    "NoRouteReason": "client.errors",
    "NoSuchGroup": "client.admin.errors",
    "NotFound": "client.errors",
    "NotInRoutes": "client.admin.errors",
    "NotLeader": "client.errors",
    "NotOnline": "client.errors",
    "NotSupported": "client.errors",
    "OffsetMoved": "client.fetch",
    "OffsetsNotWritten": "client.errors",
    "OffsetsUnreadable": "client.errors",
    "OtherProcess": "client.errors",
    "Producer": "client.producer",
    "ProducerFenced": "client.errors",
    "ProducerStatistics": "client.statistics",
    "PullConsumer": "client.pull",
    "QueueProgress": "client.push_consumer",
    "ReadFrom": "client.subscription",
    "ReceivedMessage": "client.received",
    "Refused": "client.errors",
    "SendCancelled": "client.errors",
    "SendForgotten": "client.errors",
    "SendResult": "client.sending",
    "SendStatus": "client.sending",
    "SendTimeout": "client.errors",
    "ServiceNotAvailable": "client.errors",
    "Stopped": "client.errors",
    "StoredMessage": "message.message",
    "Subscription": "client.subscription",
    "SubscriptionRefused": "client.errors",
    "SystemBusy": "client.errors",
    "TopicExists": "client.admin.errors",
    "TopicNotExist": "client.errors",
    "TopicSettings": "client.admin.topic_settings",
    "Unreachable": "client.errors",
    "WrongEventLoop": "client.errors",
    "known_outcomes": "client.cancelled",
    "may_have_been_stored": "client.cancelled",
    "open_admin": "client.admin",
    "open_consumer": "client.consumer",
    "open_producer": "client.producer",
    "open_pull_consumer": "client.pull",
    "sql": "client.subscription",
    "start_broker": "broker.opening",
}
"""Each public name and the module that defines it."""

__all__ = sorted(_HOMES)  # noqa: PLE0605 - computed from the one table  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
