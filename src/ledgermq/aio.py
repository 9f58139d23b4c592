"""The client library for asyncio; see `ledgermq.client.aio`."""

from __future__ import annotations

from .client.aio.clients import (
    AioAdmin,
    AioConsumer,
    AioMessage,
    AioProducer,
    AioPullConsumer,
    open_admin,
    open_consumer,
    open_producer,
    open_pull_consumer,
)
from .client.cancelled import known_outcomes, may_have_been_stored

__all__ = [
    "AioAdmin",
    "AioConsumer",
    "AioMessage",
    "AioProducer",
    "AioPullConsumer",
    "known_outcomes",
    "may_have_been_stored",
    "open_admin",
    "open_consumer",
    "open_producer",
    "open_pull_consumer",
]
