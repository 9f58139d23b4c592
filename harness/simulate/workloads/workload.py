"""The interface of a workload: what some clients do while nodes and networks fail, and what they must find in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.client.errors import ClientError, ServiceNotAvailable
from ledgermq.remoting.codes import RequestCode
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.history import Put

from ..scene import Node, Scene

LOOK_SECONDS = 0.5
"""The pause between two looks of a workload at what servers or clients hold."""


@attrs.define(eq=False)
class Workload(ABC):
    """Some clients of one run. Other workloads run concurrently, with their own topics and groups."""

    name: ClassVar[str]
    codes: ClassVar[frozenset[RequestCode]]
    """The requests of this workload that change state."""
    scene: Scene

    @abstractmethod
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. `lacking` must not wait for operations that begin after `scene.healed`."""

    def started(self, node: Node, broker: Broker) -> None:  # noqa: B027 - few need it
        """Handle the start of a broker, before it serves requests."""

    def lacking(self) -> str:
        """A description of what is still missing and must arrive some time after all faults ended; empty if nothing is."""
        return ""

    def look(self, store: MessageStore) -> None:  # noqa: B027 - few need it
        """Examine the master's store after the end of the run."""

    def violations(self) -> list[str]:
        """Violations that were observed directly, in addition to those that the checkers find in the history."""
        return []

    def counts(self) -> dict[str, int]:
        """How much was done and checked."""
        return {}


def note_failure(put: Put, error: ClientError) -> None:
    """Record what the error of a send means for its message."""
    put.refused = not error.may_have_been_stored
    put.withdrawn = isinstance(error, ServiceNotAvailable)


def number_in(body: bytes) -> int:
    """The number at the beginning of a body."""
    return int(body.partition(b";")[0])
