"""A proxy that adds a token to each request: many clients that others wrote are given an address and nothing else."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.foreign.door import DOOR_PORT

OF_ONE_CONNECTION = ("host", "connection", "keep-alive", "transfer-encoding")
WITHIN_S = 20


@contextmanager
def token_proxy(url: str, token: str, door: Path | None = None) -> Iterator[str]:
    """The address of a proxy for this one, while the block lasts; behind a door that of the port that leads there."""
    started = threading.Event()
    http = httpx2.AsyncClient(base_url=url, timeout=None, limits=httpx2.Limits(max_connections=None))

    @asynccontextmanager
    async def run(_app: Starlette) -> AsyncIterator[None]:
        async with http:
            started.set()
            yield

    async def forward(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in OF_ONE_CONNECTION]
        sent = http.build_request(
            request.method,
            httpx2.URL(path=request.url.path, query=request.url.query.encode()),
            headers=[*headers, ("authorization", f"Bearer {token}")],
            content=await request.body(),
        )
        answer = await http.send(sent, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in OF_ONE_CONNECTION}
        return StreamingResponse(read(answer), answer.status_code, kept)

    async def read(answer: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.aiter_raw():
                yield chunk
        finally:
            await answer.aclose()  # the server sees a client go, as without a proxy

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "DELETE"])], lifespan=run)
    place: dict[str, Any] = {"port": 0} if door is None else {"uds": str(door)}
    config = uvicorn.Config(app, **place, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, daemon=True)
    serving.start()
    assert started.wait(WITHIN_S)
    while not server.started:
        started.wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1] if door is None else DOOR_PORT
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        serving.join(WITHIN_S)
