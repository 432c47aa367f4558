"""The bare relay: FastAPI and aiohttp, and nothing a gateway is for. What this language and these libraries bear.

    BENCH_UPSTREAM=http://127.0.0.1:9000 python -m benchmarks.gateway.relay PORT

One uvicorn worker with uvloop and httptools, as the gateway has them. No keys, no checks, no retries, no accounts: the
body goes up as it came, the answer comes down as it came.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

UPSTREAM = os.environ.get("BENCH_UPSTREAM", "") + "/v1/chat/completions"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app.state.session = session
        yield


app = FastAPI(lifespan=lifespan, openapi_url=None)


@app.get("/readyz")
async def ready() -> Response:
    return Response()


@app.post("/v1/chat/completions")
async def relay(request: Request) -> Response:
    session: aiohttp.ClientSession = request.app.state.session
    body = await request.body()
    answer = await session.post(UPSTREAM, data=body, headers={"content-type": "application/json"})
    if answer.content_type != "text/event-stream":
        return Response(await answer.read(), answer.status, media_type=answer.content_type)

    async def events() -> AsyncIterator[bytes]:
        async with answer:
            async for data in answer.content.iter_any():
                yield data

    return StreamingResponse(events(), answer.status, media_type=answer.content_type)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_level="warning")
