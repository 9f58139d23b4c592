"""The JSON bodies of requests."""

from __future__ import annotations

from typing import Any

from ..message.errors import JsonError
from ..message.json import OF_STRANGERS_BYTES_MAX, loads
from ..remoting.codes import ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import RequestRefused


def body_of(request: RemotingCommand) -> dict[str, Any]:
    """The JSON object that a request carries.

    Raises:
        RequestRefused: the body is not a JSON object.
    """
    try:
        body = loads(request.body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    except JsonError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"request {request.code}: the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"request {request.code}: the body is not a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]
