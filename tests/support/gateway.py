"""A gateway process's two listeners inside the test's event loop, on real sockets, in front of scripted deployments."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from gateway.app import gateway_state, internal_app, public_app
from gateway.server import listen, server_for
from gateway.settings import GatewaySettings
from gateway.state import GatewayState
from prime_inference.keys import hash_of

KEY = "sk-test"


@dataclass
class RunningGateway:
    url: str
    internal_url: str
    state: GatewayState
    session: aiohttp.ClientSession

    def metric(self, name: str, **labels: str) -> float:
        return self.state.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def gateway(
    folder: Path,
    deployments: list[str],
    *,
    key: dict[str, object] | None = None,
    deployment: dict[str, object] | None = None,
    tenants: list[dict[str, object]] | None = None,
    model: str = "m",
    tools: dict[str, object] | None = None,
    **settings: object,
) -> AsyncIterator[RunningGateway]:
    """A gateway whose one model is served by these frontends, one deployment each, asked in this order. `key` and
    `deployment` add to the entries of the files."""
    fleet = {
        "models": [{"name": model, "deployments": [f"d{n}" for n in range(len(deployments))], "tools": tools or {}}],
        "deployments": [
            {"name": f"d{n}", "frontends": [url], "priority": n, **(deployment or {})}
            for n, url in enumerate(deployments)
        ],
    }
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    keys = {"keys": [{"name": "test", "tenant": "t", "sha256": hash_of(KEY), **(key or {})}], "tenants": tenants or []}
    (folder / "keys.yaml").write_text(yaml.safe_dump(keys))
    values = {"fleet_file": folder / "fleet.yaml", "keys_file": folder / "keys.yaml", "secret": "s", **settings}
    async with gateway_state(GatewaySettings.model_validate(values)) as state:
        sockets = [listen("127.0.0.1", 0), listen("127.0.0.1", 0)]
        urls = [f"http://127.0.0.1:{s.getsockname()[1]}" for s in sockets]
        header_timeout_s = state.settings.header_timeout_seconds
        servers = [server_for(app, header_timeout_s) for app in (public_app(state), internal_app(state))]
        tasks = [asyncio.create_task(server.serve([s])) for server, s in zip(servers, sockets, strict=True)]
        headers = {"authorization": f"Bearer {KEY}"}
        try:
            async with aiohttp.ClientSession(headers=headers) as session:
                yield RunningGateway(f"{urls[0]}/api/v1", urls[1], state, session)
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)
