"""What options take from environment variables of the driver."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..remoting.credentials import credentials_from
from .errors import BadOption


def signed(options: Mapping[str, str]) -> Mapping[str, str]:
    """Options with the credentials of the environment, unless they have some; the workers get what the driver has read.

    Raises:
        BadOption: the variables name only a part of the credentials, or their file cannot be read.
    """
    if {"accesskey", "secretkey", "securitytoken"} & {name.lower() for name in options}:
        return options
    try:
        credentials = credentials_from(os.environ)
    except ValueError as error:
        raise BadOption("accessKey", None, str(error)) from error
    if credentials is None:
        return options
    return {**options, "accessKey": credentials.access_key, "secretKey": credentials.secret_key}
