"""Errors of the name server.

BadNamesrvConfig     a configuration holds a value that no name server can run with; nothing was changed

A refused request is answered by raising `remoting.errors.RequestRefused`.
"""

from __future__ import annotations

from ..remoting.errors import BadSetting


class BadNamesrvConfig(BadSetting):
    """A setting of a name server is not allowed."""
