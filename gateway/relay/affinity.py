"""Which session a request belongs to, and the names that leave for the engines: pure.

The key comes from the first of: body `session_id`, header `x-session-id`, body `prompt_cache_key`, else the tenant's
opening messages (everything up to the first user message, which later turns repeat). OpenRouter documents the same order.
What Dynamo sees is a keyed hash with the tenant in it: a client can neither name another tenant's session nor reach the
65,536-entry table with ids of its own length.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

SESSION_BYTES = 16
"""128 bits: no two sessions of a fleet meet."""

OPENING_CHARACTERS = 2048
"""How much of a bare prompt names its session: enough to tell prompts apart, short enough that turns share it."""

_encode = msgspec.json.Encoder().encode


def session_of(tenant: str, body: Mapping[str, Any], session_header: str | None, secret: bytes) -> str:
    """The session's name for Dynamo, 32 hexadecimal digits."""
    for source, value in (
        ("id", body.get("session_id")),
        ("id", session_header),
        ("cache", body.get("prompt_cache_key")),
    ):
        if isinstance(value, str) and value:
            return _named(secret, tenant, source, value.encode("utf-8", "surrogatepass"))
    return _named(secret, tenant, "opening", _encode(_opening(body)))


@lru_cache(maxsize=4096)
def salt_of(tenant: str, secret: bytes) -> str:
    """The tenant's cache salt: prefixes computed for one tenant are never found by another."""
    return _named(secret, tenant, "salt", b"")


def _named(secret: bytes, tenant: str, source: str, value: bytes) -> str:
    message = b"\0".join((tenant.encode(), source.encode(), value))
    key = secret[: blake2b.MAX_KEY_SIZE]
    return blake2b(message, key=key, digest_size=SESSION_BYTES).hexdigest()


def _opening(body: Mapping[str, Any]) -> Any:
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, list):
        opening = []
        for message in messages:
            opening.append(message)
            if isinstance(message, dict) and message.get("role") == "user":
                break
        return opening
    prompt = body.get("prompt", body.get("input"))
    return prompt[:OPENING_CHARACTERS] if isinstance(prompt, (str, list)) else None
