"""What a server tells systemd: that it is ready, that it stops, and that its event loop still runs (`sd_notify`).

Outside systemd, where `$NOTIFY_SOCKET` is not set, nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import attrs
import trio


@attrs.frozen
class ServiceManager:
    """The service manager that started this process, if one waits for its messages."""

    address: str | None
    watchdog_seconds: float | None
    """The service manager restarts the process if it hears nothing for this long; None if it does not watch."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The one that the environment names. A watchdog for another process is none for this one."""
        address = environment.get("NOTIFY_SOCKET") or None
        microseconds = environment.get("WATCHDOG_USEC", "")
        watches = address is not None and environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(microseconds) / 1_000_000 if watches and microseconds.isascii() and microseconds.isdigit() else 0
        return cls(address, seconds or None)

    def ready(self) -> None:
        """Say that the server serves; units with `Type=notify` count as started from now on."""
        self._say("READY=1")

    def stopping(self) -> None:
        """Say that the server stops in order."""
        self._say("STOPPING=1")

    async def keep_watched(self) -> None:
        """Say twice in each period of the watchdog that the event loop runs, until cancelled."""
        while self.watchdog_seconds is not None:
            self._say("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds / 2)

    def _say(self, message: str) -> None:
        if self.address is None:
            return
        # A service manager that is away must not end its service.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)
            manager.connect("\0" + self.address[1:] if self.address.startswith("@") else self.address)
            manager.send(message.encode())
