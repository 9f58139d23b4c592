"""The secret of a group, from where it is not seen: a file of its own, or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .reasons import reason_of

Bad = Callable[[str, str, str], Exception]
"""Makes the error of a kind of server for a key, its value and what is allowed."""


def with_secret(entries: dict[str, str], bad: Bad) -> dict[str, str]:
    """The entries with the secret from the file that `haSecretFile` names, or from the environment, unless they have one.

    Raises:
        Exception: what `bad` makes, if the file cannot be read, is empty, or is there beside a secret.
    """
    file = entries.get("haSecretFile", "").strip()
    if file and entries.get("haSecret"):
        raise bad("haSecretFile", file, "left out where haSecret is set")
    if file:
        return entries | {"haSecret": _secret_in(Path(file), bad)}
    secret = os.environ.get("LEDGERMQ_HA_SECRET", "")
    return {"haSecret": secret, **entries} if secret else entries


def _secret_in(file: Path, bad: Bad) -> str:
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise bad("haSecretFile", str(file), f"a file with the secret, which cannot be read: {reason}") from error
    if not secret:
        raise bad("haSecretFile", str(file), "a file with the secret, but it is empty")
    return secret
