"""Secrets of servers, from where they are not seen: files of their own, or the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from .reasons import reason_of

Bad = Callable[[str, str, str], Exception]
"""Makes the error of a kind of server for a key, its value and what is allowed."""


def with_secrets(entries: dict[str, str], bad: Bad, keys: Iterable[str] = ("haSecret",)) -> dict[str, str]:
    """The entries with those secrets that they lack, from the files that they name, or from the environment.

    Args:
        keys: the keys of the secrets. The file of each is named by the same key with `File`.

    Raises:
        Exception: what `bad` makes, if a file cannot be read, is empty, or is there beside its secret.
    """
    for key in keys:
        file_key = f"{key}File"
        file = entries.get(file_key, "").strip()
        if file and entries.get(key):
            raise bad(file_key, file, f"left out where {key} is set")
        if file:
            entries = entries | {key: _secret_in(Path(file), file_key, bad)}
        elif secret := os.environ.get(_variable_of(key), ""):
            entries = {key: secret, **entries}
    return entries


def _variable_of(key: str) -> str:
    """The environment variable that stands for a secret key, such as `LEDGERMQ_HA_SECRET`."""
    return "LEDGERMQ_" + re.sub("(?=[A-Z])", "_", key).upper()


def _secret_in(file: Path, key: str, bad: Bad) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise bad(key, str(file), f"a file with the secret, which cannot be read: {reason}") from error
    if not secret:
        raise bad(key, str(file), "a file with the secret, but it is empty")
    return secret
