"""The credentials of a client from environment variables, so that no secret stands in a command or a program."""

from __future__ import annotations

from collections.abc import Mapping

from .signature import Credentials

ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE = "LEDGERMQ_ACCESS_KEY", "LEDGERMQ_SECRET_KEY"
SECRET_KEY_FILE_VARIABLE = "LEDGERMQ_SECRET_KEY_FILE"  # noqa: S105 - the name of a variable


def credentials_from(environment: Mapping[str, str]) -> Credentials | None:
    """The user and the password that the variables name; None if they say nothing. An empty variable counts as unset.

    Raises:
        ValueError: only a part of them is set, or the file cannot be read; the text contains no secret.
    """
    access_key, secret_key, file = (
        environment.get(name, "").strip() for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECRET_KEY_FILE_VARIABLE)
    )
    if file and not secret_key:
        secret_key = _secret_in(file)
    if bool(access_key) != bool(secret_key):
        raise ValueError(
            f"{ACCESS_KEY_VARIABLE} is set together with {SECRET_KEY_VARIABLE} or {SECRET_KEY_FILE_VARIABLE}, or none of them"
        )
    return Credentials(access_key, secret_key) if access_key else None


def _secret_in(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{SECRET_KEY_FILE_VARIABLE}={path}: {error}") from error
    if not secret:
        raise ValueError(f"{SECRET_KEY_FILE_VARIABLE}={path}: the file is empty")
    return secret
