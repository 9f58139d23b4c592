"""The client library for plain threads; see `ledgermq.client.blocking`."""

from __future__ import annotations

from .client.blocking import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingMessage,
    BlockingProducer,
    BlockingPullConsumer,
    open_admin,
    open_consumer,
    open_producer,
    open_pull_consumer,
)

__all__ = [
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingMessage",
    "BlockingProducer",
    "BlockingPullConsumer",
    "open_admin",
    "open_consumer",
    "open_producer",
    "open_pull_consumer",
]
