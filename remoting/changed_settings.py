"""Settings of a server that administrators change through the network: which they may change, and the file that keeps them.

Brokers keep theirs in `broker.conf`; name servers and controllers have another file for what was changed (`configStorePath`).
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import attrs

from ..world.disk import Disk, DiskLock
from ..world.events import get_logger
from ..world.files import read_file, replace_file
from ..world.real import World
from .codes import ResponseCode
from .command import RemotingCommand
from .errors import RequestRefused
from .java_properties import read_properties
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


@attrs.frozen
class KeptFile:
    """A file that a server reads at its start and replaces with each change; without a path all is in memory alone.

    Two servers with one file would each replace what the other has saved, so only the first of them saves changes until the
    second is started again. Both serve, because several servers of one user have the same default paths.
    """

    key: str
    """The setting that names the path."""
    path: str = ""
    in_use: bool = False
    """Whether another server has the file."""

    async def save(self, world: World, content: bytes) -> None:
        """Replace the file.

        Raises:
            RequestRefused: another server has the file, or the disk failed. Nothing was changed.
        Durability: the file is on the disk.
        """
        if not self.path:
            return
        if self.in_use:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{self.path} was in use by another server when this one started; nothing was changed: give this one another "
                f"{self.key}, or stop the other one, and start this one again",
            )
        try:
            await world.workers.run(replace_file, world.disk, self.path, content)
        except OSError as error:
            log.error("config_not_saved", path=self.path, reason=error.strerror or str(error))
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{self.path}: {error.strerror or error}; nothing was changed"
            ) from error


@asynccontextmanager
async def open_kept_file(world: World, key: str, path: str) -> AsyncGenerator[KeptFile]:
    """Have a file for the length of an `async with` block; it is read after this, so that no other server changes it then."""
    lock, in_use = None, False
    try:
        if path:
            lock = await world.workers.run(_lock, world.disk, path)
    except BlockingIOError:
        in_use = True
        log.warning("config_file_in_use", key=key, path=path)
    except OSError as error:
        # A file that is only read, as one on a read-only disk, needs no lock; if it cannot be written, a change says so.
        log.warning("config_file_not_locked", key=key, path=path, reason=error.strerror or str(error))
    try:
        yield KeptFile(key, path, in_use)
    finally:
        if lock is not None:
            lock.release()


def _lock(disk: Disk, path: str) -> DiskLock:
    # Of a file beside it, because each change replaces the file itself.
    disk.make_directories(posixpath.dirname(path) or ".")
    return disk.lock(f"{path}.lock")
