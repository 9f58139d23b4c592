"""LedgerMQ: a RocketMQ-compatible message broker in Python on trio.

The names below are all that most applications need. They are imported when they are first used, so that `import ledgermq` costs
nothing and the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker.broker import start_broker as start_broker
    from .client.admin import open_admin as open_admin
    from .client.compression import Compression as Compression
    from .client.consumer import open_consumer as open_consumer
    from .client.errors import ClientError as ClientError
    from .client.producer import open_producer as open_producer
    from .client.pull import open_pull_consumer as open_pull_consumer
    from .client.received import ReceivedMessage as ReceivedMessage
    from .client.sending import SendResult as SendResult
    from .client.sending import SendStatus as SendStatus
    from .client.subscription import ConsumeFrom as ConsumeFrom
    from .client.subscription import MessageModel as MessageModel
    from .client.subscription import sql as sql
    from .message.message import Message as Message
    from .message.message import MessageQueue as MessageQueue
    from .world.tls import ClientTls as ClientTls

_HOMES = {
    "ClientError": "client.errors",
    "ClientTls": "world.tls",
    "Compression": "client.compression",
    "ConsumeFrom": "client.subscription",
    "Message": "message.message",
    "MessageModel": "client.subscription",
    "MessageQueue": "message.message",
    "ReceivedMessage": "client.received",
    "SendResult": "client.sending",
    "SendStatus": "client.sending",
    "open_admin": "client.admin",
    "open_consumer": "client.consumer",
    "open_producer": "client.producer",
    "open_pull_consumer": "client.pull",
    "sql": "client.subscription",
    "start_broker": "broker.broker",
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
