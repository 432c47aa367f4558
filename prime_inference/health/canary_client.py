"""Asks a Dynamo frontend for its workers, and each prefill-decode pair for the canary's answer (HTTP shell)."""

import secrets
import time
from typing import Any

import httpx

from prime_inference.health.canary import Answer, Pair

PROMPT = (
    "List the first twelve prime numbers in order, separated by commas, and then say how many there are. "
    "Then list the days of the week, beginning with Monday, and then the months of the year. "
) * 8
"""Some hundred tokens, so that several blocks are transferred."""

MAX_TOKENS = 24


class FrontendError(Exception):
    """The frontend does not say which workers it has."""


def pairs(client: httpx.Client) -> list[Pair]:
    """Every prefill worker with every decode worker. Raises FrontendError."""
    try:
        listed = client.get("/health").raise_for_status().json().get("instances") or []
    except (httpx.HTTPError, ValueError) as error:
        raise FrontendError(f"{client.base_url}/health: {type(error).__name__}: {error}") from error

    def ids(component: str) -> list[int]:
        return sorted(
            {int(i["instance_id"]) for i in listed if (i["component"], i["endpoint"]) == (component, "generate")}
        )

    return [Pair(prefill, decode) for prefill in ids("prefill") for decode in ids("backend")]


def ask(client: httpx.Client, model: str, pair: Pair, within_s: float) -> Answer:
    """One question to one pair. Never raises: what went wrong is the answer."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "nvext": {"extra_fields": ["worker_id"]},
    }
    headers = {
        # Dynamo takes it as the cache's salt, on the engines and in the router.
        "x-tenant-id": f"canary-{secrets.token_hex(8)}",
        "x-dynamo-prefill-instance-id": str(pair.prefill),
        "x-dynamo-worker-instance-id": str(pair.decode),
    }
    started = time.monotonic()
    try:
        answer = client.post("/v1/chat/completions", json=body, headers=headers, timeout=within_s)
        seconds = time.monotonic() - started
        if answer.status_code != 200:
            return Answer(answer.status_code, seconds=seconds, error=answer.text[:200])
        said = answer.json()
        workers = (said.get("nvext") or {}).get("worker_id") or {}
        return Answer(
            status=200,
            text=said["choices"][0]["message"].get("content") or "",
            prefill=workers.get("prefill_worker_id"),
            decode=workers.get("decode_worker_id"),
            seconds=seconds,
        )
    except httpx.TimeoutException:
        return Answer(0, seconds=time.monotonic() - started)
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        return Answer(-1, seconds=time.monotonic() - started, error=f"{type(error).__name__}: {error}")
