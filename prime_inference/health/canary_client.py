"""Asks a Dynamo frontend for its workers, and each prefill-decode pair for the canary's answer (HTTP shell)."""

import secrets
import time
from typing import Any

import httpx

from prime_inference.health.canary import Answer, Pair
from prime_inference.health.canary_rounds import CanaryWorker

PROMPT = (
    "List the first twelve prime numbers in order, separated by commas, and then say how many there are. "
    "Then list the days of the week, beginning with Monday, and then the months of the year. "
) * 8
"""Some hundred tokens, so that several blocks are transferred."""

MAX_TOKENS = 24


class FrontendError(Exception):
    """The frontend does not say which workers it has."""


ROLES = {"prefill": "prefill", "backend": "decode"}
"""Dynamo's components, and what we call them."""


def canary_workers(client: httpx.Client) -> list[CanaryWorker]:
    """Who the frontend says it has, and at which address. Raises FrontendError."""
    try:
        listed = client.get("/health").raise_for_status().json().get("instances") or []
        return [
            CanaryWorker(int(each["instance_id"]), ROLES[each["component"]], _host_of(each))
            for each in listed
            if each["endpoint"] == "generate" and each["component"] in ROLES
        ]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise FrontendError(f"{client.base_url}/health: {type(error).__name__}: {error}") from error


def _host_of(instance: dict[str, Any]) -> str:
    """Of `{"tcp": "10.0.0.7:35499/..."}`; nothing where requests go another way."""
    transport = instance.get("transport") or {}
    address = transport.get("tcp", "") if isinstance(transport, dict) else ""
    return str(address).partition("/")[0].rpartition(":")[0].strip("[]")


def pairs(client: httpx.Client) -> list[Pair]:
    """Every prefill worker with every decode worker. Raises FrontendError."""
    workers = canary_workers(client)

    def ids(role: str) -> list[int]:
        return sorted({worker.instance for worker in workers if worker.role == role})

    return [Pair(prefill, decode) for prefill in ids("prefill") for decode in ids("decode")]


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
