"""What a broker needs of a replication mode: one node of its group.

The classic node follows the role that the broker has been given; a DLedger node elects and reports what it has become.
"""

from __future__ import annotations

from typing import Protocol

import trio

from ..store.commitlog import CommitLog
from ..store.config import StoreConfig
from ..store.message_store import MessageStore
from ..world.network import Address
from ..world.real import World


class ReplicationNode(Protocol):
    """One node of a group of brokers that share a log.

    Order: `open_commit_log` while the store is being opened; `run` once it is open; then `lead`, `follow` and `stop`.
    """

    @property
    def port(self) -> int:
        """Where the other nodes connect: the port in use, or the configured one while none is."""
        ...

    @property
    def is_following(self) -> bool:
        """Whether it follows a master or leader and is connected to it now."""
        ...

    def open_commit_log(self, world: World, config: StoreConfig) -> CommitLog:
        """Open the log that the store is to use; blocks."""
        ...

    async def run(self, store: MessageStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of whatever role the node has, until cancelled.

        Raises:
            OSError: a port is taken, or a file beside the log cannot be read or written.
        """
        ...

    async def prepare_to_lead(self) -> None:
        """Make all that the group has promised readable here; before the store becomes writable and `lead` is called."""
        ...

    async def lead(self, broker_id: int, *, synchronous: bool) -> None:
        """Serve the other nodes as their master; no role may be active.

        Args:
            synchronous: puts wait for the other nodes.

        Raises:
            OSError: as `run`.
        """
        ...

    async def follow(self, broker_id: int) -> None:
        """Follow the master; no role may be active.

        Raises:
            OSError: as `run`.
        """
        ...

    async def stop(self) -> None:
        """End the active role, if there is one: connections are closed, puts that wait for other nodes are answered."""
        ...

    async def hand_over(self) -> None:
        """Before the broker stops: let another node lead, if this one does and the mode can."""
        ...

    def set_master(self, master: Address | None) -> None:
        """Take a name server's word for where the master serves its slaves; may come at any time."""
        ...
