"""Small whole files on a `Disk`: read at once, replaced atomically with the previous one kept as `.bak`."""

from __future__ import annotations

import posixpath
from contextlib import suppress

from .disk import Disk, DiskFile

PIECE_BYTES = 1 << 20
"""How many bytes of a large file are copied at a time."""


def read_file(disk: Disk, path: str) -> bytes:
    """All bytes of a file.

    Raises:
        FileNotFoundError: no such file.
    """
    file = disk.open(path, read_only=True)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Put `content` in place of a file; its previous content stays as `path.bak`. Directories are made.

    Raises:
        OSError: nothing was replaced, or the replacement may not survive a power cut.
    Durability: on return the new content survives a power cut; a crash before leaves the old or the new, whole.
    """
    directory = posixpath.dirname(path) or "."
    disk.make_directories(directory)
    fresh = f"{path}.tmp"
    _write_new(disk, fresh, content)
    if disk.exists(path):
        _write_new(disk, f"{path}.bak.tmp", read_file(disk, path))
        disk.replace(f"{path}.bak.tmp", f"{path}.bak")
    disk.replace(fresh, path)
    disk.sync_directory(directory)


def _write_new(disk: Disk, path: str, content: bytes) -> None:
    if disk.exists(path):
        disk.remove(path)
    file = disk.open(path, create_size=0)
    try:
        file.write(content, 0)
        file.sync()
    finally:
        file.close()


def copy_sparse(disk: Disk, source: DiskFile, path: str) -> None:
    """Copy a file to `path`, in place of one of that name; pieces of zeros stay holes.

    Raises:
        OSError: the disk refused. Nothing of the copy remains, if the disk removes it.
    Durability: on return the bytes survive a power cut, and the name once `sync_directory` has returned.
    """
    if disk.exists(path):
        disk.remove(path)
    file = disk.open(path, create_size=source.size)
    try:
        for at in range(0, source.size, PIECE_BYTES):
            piece = source.read(at, PIECE_BYTES)
            if piece.count(0) != len(piece):
                file.write(piece, at)
        file.sync()
    except OSError:
        with suppress(OSError):
            disk.remove(path)  # it would keep a full disk full
        raise
    finally:
        file.close()


def make_directory(disk: Disk, path: str) -> None:
    """Create a directory and that above it, unless it exists; afterwards no power cut removes it with the files in it.

    The directory two levels above it must exist on the medium already.
    """
    if not disk.is_directory(path):
        disk.make_directories(path)
        parent = posixpath.dirname(path)
        disk.sync_directory(parent)
        disk.sync_directory(posixpath.dirname(parent) or ".")
