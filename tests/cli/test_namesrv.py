"""`ledgermq namesrv` as a process."""

from __future__ import annotations

import signal
import time

import pytest

from .processes import Start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_name_server_says_that_it_is_ready_and_stops_in_order(start: Start, number: int) -> None:
    """With exit status 0, at once."""
    namesrv = start("namesrv", "--host", "127.0.0.1", "--port", "0")
    namesrv.wait_for("boot success, listening on 127.0.0.1:[1-9]")

    started = time.monotonic()
    assert namesrv.stop(number) == 0, namesrv.output
    assert time.monotonic() - started < 10  # in truth a tenth of a second; the machine may be busy
