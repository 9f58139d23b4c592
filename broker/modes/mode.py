"""The mode of a broker: how its log and tables are replicated. It is chosen here, and asked for everything that differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Unpack

from ...ha.node import ReplicationNode
from ...remoting.dispatcher import Service
from ...world.address import Address
from ...world.real import World
from ..config import BrokerConfig
from ..role import RoleState
from .replication import Replication, ReplicationParts


class Mode(Protocol):
    """What a broker asks of its mode. A further mode is a module with another of these."""

    @property
    def node(self) -> ReplicationNode:
        """The node of this broker in its group."""
        ...

    @property
    def record_max(self) -> tuple[int, str]:
        """The most bytes that the log takes for one record, and in what."""
        ...

    @property
    def first_role(self) -> RoleState:
        """The role until the node has started."""
        ...

    def replication(self, **parts: Unpack[ReplicationParts]) -> Replication[Any]:
        """The replication of the log and the tables of an open store."""
        ...

    def services(self) -> Iterable[Service]:
        """What answers requests that this mode alone has."""
        ...


def mode_of(config: BrokerConfig, world: World, address: Address) -> Mode:
    """The mode that a configuration asks for, of a broker that serves clients at `address`.

    Raises:
        WrongHaSetting: a key of the mode has a value that cannot work.
    """
    # A broker imports its own mode alone: the Raft modules cost a classic one 3 MiB, and time at each start.
    if config.enable_dleger_commit_log:
        from .dledger import DLedgerMode  # noqa: PLC0415

        return DLedgerMode(config, world, address)
    if config.enable_controller_mode:
        from .controller import ControllerMode  # noqa: PLC0415

        return ControllerMode(config, world, address)
    from .classic import ClassicMode  # noqa: PLC0415

    return ClassicMode(config, world, address)
