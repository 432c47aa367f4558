"""A Dynamo frontend as far as the admin API looks at one: its answers, its list of instances, its metrics page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest


@dataclass
class Frontend:
    url: str = ""
    asked: int = 0
    prefill: int = 2
    decode: int = 3
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        make = {"labelnames": ["model"], "registry": self.registry}
        self.ttft = Histogram("dynamo_frontend_time_to_first_token_seconds", "t", **make)  # type: ignore[arg-type]
        self.itl = Histogram("dynamo_frontend_inter_token_latency_seconds", "t", **make)  # type: ignore[arg-type]
        self.in_flight = Gauge("dynamo_frontend_inflight_requests", "t", **make)  # type: ignore[arg-type]
        self.queued = Gauge("dynamo_frontend_queued_requests", "t", **make)  # type: ignore[arg-type]

    def workers(self, prefill: int, decode: int) -> None:
        self.prefill, self.decode = prefill, decode

    def token_times(self, ttft_s: float, itl_s: float, count: int, model: str = "m") -> None:
        for _ in range(count):
            self.ttft.labels(model).observe(ttft_s)
            self.itl.labels(model).observe(itl_s)

    def instances(self) -> dict[str, object]:
        pools = {"prefill": self.prefill, "backend": self.decode}
        listed = [{"component": name, "endpoint": "generate"} for name, count in pools.items() for _ in range(count)]
        return {"status": "healthy", "instances": listed}


@asynccontextmanager
async def frontend(body: bytes, status: int = 200, stream: bytes = b"") -> AsyncIterator[Frontend]:
    """Answers every POST with `body`, or with `stream` one that asks for a stream, until the block ends."""
    served = Frontend()

    async def answer(request: web.Request) -> web.Response:
        served.asked += 1
        if stream and (await request.json()).get("stream"):
            return web.Response(body=stream, content_type="text/event-stream")
        return web.Response(body=body, status=status, content_type="application/json")

    async def health(_: web.Request) -> web.Response:
        return web.json_response(served.instances())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(served.registry), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield served
    finally:
        await runner.cleanup()
