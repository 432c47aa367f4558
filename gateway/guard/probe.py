"""The breaker's probe: one short synthetic prompt, judged by its whole answer: a deployment that begins to answer and
then dies is not well. Whoever holds the probe bounds it in time."""

import random
import secrets
from collections.abc import Callable

import msgspec

from gateway.breaker import Ending
from gateway.errors import ApiError
from gateway.fleet.registry import Deployment, Fleet
from gateway.fleet.snapshot import Snapshot
from gateway.relay.affinity import salt_of
from gateway.relay.causes import DYNAMO_BUSY_STATUS, ENDINGS, AttemptFailed
from gateway.relay.headers import upstream_headers
from gateway.relay.sse import EventSplitter, EventTooLarge
from gateway.relay.stream import StreamEditor, StreamEnd
from gateway.relay.upstream import Upstream, UpstreamAnswer
from gateway.settings import GatewaySettings

PROBE_TENANT = "probe"
"""Salts the probe's prefix: it never meets, nor warms, a tenant's cache."""

PROBE_ID_PREFIX = "probe-"

PROBE_ANSWER_TOKENS = 8
"""Several steps of decode, so that an engine which dies after its first token shows it; well under a second of them."""


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
        except (EventTooLarge, AttributeError, TypeError, ValueError):
            # Bytes that are no chat stream at all: what a probe finds wrong is said of the deployment, not of us.
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
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "ping"}],
            "max_tokens": PROBE_ANSWER_TOKENS,
            "stream": True,
        }
        frontend = random.choice(deployment.frontends)
        answer = await self._upstream.post(f"{frontend}/v1/chat/completions", headers, msgspec.json.encode(body))
        try:
            return await self._read(answer)
        finally:
            answer.close()

    async def _read(self, answer: UpstreamAnswer) -> Ending:
        editor, splitter = StreamEditor(forward_usage=False), EventSplitter(self._max_event_bytes)
        async for data in answer.chunks():
            for event in splitter.feed(data):
                editor.feed(event)
            if editor.closed:
                break
        editor.end()
        if editor.ending is StreamEnd.COMPLETE:
            return Ending.SUCCEEDED if editor.began else Ending.EMPTY_RESPONSE
        if editor.ending is StreamEnd.TRUNCATED:
            return Ending.TRUNCATED_STREAM if editor.began else Ending.EMPTY_RESPONSE
        busy = editor.error is not None and editor.error.status == DYNAMO_BUSY_STATUS
        return Ending.BUSY if busy else Ending.UPSTREAM_ERROR


def _served_by(fleet: Fleet, deployment: str) -> str | None:
    for model in fleet.models.values():
        if any(each.name == deployment for each in model.deployments):
            return model.name
    return None
