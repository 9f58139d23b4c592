"""The control records of a Raft group of our own nodes: the barrier of a term, and the group's configuration.

They have the form of `message/control.py`, so that a Java broker and every reader of messages skips them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from ...message.control import Control, control_message, decode_control
from ...message.errors import CorruptRecord
from ...message.layout import encode_host, encode_records, topic_field
from ...world.network import Address
from ..errors import HaProtocolError
from ..raft.quorum import Configuration
from ..raft.units import PeerId

BARRIER = "raft_barrier"
"""The kind of the first record of a term. It changes nothing, but entries of earlier terms are committed with it."""
CONFIGURATION = "raft_configuration"
"""The kind of the record with the voters, outgoing voters and learners of the group from here on, and their addresses."""
PEERS_MAX = 64
"""The most voters, outgoing voters, learners or addresses in one configuration; a record with more is refused."""
_HOST = encode_host("0.0.0.0", 0)  # the node's address is not known here, and no reader uses the field


@attrs.frozen
class GroupConfiguration:
    """A configuration with the addresses of its members."""

    configuration: Configuration
    addresses: Mapping[PeerId, Address]


def barrier_record(wall_ms: int) -> bytes:
    """Encode the record of a barrier, whose physical offset is not known yet."""
    return _record(Control(BARRIER, {}), wall_ms)


def configuration_record(group: GroupConfiguration, wall_ms: int) -> bytes:
    """Encode the record of a configuration, whose physical offset is not known yet."""
    configuration = group.configuration
    content = {
        "voters": list(configuration.voters),
        "outgoing": list(configuration.outgoing),
        "learners": list(configuration.learners),
        "addresses": {peer: str(address) for peer, address in group.addresses.items() if peer in configuration.members},
    }
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
        configuration = Configuration(voters, outgoing, learners)
    except (CorruptRecord, ValueError) as error:
        raise HaProtocolError(f"the record of a configuration cannot be read: {error}") from error
    if not configuration.members <= addresses.keys():
        raise HaProtocolError(f"a configuration without the addresses of {sorted(configuration.members - addresses.keys())}")
    return GroupConfiguration(configuration, addresses)


def _peers(value: Any) -> tuple[PeerId, ...]:
    peers = cast("list[Any]", value)
    if not isinstance(value, list) or len(peers) > PEERS_MAX:
        raise ValueError(f"a list of at most {PEERS_MAX} peers was expected (got {value!r:.100})")
    if not all(isinstance(peer, str) and peer for peer in peers):
        raise ValueError(f"ids of peers are texts (got {value!r:.100})")
    return tuple(PeerId(peer) for peer in peers)


def _addresses(value: Any) -> dict[PeerId, Address]:
    if not isinstance(value, dict) or len(cast("dict[str, Any]", value)) > PEERS_MAX:
        raise ValueError(f"addresses of at most {PEERS_MAX} peers were expected (got {value!r:.100})")
    return {PeerId(peer): Address.parse(str(text)) for peer, text in cast("dict[str, Any]", value).items()}
