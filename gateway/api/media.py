"""Media in a prompt, checked before it leaves: pure.

An engine fetches the URLs it is handed, from inside the fleet's network, where a client must not be able to point it
(metadata services, other pods). Names resolve differently a moment later and redirects lead elsewhere, so no check of the
address holds: only media that the request itself carries (`data:`) is let through.
"""

from collections.abc import Iterator
from typing import Any

from gateway.errors import InvalidRequest

URL_FIELDS = ("image_url", "video_url", "audio_url", "file_url", "url")
"""Of a content part: OpenAI's for Chat and Responses; Anthropic's `source` holds `url`."""


def check_media(body: dict[str, Any], field: str) -> None:
    """`field` holds the turns: `messages` or `input`. Raises InvalidRequest naming the turn."""
    turns = body.get(field)
    for index, turn in enumerate(turns if isinstance(turns, list) else ()):
        for url in _urls(turn):
            if not url.lower().startswith("data:"):
                raise InvalidRequest(
                    "Media must be sent within the request as a `data:` URL; nothing is fetched.",
                    param=f"{field}[{index}]",
                    code="unsupported_media_url",
                )


def _urls(turn: object) -> Iterator[str]:
    if not isinstance(turn, dict):
        return
    content = turn.get("content")
    if not isinstance(content, list):
        # Responses: a tool's output is a turn of its own, with parts under `output`.
        content = turn.get("output")
    for part in content if isinstance(content, list) else ():
        yield from _urls_of_part(part)


def _urls_of_part(part: object) -> Iterator[str]:
    """Not into a tool call's arguments: those are for the client's own tools."""
    if not isinstance(part, dict):
        return
    for name in URL_FIELDS:
        value = part.get(name)
        if isinstance(value, dict):
            value = value.get("url")
        if isinstance(value, str):
            yield value
    yield from _urls_of_part(part.get("source"))
    inner = part.get("content")
    for each in inner if isinstance(inner, list) else ():
        yield from _urls_of_part(each)
