"""Notices of another lowest broker id."""

from __future__ import annotations

import pytest
import trio

from ledgermq.namesrv import notices
from ledgermq.namesrv.routes import MinIdChange
from ledgermq.testing.logs import capture_logs
from ledgermq.world.real import real_world


async def test_notices_that_cannot_be_delivered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a task and a connection for seconds, and any peer may register brokers at addresses where nobody answers."""
    monkeypatch.setattr(notices, "NOTICES_MAX", 3)
    world = real_world()
    (listener,) = await world.network.open_listeners("127.0.0.1", 0)
    silent = world.network.listener_port(listener)
    async with listener, trio.open_nursery() as nursery:
        sent = notices.Notices(world.network, nursery)
        with capture_logs() as logs:
            for number in range(2):
                sent.send(MinIdChange("b", number, "h:1", tuple(f"127.0.0.1:{silent}" for _ in range(2))))
        assert logs == [
            {
                "event": "brokers_not_notified",
                "log_level": "warning",
                "broker": "b",
                "brokers": 1,
                "reason": "3 notices are on their way already",
            }
        ]
        for _ in range(3):
            await (await listener.accept()).aclose()
