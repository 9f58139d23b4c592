"""A web service in FastAPI that sends orders and bills them, with the clients for asyncio.

    LEDGERMQ_NAMESRV=127.0.0.1:9876 uvicorn fastapi_app:app

The lifespan opens the clients before the first request and closes them after the last one. Uvicorn handles the signals; at
SIGTERM it ends the lifespan, which lets handlers finish what they have, and nothing that they have handled comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from ledgermq import ClientError, ConsumeFrom, InvalidArgument, Message, aio

STOP_SECONDS = 20
"""How long handlers may go on at the end; less than the time after which the platform kills the process."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    app.state.bills = []
    async with (
        aio.open_producer(group="shop") as producer,
        aio.open_consumer(group="billing", topics="orders", consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        app.state.producer, app.state.consumer = producer, consumer

        async def bill(message: aio.AioMessage) -> None:
            app.state.bills.append(message.body.decode())  # acknowledged when this returns, retried when it raises

        app.state.billing = billing = asyncio.create_task(consumer.process(bill, tasks=8))
        try:
            yield
        finally:
            consumer.stop()
            await asyncio.wait([billing], timeout=STOP_SECONDS)
            billing.cancel()  # what its handlers have not finished by now comes again


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def order(number: str, request: Request) -> dict[str, str]:
    try:
        result = await request.app.state.producer.send(Message("orders", number.encode(), keys=[number]))
    except InvalidArgument as error:
        raise HTTPException(422, str(error)) from error
    except ClientError as error:
        detail = "the order may have been placed" if error.may_have_been_stored else "the order was not placed"
        raise HTTPException(503, f"{detail}: {error}") from error
    return {"message_id": result.message_id}


@app.get("/bills")
async def bills(request: Request) -> list[str]:
    return list(request.app.state.bills)


@app.get("/healthz")
async def healthz(request: Request) -> Response:
    """Whether this process should go on: not if billing has failed."""
    return Response(status_code=503 if request.app.state.billing.done() else 200)


@app.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Whether this process consumes: connected, with all of its queues."""
    health = await request.app.state.consumer.healthy()
    return JSONResponse(health.problems, status_code=200 if health else 503)
