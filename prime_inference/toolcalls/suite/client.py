"""Asks an OpenAI-compatible endpoint and gives back what a client would see, whole or put together from a stream."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 300.0
"""For one answer: a reasoning model may think for minutes."""


class EndpointError(RuntimeError):
    """The endpoint did not answer a request as an OpenAI-compatible one does."""


@dataclass
class Answer:
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    """As they came (a whole answer is one), for the judge."""

    def seen(self) -> tuple[str, list[tuple[str, str]], str | None]:
        """What must not depend on streaming."""
        return self.content, self.calls, self.finish_reason


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any], stream: bool) -> Answer:
    try:
        if stream:
            return await _streamed(client, url, body)
        response = await client.post(f"{url}/chat/completions", json=body)
    except httpx.HTTPError as error:
        raise EndpointError(f"{type(error).__name__}: {error}") from error
    if response.status_code != httpx.codes.OK:
        raise EndpointError(f"HTTP {response.status_code}: {response.text[:300]}")
    return _whole(response.json())


def _whole(response: dict[str, Any]) -> Answer:
    answer = Answer(chunks=[response])
    for choice in response.get("choices", ())[:1]:
        message = choice.get("message") or {}
        answer.content = message.get("content") or ""
        for entry in message.get("tool_calls") or ():
            answer.calls.append((entry["function"].get("name") or "", entry["function"].get("arguments") or ""))
        answer.finish_reason = choice.get("finish_reason")
    return answer


async def _streamed(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Answer:
    answer = Answer()
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    async with client.stream("POST", f"{url}/chat/completions", json={**body, "stream": True}) as response:
        if response.status_code != httpx.codes.OK:
            raise EndpointError(f"HTTP {response.status_code}: {(await response.aread()).decode()[:300]}")
        async for chunk in events(response.aiter_text()):
            if "error" in chunk:
                raise EndpointError(f"error event: {json.dumps(chunk['error'])[:300]}")
            answer.chunks.append(chunk)
            for choice in chunk.get("choices", ())[:1]:
                delta = choice.get("delta") or {}
                answer.content += delta.get("content") or ""
                for entry in delta.get("tool_calls") or ():
                    index, part = entry.get("index", 0), entry.get("function") or {}
                    names[index] = names.get(index, "") + (part.get("name") or "")
                    arguments[index] = arguments.get(index, "") + (part.get("arguments") or "")
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    answer.calls = [(names[index], arguments[index]) for index in sorted(names)]
    return answer


async def events(texts: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each `data:` line; comments, other fields and `[DONE]` are passed over. Only newlines end a line."""
    held = ""
    async for text in texts:
        held += text
        *lines, held = held.split("\n")
        for line in lines:
            data = line.removesuffix("\r").removeprefix("data:").strip() if line.startswith("data:") else ""
            if data and data != "[DONE]":
                yield json.loads(data)
