"""The role of a broker, which may change while it runs, and the rules by which it changes.

Invariant: puts are accepted only while the role is `MASTER`, which it becomes after the log has been settled and everything
that is derived from it has been rebuilt. What a change consists of is in `role_change.py`, from top to bottom; a later change
cancels an unfinished one, and begins at its top. Only the start of a broker reads the role from its configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import attrs
import trio

from ..world.clock import Clock
from ..world.events import get_logger

log = get_logger(__name__)


class Role(Enum):
    """What a broker does for its group."""

    MASTER = "master"
    """Accepts messages; in DLedger mode the leader."""
    SLAVE = "slave"
    """Follows a master of the classic mode."""
    FOLLOWER = "follower"
    """Follows the master that its group or a controller has elected."""
    CANDIDATE = "candidate"
    """Belongs to a group whose master is elected, and knows of none."""
    READ_ONLY = "read-only"
    """Serves pulls and refuses puts: at the start, while it becomes master, after a failed change of role, or on request."""

    @property
    def takes_puts(self) -> bool:
        """Whether producers may send to it."""
        return self is Role.MASTER

    @property
    def is_replica(self) -> bool:
        """Whether its log and tables come from another broker, and may be behind them."""
        return self in _REPLICAS


_REPLICAS = frozenset((Role.SLAVE, Role.FOLLOWER, Role.CANDIDATE))


@attrs.frozen
class RoleState:
    """A role with its broker id and its reason."""

    role: Role
    broker_id: int
    """The broker id under which name servers and clients know the broker; 0 for the master, once it accepts puts."""
    reason: str = ""
    """Why the broker has this role."""
    synchronous: bool = False
    """Whether puts wait for slaves, on a master of the classic mode (SYNC_MASTER)."""
    term: int = 0
    """The term or epoch for which the master was elected; 0 where nobody elects, or where Java nodes register no term."""
    since_ms: int = 0
    """When the change to this role was requested, in milliseconds of the wall clock."""


class RoleChange(Protocol):
    """What a change of role consists of."""

    async def prepare(self, old: RoleState, new: RoleState) -> None:
        """Do everything that must be done before the new role counts; may be cancelled anywhere, and is then done anew."""

    def serve(self, new: RoleState) -> None:
        """Do what the new role is for: it counts now."""


OnMaster = Callable[[str, str], None]
"""Receives the master's address and its HA address."""


@attrs.define(eq=False, repr=False)
class LiveRole:
    """The role of one broker."""

    state: RoleState
    clock: Clock
    master_address: str = ""
    """The address at which a replica's master serves clients; empty until it is known."""
    master_ha_address: str = ""
    _group_names_master: bool = False
    """Whether the DLedger group has given the master's address; name servers, which learn it later, are then ignored."""
    on_master: list[OnMaster] = attrs.field(factory=list[OnMaster])
    _steps: RoleChange | None = None
    """None until `begin`."""
    _changing: trio.Lock = attrs.field(factory=trio.Lock)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _wanted: int = 0
    """How many changes have been requested."""

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
        """Why puts are refused, as the answers to producers say; None while they are accepted."""
        role = self.state.role
        if role.takes_puts:
            return None
        if role.is_replica:
            master = f" at {self.master_address}" if self.master_address else ""
            return f"the broker is a {role.value}; send to its master{master}"
        return f"the broker is read-only: {self.state.reason}"

    def begin(self, steps: RoleChange) -> None:
        """Say what a change consists of; called once, before the first change."""
        assert self._steps is None, "the steps of a change are named once"
        self._steps = steps

    def learn_master(self, address: str, ha_address: str) -> None:
        """Use the master's address from a name server, unless the DLedger group has given one."""
        if not self._group_names_master:
            self._note_master(address, ha_address)

    def _note_master(self, address: str, ha_address: str) -> None:
        if (address, ha_address) != (self.master_address, self.master_ha_address):
            self.master_address, self.master_ha_address = address, ha_address
            log.info("master_found", address=address, ha_address=ha_address)
            for listener in self.on_master:
                listener(address, ha_address)

    async def change(
        self,
        role: Role,
        broker_id: int,
        reason: str,
        *,
        synchronous: bool = False,
        term: int = 0,
        master: str | None = None,
    ) -> bool:
        """Change to another role; return whether it was reached, which a later change prevents.

        Args:
            term: see `RoleState.term`.
            master: the address at which the master serves clients, empty if there is none; None if name servers give it.

        Raises:
            OSError, StoreError: a step failed. The broker is read-only for that reason; the change may be repeated.
        Cancellation: leaves the broker read-only, or a replica that follows nobody.
        """
        assert self._steps is not None, "a role changes after `begin` has named its steps"
        wanted = RoleState(role, broker_id, reason, synchronous, term, self.clock.wall_ms())
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
                self.master_address = self.master_ha_address = ""  # the known addresses are from before the change
            with trio.CancelScope() as self._scope:
                await self._run(old, wanted, self._steps)
        return number == self._wanted and self.state is wanted

    async def _run(self, old: RoleState, wanted: RoleState, steps: RoleChange) -> None:
        passing = wanted
        if wanted.role.takes_puts:
            # A future master is read-only and keeps its id during the change, so that nobody uses it before it is ready.
            passing = attrs.evolve(wanted, role=Role.READ_ONLY, broker_id=old.broker_id, term=old.term)
        self.state = attrs.evolve(passing, reason=f"it is becoming {wanted.role.value}: {wanted.reason}")
        try:
            await steps.prepare(old, wanted)
        except Exception as error:
            reason = f"it could not become {wanted.role.value}: {error}"
            self.state = attrs.evolve(passing, role=Role.READ_ONLY, reason=reason)
            log.error("role_change_failed", old=old.role.value, new=wanted.role.value, reason=str(error))
            raise
        self.state = wanted
        log.info("role_changed", old=old.role.value, new=wanted.role.value, broker_id=wanted.broker_id, reason=wanted.reason)
        steps.serve(wanted)
