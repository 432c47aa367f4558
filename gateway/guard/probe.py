"""The breaker's probe: one short synthetic prompt, judged by its first event."""

import random
import secrets
from collections.abc import Callable

import msgspec

from gateway.breaker import Ending
from gateway.errors import ApiError
from gateway.fleet.registry import Deployment, Fleet
from gateway.fleet.snapshot import Snapshot
from gateway.relay.affinity import salt_of
from gateway.relay.causes import ENDINGS, AttemptFailed
from gateway.relay.headers import upstream_headers
from gateway.relay.sse import EventSplitter, EventTooLarge
from gateway.relay.stream import StreamEditor
from gateway.relay.upstream import Upstream
from gateway.settings import GatewaySettings

PROBE_TENANT = "probe"
"""Salts the probe's prefix: it never meets, nor warms, a tenant's cache."""

PROBE_ID_PREFIX = "probe-"


class Prober:
    def __init__(self, upstream: Upstream, snapshot: Callable[[], Snapshot], settings: GatewaySettings) -> None:
        self._upstream = upstream
        self._snapshot = snapshot
        self._secret = settings.secret.get_secret_value().encode()
        self._max_event_bytes = settings.max_event_bytes

    async def probe(self, name: str) -> Ending:
        """Has no timeout of its own: whoever holds the probe has one. A deployment that has left the fleet passes, so
        that its breaker is settled."""
        fleet = self._snapshot().fleet
        deployment = fleet.deployments.get(name)
        model = _served_by(fleet, name)
        if deployment is None or model is None:
            return Ending.SUCCEEDED
        try:
            return await self._ask(deployment, model)
        except AttemptFailed as failed:
            return ENDINGS[failed.cause]
        except EventTooLarge:
            return Ending.UPSTREAM_ERROR
        except ApiError:
            # It understood and refused: it lives.
            return Ending.REQUEST_REJECTED

    async def _ask(self, deployment: Deployment, model: str) -> Ending:
        probe_id = PROBE_ID_PREFIX + secrets.token_hex(8)
        headers = upstream_headers(
            request_id=probe_id,
            session=probe_id,
            tenant_salt=salt_of(PROBE_TENANT, self._secret),
            stream=True,
        )
        body = {"model": model, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1, "stream": True}
        frontend = random.choice(deployment.frontends)
        answer = await self._upstream.post(f"{frontend}/v1/chat/completions", headers, msgspec.json.encode(body))
        try:
            editor, splitter = StreamEditor(forward_usage=False), EventSplitter(self._max_event_bytes)
            async for data in answer.chunks():
                for event in splitter.feed(data):
                    editor.feed(event)
                if editor.began or editor.closed:
                    break
            if editor.error is not None:
                return Ending.BUSY if editor.error.status == 529 else Ending.UPSTREAM_ERROR
            return Ending.SUCCEEDED if editor.began else Ending.EMPTY_RESPONSE
        finally:
            answer.close()


def _served_by(fleet: Fleet, deployment: str) -> str | None:
    for model in fleet.models.values():
        if any(each.name == deployment for each in model.deployments):
            return model.name
    return None
