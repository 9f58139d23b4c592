"""Where archives, checkpoints and compactions are kept: in directories of this machine, or on other file systems by URI."""

from __future__ import annotations

import os
import re
from typing import Any

from .errors import BadOption

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_S3 = ("s3a", "s3n")
"""Hadoop's names of what PyArrow calls `s3`."""


def local_path(place: str) -> str | None:
    """Return the path of a directory of this machine; None for a URI of another file system, such as `dbfs:/a` or `s3a://b/a`."""
    found = _SCHEME.match(place)
    if found is None:
        return place
    return re.sub("^//[^/]*", "", place[len("file:") :]) if found[1].lower() == "file" else None


def sync(path: str) -> None:
    """Let a file, or the names in a directory, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_files(option: str, place: str) -> tuple[Any, str]:
    """Return PyArrow's file system of a directory, and its path there.

    Raises:
        BadOption: PyArrow has no file system for the URI; names its scheme. A directory of that name is never made here.
    """
    from pyarrow import ArrowException, fs  # noqa: PLC0415 - workers that only read do not need it

    path = local_path(place)
    if path is not None:
        return fs.LocalFileSystem(), os.path.abspath(path)
    scheme, _, rest = place.partition(":")
    try:
        files, root = fs.FileSystem.from_uri(f"s3:{rest}" if scheme.lower() in _S3 else place)
    except (ArrowException, OSError, ValueError) as error:
        raise BadOption(
            option,
            place,
            f"PyArrow cannot open '{scheme}:' here ({error}); use a mounted directory, s3://, gs://, abfss:// or hdfs://",
        ) from error
    return files, root.rstrip("/")
