"""Messages that a request names by their position in the log, so that what they are is known only when they are read.

A position may be that of any record. So the right to read its topic is checked here, and events of the log, which contain the
passwords of users, are no messages.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from ...message.control import CONTROL_TOPIC
from ...message.fields import Buffer
from ...message.layout import decode_record
from ...message.properties import REAL_TOPIC
from ...remoting.codes import ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.config import SCHEDULE_TOPIC
from ...store.message_store import MessageStore


class ReadCheck(Protocol):
    """Who may read which topics."""

    def read_refusal(self, connection: ServerConnection, request: RemotingCommand, topic: str) -> RequestRefused | None:
        """Why the sender of a request that was let in may not read a topic; None if it may."""
        ...

    @property
    def version(self) -> object:
        """A value that differs from earlier ones once the users or their rights have changed."""
        ...

    def later_refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        """Why a request that was let in may not be answered any more; its signature is not checked again."""
        ...


@attrs.frozen(eq=False, repr=False)
class Positions:
    """The stored messages, by physical offset."""

    store: MessageStore
    access: ReadCheck | None

    def message_at(self, connection: ServerConnection, request: RemotingCommand, offset: int) -> Buffer:
        """The record at a physical offset, for the sender of a request.

        Raises:
            RequestRefused: there is no message, or its topic may not be read.
        """
        record = self.store.message_at(offset)
        stored = decode_record(record) if record is not None else None
        if record is None or stored is None or stored.topic == CONTROL_TOPIC:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no message at the physical offset {offset}")
        if self.access is not None:
            topic = stored.properties.get(REAL_TOPIC, stored.topic) if stored.topic == SCHEDULE_TOPIC else stored.topic
            if (refusal := self.access.read_refusal(connection, request, topic)) is not None:
                raise refusal
        return record
