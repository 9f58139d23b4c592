"""Keeps the short scripts through which Spark starts Java and its Python workers, in the user's cache directory."""

from __future__ import annotations

import os
import stat
import tempfile


def keep_script(name: str, text: str) -> str | None:
    """Write a script if it is not there yet; returns its path, or None if there is no directory that can be written.

    Args:
        name: its path relative to the cache directory.
        text: what it contains.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for base in (os.path.join(cache, "ledgermq"), os.path.join(tempfile.gettempdir(), f"ledgermq-{os.getuid()}")):
        path = os.path.join(base, name)
        try:
            _write(path, text)
        except OSError:
            continue
        return path
    return None


def _write(path: str, text: str) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text and os.access(path, os.X_OK):
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, stat.S_IRWXU)
    os.replace(temporary, path)  # several processes may write it concurrently
