"""The interface of a replication mode to the broker: one node of its group.

The broker sets the role of a classic node; a DLedger node takes part in elections and reports its role.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ..store.config import StoreConfig
from ..store.keeping.scrub import Framing
from ..store.log.commitlog import CommitLog
from ..store.message_store import MessageStore
from ..world.network import Address
from ..world.real import World


class ReplicationNode(Protocol):
    """One node of a group of brokers that share a log.

    Order of calls: `open_commit_log` while the store is opened, `run` once it is open, then `lead`, `follow` and `stop`.
    """

    @property
    def port(self) -> int:
        """The port to which the other nodes connect, or the configured one while the node does not listen."""
        ...

    @property
    def is_following(self) -> bool:
        """Whether the node follows a master or leader and is connected to it now."""
        ...

    @property
    def lag_bytes(self) -> int:
        """How many bytes a replica's log is known to be behind its master's; 0 on a master."""
        ...

    @property
    def is_removed(self) -> bool:
        """Whether the group has removed this node from its members."""
        ...

    @property
    def leads(self) -> Callable[[], Awaitable[bool]] | None:
        """Asks the group whether this node leads it now; None where no other node can have been elected."""
        ...

    @property
    def log_directory(self) -> str:
        """The directory of the log's files where it is not that of a local log; else empty."""
        ...

    def open_commit_log(self, world: World, config: StoreConfig) -> CommitLog:
        """Open the log of the store. Blocks."""
        ...

    async def run(self, store: MessageStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of the node's current role, until cancelled.

        Raises:
            OSError: a port is taken, or a file beside the log cannot be read or written.
        """
        ...

    async def prepare_to_lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:
        """Make the whole log readable here, before the store becomes writable and `lead` runs with the same arguments."""
        ...

    async def lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:
        """Serve the other nodes as their master; no role may be active.

        Args:
            synchronous: whether puts wait for the other nodes.
            term: the term or epoch for which this node was elected; 0 where nobody elects.

        Raises:
            OSError: as `run`.
        """
        ...

    async def follow(self, broker_id: int, *, term: int) -> None:
        """Follow the master; no role may be active.

        Args:
            term: the term or epoch for which the master was elected; 0 where nobody elects.

        Raises:
            OSError: as `run`.
        """
        ...

    async def stop(self) -> None:
        """End the active role, if any: connections are closed, and puts that wait for other nodes are answered."""
        ...

    def framing_at(self, offset: int) -> Framing:
        """How the log frames its records at a physical offset."""
        ...

    def mend(self, offset: int) -> bool:
        """Ask the other nodes for a copy of a damaged record; returns False if the mode has none or cannot."""
        ...

    async def hand_over(self) -> None:
        """Transfer leadership before the broker stops, if this node leads and the mode can."""
        ...

    def set_master(self, master: Address | None) -> None:
        """Set the address at which the master serves its slaves, as name servers report it; may be called at any time."""
        ...
