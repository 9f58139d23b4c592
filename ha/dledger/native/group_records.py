"""The control records of a Raft group of our own nodes: the barrier of a term, and the group's configuration.

They have the form of `message/control.py`, so that a Java broker and every reader of messages skips them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from ....message.control import Control, control_message, decode_control
from ....message.errors import CorruptRecord
from ....message.layout import encode_host, encode_records, topic_field
from ....world.network import Address
from ....world.randomness import Randomness
from ...envelopes import NODE_SIZE
from ...errors import HaProtocolError
from ...raft.quorum import Configuration
from ...raft.units import PeerId
from .layout import NAME_BYTES_MAX

BARRIER = "raft_barrier"
"""The kind of the first record of a term. It changes nothing, but entries of earlier terms are committed with it."""
CONFIGURATION = "raft_configuration"
"""The kind of the record with the voters, outgoing voters and learners of the group from here on, and their addresses."""
PEERS_MAX = 64
"""The most members of one configuration, and addresses in its record; more are refused, by the leader and by readers."""
_HOST = encode_host("0.0.0.0", 0)  # the node's address is not known here, and no reader uses the field


@attrs.frozen
class GroupConfiguration:
    """A configuration with the addresses of its members."""

    configuration: Configuration
    addresses: Mapping[PeerId, Address]
    group_id: str = ""
    """The random id of the group, in hexadecimal digits; empty in records of earlier versions."""

    def check(self) -> None:
        """Raise ValueError if no node could use the record of this configuration, which would stay in the log for good."""
        members = self.configuration.members
        if len(members) > PEERS_MAX:
            raise ValueError(f"a group has at most {PEERS_MAX} members (got {len(members)})")
        for peer in sorted(members):
            if not 0 < len(peer.encode()) <= NAME_BYTES_MAX:
                raise ValueError(f"ids of peers have 1 to {NAME_BYTES_MAX} bytes (got {peer!r:.100})")
        if without := sorted(members - self.addresses.keys()):
            raise ValueError(f"a configuration needs the addresses of its members, and {', '.join(without)} has none")


def barrier_record(wall_ms: int) -> bytes:
    """Encode the record of a barrier, whose physical offset is not known yet."""
    return _record(Control(BARRIER, {}), wall_ms)


def configuration_record(group: GroupConfiguration, wall_ms: int) -> bytes:
    """Encode the record of a configuration, whose physical offset is not known yet."""
    configuration = group.configuration
    content: dict[str, Any] = {
        "voters": list(configuration.voters),
        "outgoing": list(configuration.outgoing),
        "learners": list(configuration.learners),
        "addresses": {peer: str(address) for peer, address in group.addresses.items() if peer in configuration.members},
    }
    if group.group_id:
        content["id"] = group.group_id
    return _record(Control(CONFIGURATION, content), wall_ms)


def _record(control: Control, wall_ms: int) -> bytes:
    message = control_message(control, wall_ms, _HOST)
    return encode_records([message], [topic_field(message.topic.encode())], [0], wall_ms, _HOST)[0]


def read_configuration(body: bytes) -> GroupConfiguration:
    """Decode the record of a configuration.

    Raises:
        HaProtocolError: the body is not one.
    """
    try:
        control = decode_control(body)
        if control.kind != CONFIGURATION:
            raise HaProtocolError(f"a {control.kind!r:.40} record where a configuration of the group must be")
        content = control.content
        voters, outgoing, learners = (_peers(content.get(name)) for name in ("voters", "outgoing", "learners"))
        addresses = _addresses(content.get("addresses"))
        group = GroupConfiguration(Configuration(voters, outgoing, learners), addresses, _group_id(content.get("id", "")))
        group.check()
    except (CorruptRecord, ValueError) as error:
        raise HaProtocolError(f"the record of a configuration cannot be read: {error}") from error
    return group


def new_group_id(secrets: Randomness) -> str:
    """Draw the id of a new group."""
    return secrets.getrandbits(8 * NODE_SIZE).to_bytes(NODE_SIZE, "big").hex()


def _group_id(value: Any) -> str:
    if not isinstance(value, str) or (value and len(bytes.fromhex(value)) != NODE_SIZE):
        raise ValueError(f"the id of a group is {NODE_SIZE} bytes in hexadecimal digits (got {value!r:.100})")
    return value


def _peers(value: Any) -> tuple[PeerId, ...]:
    peers = cast("list[Any]", value)
    if not isinstance(value, list) or len(peers) > PEERS_MAX:
        raise ValueError(f"a list of at most {PEERS_MAX} peers was expected (got {value!r:.100})")
    if not all(isinstance(peer, str) for peer in peers):
        raise ValueError(f"ids of peers are texts (got {value!r:.100})")
    return tuple(PeerId(peer) for peer in peers)


def _addresses(value: Any) -> dict[PeerId, Address]:
    if not isinstance(value, dict) or len(cast("dict[str, Any]", value)) > PEERS_MAX:
        raise ValueError(f"addresses of at most {PEERS_MAX} peers were expected (got {value!r:.100})")
    return {PeerId(peer): Address.parse(str(text)) for peer, text in cast("dict[str, Any]", value).items()}
