"""The example of a web service: its lifespan, its health, and a real server that is stopped by SIGTERM."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledgermq import aio
from ledgermq.testing.embedded import Embedded, start_embedded

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_app.py"
PATIENCE_SECONDS = 60


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Generator[Embedded]:
    with start_embedded() as embedded:
        monkeypatch.setenv("LEDGERMQ_NAMESRV", embedded.namesrv)
        yield embedded


async def lag(namesrv: str) -> int:
    async with aio.open_admin(namesrv) as admin:
        return sum(position.lag for position in (await admin.group_stats("billing", "orders")).values())


async def bill_orders(client: httpx.AsyncClient, count: int) -> None:
    """Place orders concurrently, and wait until all of them are billed."""
    answers = await asyncio.gather(*(client.post(f"/orders/{number}") for number in range(count)))
    assert {answer.status_code for answer in answers} == {202}
    billed: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(billed) < count:
            await asyncio.sleep(0.01)  # a request in this process may be answered without waiting for anything
            billed = (await client.get("/bills")).json()
    assert sorted(map(int, billed)) == list(range(count))


def test_orders_are_billed_and_health_is_that_of_the_billing(cluster: Embedded) -> None:
    """A service whose consumer has ended must be started again, although it answers. What is no order is refused."""
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def main() -> None:
        async with module.app.router.lifespan_context(module.app):
            transport = httpx.ASGITransport(app=module.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                await bill_orders(client, 50)
                refused = await client.post("/orders/no number")
                assert (refused.status_code, "white space" in refused.json()["detail"]) == (422, True)
                assert (await client.get("/healthz")).status_code == 200
                assert (await client.get("/readyz")).status_code == 200
                billing: asyncio.Task[None] = module.app.state.billing
                billing.cancel()
                await asyncio.wait([billing])
                assert (await client.get("/healthz")).status_code == 503

    asyncio.run(main())


def test_a_real_server_ends_in_order_at_sigterm(cluster: Embedded) -> None:
    """Nothing that it has billed comes again."""
    command = [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--app-dir", str(EXAMPLE.parent), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = None
            for line in server.stderr:
                if address := re.search(r"running on (http://\S+)", line):
                    break
            assert address is not None

            async def main() -> None:
                async with httpx.AsyncClient(base_url=address[1], timeout=PATIENCE_SECONDS) as client:
                    await bill_orders(client, 20)

            asyncio.run(main())
            server.send_signal(signal.SIGTERM)
            log = server.communicate(timeout=PATIENCE_SECONDS)[1]
        finally:
            server.kill()
    assert "Application shutdown complete" in log
    assert "Traceback" not in log
    assert asyncio.run(lag(cluster.namesrv)) == 0
