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


@attrs.define(eq=False)
class Workload(ABC):
    """Some clients of one run. Other workloads run beside it, on topics and groups of their own."""

    name: ClassVar[str]
    codes: ClassVar[frozenset[RequestCode]]
    """Requests that change state, and that this workload makes."""
    scene: Scene

    @abstractmethod
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. What is begun after `scene.healed` must not be waited for by `lacking`."""

    def started(self, node: Node, broker: Broker) -> None:  # noqa: B027 - few need it
        """Take notice of a broker that has just started, before it serves anybody."""

    def lacking(self) -> str:
        """What is not yet as it must be some time after everything was healed; empty if nothing is."""
        return ""

    def look(self, store: MessageStore) -> None:  # noqa: B027 - few need it
        """Look into the master's store after the end of the run."""

    def violations(self) -> list[str]:
        """What was seen and may never be seen, beside what the checkers find in the history."""
        return []

    def counts(self) -> dict[str, int]:
        """How much was done and judged."""
        return {}


def note_failure(put: Put, error: ClientError) -> None:
    """Note what the error of a send says about its message."""
    put.refused = not error.may_have_been_stored
    put.withdrawn = isinstance(error, ServiceNotAvailable)


def number_in(body: bytes) -> int:
    """The number that a body begins with."""
    return int(body.partition(b";")[0])
