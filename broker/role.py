"""The role of a broker, which may change while it runs, and the order in which everything that depends on it follows.

Invariant: puts are taken only while the role is `MASTER`, which it becomes after the log has been settled and everything that
is derived from it has been rebuilt. A change runs through the phases of `Phase` in order; a later change ends an unfinished
one, and begins again with the first phase. What is done in each phase is named once, before the first change. Nothing but the
start of a broker reads the role from its configuration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum

import attrs
import trio

from ..world.clock import Clock
from ..world.events import get_logger

log = get_logger(__name__)

MASTER_ID = 0


class Role(Enum):
    """What a broker does for its group."""

    MASTER = "master"
    """Takes messages; in DLedger mode the leader."""
    SLAVE = "slave"
    """Follows a master of the classic mode."""
    FOLLOWER = "follower"
    """Follows the leader of its DLedger group."""
    CANDIDATE = "candidate"
    """Belongs to a DLedger group that has no leader that it knows of."""
    READ_ONLY = "read-only"
    """Serves what it has and takes nothing: while it becomes master, or because it was told so."""

    @property
    def takes_puts(self) -> bool:
        """Whether producers may send to it."""
        return self is Role.MASTER

    @property
    def is_replica(self) -> bool:
        """Whether its log and tables come from another broker, and may be behind them."""
        return self in _REPLICAS


_REPLICAS = frozenset((Role.SLAVE, Role.FOLLOWER, Role.CANDIDATE))


class Phase(Enum):
    """The order of a change."""

    STOP_TAKING = 1
    """Refuse puts, stop the broker's own deliveries."""
    SETTLE = 2
    """Answer what waits, end the old role's replication."""
    REBUILD = 3
    """Begin the new role's replication; derive everything, rebuild tables."""
    SERVE = 4
    """Take puts if the role does, look at held requests again."""
    REGISTER = 5
    """Let name servers know."""


@attrs.frozen
class RoleState:
    """A role with what belongs to it."""

    role: Role
    broker_id: int
    """The id that name servers and clients know it by; 0 for the master."""
    reason: str = ""
    """Why it has this role."""
    synchronous: bool = False
    """On a master of the classic mode: puts wait for slaves (SYNC_MASTER)."""
    since_ms: int = 0
    """Wall clock."""


Step = Callable[[RoleState, RoleState], Awaitable[None]]
"""Carries out one phase of a change; takes the old and the new state. Must be repeatable after a cancellation."""
Steps = Mapping[Phase, Sequence[Step]]
"""What is called in each phase, in order; a phase that is not named does nothing."""
OnMaster = Callable[[str, str], None]
"""Receives the master's address and its HA address."""


@attrs.define(eq=False)
class LiveRole:
    """The role of one broker."""

    state: RoleState
    clock: Clock
    master_address: str = ""
    """Where a replica's master serves clients, once known."""
    master_ha_address: str = ""
    _group_names_master: bool = False
    """The group itself has said where the master is, so name servers, which hear of it later, are not believed."""
    on_master: list[OnMaster] = attrs.field(factory=list[OnMaster])
    _steps: Steps | None = None
    """None until `begin`."""
    _changing: trio.Lock = attrs.field(factory=trio.Lock)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _wanted: int = 0
    """Counts changes that were asked for."""

    @property
    def takes_puts(self) -> bool:
        return self.state.role.takes_puts

    @property
    def is_replica(self) -> bool:
        return self.state.role.is_replica

    @property
    def broker_id(self) -> int:
        return self.state.broker_id

    @property
    def refusal(self) -> str | None:
        """Why puts are not taken, for the producer; None while they are."""
        role = self.state.role
        if role.takes_puts:
            return None
        if role.is_replica:
            master = f" at {self.master_address}" if self.master_address else ""
            return f"the broker is a {role.value}; send to its master{master}"
        return f"the broker is read-only: {self.state.reason}"

    def begin(self, steps: Steps) -> None:
        """Name all that follows the role; once, before the first change."""
        assert self._steps is None, "the steps of a role are named once"
        self._steps = steps

    def learn_master(self, address: str, ha_address: str) -> None:
        """Take a name server's word for where the master is, unless the group itself has said it."""
        if not self._group_names_master:
            self._note_master(address, ha_address)

    def _note_master(self, address: str, ha_address: str) -> None:
        if (address, ha_address) != (self.master_address, self.master_ha_address):
            self.master_address, self.master_ha_address = address, ha_address
            log.info("master_found", address=address, ha_address=ha_address)
            for listener in self.on_master:
                listener(address, ha_address)

    async def change(
        self, role: Role, broker_id: int, reason: str, *, synchronous: bool = False, master: str | None = None
    ) -> bool:
        """Take another role; returns whether it was reached, which a later change prevents.

        Args:
            master: where the master serves clients, if the group knows; empty if there is none; None if name servers know.

        Raises:
            OSError, StoreError: a phase failed. The broker is read-only and says why; the change may be repeated.
        Cancellation: leaves the broker read-only or in its new role, not registered.
        """
        assert self._steps is not None, "a role changes after `begin` has named its steps"
        wanted = RoleState(role, broker_id, reason, synchronous, self.clock.wall_ms())
        self._wanted += 1
        number = self._wanted
        self._scope.cancel()
        async with self._changing:
            if number != self._wanted:
                return False
            old = self.state
            self._group_names_master = bool(master)
            if master is not None:
                self._note_master(master, "")
            elif role.is_replica and not old.role.is_replica:
                self.master_address = self.master_ha_address = ""  # what was known is of the time before
            with trio.CancelScope() as self._scope:
                await self._run(old, wanted, self._steps)
        return number == self._wanted and self.state is wanted

    async def _run(self, old: RoleState, wanted: RoleState, steps: Steps) -> None:
        # Not yet the wanted role: what asks meanwhile must not take it for reached.
        passing = Role.READ_ONLY if wanted.role.takes_puts else wanted.role
        reason = f"it is becoming {wanted.role.value}: {wanted.reason}"
        self.state = attrs.evolve(wanted, role=passing, reason=reason)
        try:
            for phase in (Phase.STOP_TAKING, Phase.SETTLE, Phase.REBUILD):
                for step in steps.get(phase, ()):
                    await step(old, wanted)
        except Exception as error:
            self.state = attrs.evolve(wanted, role=Role.READ_ONLY, reason=f"it could not become {wanted.role.value}: {error}")
            log.error("role_change_failed", old=old.role.value, new=wanted.role.value, reason=str(error))
            raise
        self.state = wanted
        log.info("role_changed", old=old.role.value, new=wanted.role.value, broker_id=wanted.broker_id, reason=wanted.reason)
        for phase in (Phase.SERVE, Phase.REGISTER):
            for step in steps.get(phase, ()):
                await step(old, wanted)
