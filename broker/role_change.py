"""What follows when the role of a broker changes, in its order from top to bottom."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from ..store.message_store import MessageStore
from ..world.clock import Clock
from .delay import DelayDelivery
from .modes.replication import Replication
from .registration import Registration
from .requests.pull import PullService
from .role import LiveRole, Role, RoleState
from .tables.adoption import adopt_stored
from .tables.commits import Commits
from .tables.persistence import LOCKS_FILE, TOPICS_FILE, Persistence
from .tables.tables import Tables

SETTLE_SECONDS = 0.3
"""The longest time that a stop or a change of role waits for puts that wait for a flush or a slave."""


@attrs.frozen(eq=False, kw_only=True, repr=False)
class BrokerRoleChange:
    """Implements `RoleChange` for a broker."""

    store: MessageStore
    role: LiveRole
    clock: Clock
    tables: Tables
    commits: Commits
    persistence: Persistence
    replication: Replication[Any]
    delay: DelayDelivery
    pulls: PullService
    registration: Registration

    async def prepare(self, old: RoleState, new: RoleState) -> None:
        store, tables, replication = self.store, self.tables, self.replication
        # Fence: no put and no change of a table is accepted from here on.
        tell_store(self.store, self.role)
        replication.stop_taking()
        # Settle: what was accepted is answered while the old role can still complete it.
        await answer_waiting(store)
        if new.role is Role.SLAVE:  # in the other modes the locks are in the log
            tables.locks.follow()
            await self.persistence.write(LOCKS_FILE)
        # End the replication of the old role.
        await replication.end_role(old, new)
        # Begin that of the new one; a future master derives its whole log, and continues the queue offsets behind it.
        await replication.begin_role(new)
        # Apply: tables that the log does not have are completed from what is stored.
        if new.role.takes_puts:
            tables.locks.lead(self.clock.monotonic())
            await self.commits.keep_inside_queues()
            if not tables.in_log or TOPICS_FILE in self.persistence.missing:
                await adopt_stored(tables.topics, store)

    def serve(self, new: RoleState) -> None:
        self.replication.serve(new)
        # Open: puts are accepted if the role takes them, and held pulls are looked at again.
        tell_store(self.store, self.role)
        self.delay.role_changed()
        self.pulls.look_again()
        # Register with the name servers.
        self.registration.register_again()


def tell_store(store: MessageStore, role: LiveRole) -> None:
    """Let the store accept or refuse puts as the role of its broker is now."""
    store.writability.role_refusal, store.is_replica = role.refusal, role.is_replica


async def answer_waiting(store: MessageStore) -> None:
    """Wait until puts that wait for a flush or for other nodes are answered, at most `SETTLE_SECONDS`."""
    if store.waits:
        settled = trio.Event()
        store.when_all_stored(lambda _: settled.set())
        with trio.move_on_after(SETTLE_SECONDS):
            await settled.wait()
    await trio.lowlevel.checkpoint()  # lets the writers of connections send the answers
