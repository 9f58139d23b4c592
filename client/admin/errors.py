"""Errors of the admin client, besides those of all clients.

ClientError
├── TopicExists              a topic that was to be created exists with other settings
├── MessagesWouldBeHidden    a change would hide queues that hold messages, and was not forced
├── NotInRoutes              brokers have accepted a change that a name server does not have yet
├── GroupExists              a group that was to be created exists with other settings
└── NoSuchGroup              a group that was asked for or to be changed exists on no broker
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...message.message import MessageQueue
from ..errors import ClientError
from .topic_settings import TopicSettings


class TopicExists(ClientError):
    """A topic that was to be created exists with other `settings` on `broker`. Nothing was changed anywhere."""

    def __init__(self, topic: str, broker: str, settings: TopicSettings) -> None:
        super().__init__(f"topic {topic} exists on {broker} with other settings: {settings}; nothing was changed")
        self.topic = topic
        self.broker = broker
        self.settings = settings


class NotInRoutes(ClientError):
    """The brokers have accepted a topic's settings, but a name server lacks them: clients may still use the old ones."""

    def __init__(self, topic: str, name_server: str, seconds: float) -> None:
        super().__init__(
            f"the brokers have topic {topic} as asked, but the name server {name_server} does not show it after {seconds:.0f} s"
        )
        self.topic = topic
        self.name_server = name_server


class MessagesWouldBeHidden(ClientError):
    """With fewer queues, the messages in `queues` could not be read any more. Nothing was changed."""

    def __init__(self, topic: str, queues: Mapping[MessageQueue, int]) -> None:
        count = sum(queues.values())
        named = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in sorted(queues))
        super().__init__(
            f"{count} messages of topic {topic} in the queues {named} could not be read any more; nothing was changed"
        )
        self.topic = topic
        self.queues = queues


class GroupExists(ClientError):
    """A group that was to be created exists with other settings on `broker`. Nothing was changed anywhere."""

    def __init__(self, group: str, broker: str, different: Mapping[str, Any]) -> None:
        named = ", ".join(f"{key} is {value}" for key, value in sorted(different.items()))
        super().__init__(f"group {group} exists on {broker} with other settings: {named}; nothing was changed")
        self.group = group
        self.broker = broker
        self.different = different


class NoSuchGroup(ClientError):
    """No broker has the group. Nothing was changed."""

    def __init__(self, group: str) -> None:
        super().__init__(f"there is no group {group!r}")
        self.group = group
