"""Settings of a server that administrators change through the network: which they may change, and the file that keeps them.

Brokers keep theirs in `broker.conf`; name servers and controllers have another file for what was changed (`configStorePath`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..world.disk import Disk
from ..world.events import get_logger
from ..world.files import read_file, replace_file
from ..world.real import World
from .codes import ResponseCode
from .command import RemotingCommand
from .errors import RequestRefused
from .java_properties import read_properties, write_properties
from .tls import TLS_KEYS

log = get_logger(__name__)


def read_changes(disk: Disk, path: str, changeable: Collection[str]) -> dict[str, str]:
    """The settings that were changed before this start; other keys of the file are ignored. Blocks.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of properties in UTF-8.
    """
    if not path or not disk.exists(path):
        return {}
    entries = read_properties(read_file(disk, path).decode())
    changes = {key: value for key, value in entries.items() if key in changeable}
    if changes:
        log.info("config_changes_read", path=path, entries=changes)
    return changes


def requested_changes(
    request: RemotingCommand, server: str, keys: Collection[str], changeable: Collection[str], black_list: str
) -> dict[str, str]:
    """The settings that a request is to change.

    Args:
        server: what kind of server this is, for the error text.
        keys: all settings that it has.
        black_list: further settings that the operator keeps from being changed, with semicolons between them.

    Raises:
        RequestRefused: the body is not properties, or some of the settings may not be changed or do not exist.
    """
    try:
        entries = read_properties(request.body.decode())
    except ValueError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not properties text: {error}") from error
    fixed = {key.strip() for key in black_list.split(";")} | (set(keys) - set(changeable)) | TLS_KEYS.keys()
    if refused := sorted(fixed & entries.keys()):
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"{', '.join(refused)} cannot be changed through the network")
    if unknown := sorted(entries.keys() - set(keys)):
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"this {server} has no setting {', '.join(unknown)}")
    return entries


async def save_changes(world: World, path: str, changes: Mapping[str, str]) -> None:
    """Replace the file of changed settings; as `save`."""
    await save(world, path, write_properties(changes).encode())


async def save(world: World, path: str, content: bytes) -> None:
    """Replace a file, unless its path is empty.

    Raises:
        RequestRefused: the disk failed. Nothing was changed.
    Durability: the file is on the disk.
    """
    if not path:
        return
    try:
        await world.workers.run(replace_file, world.disk, path, content)
    except OSError as error:
        log.error("config_not_saved", path=path, reason=error.strerror or str(error))
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{path}: {error.strerror or error}; nothing was changed") from error
