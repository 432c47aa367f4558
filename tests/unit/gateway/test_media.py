import json
from typing import Any

import pytest

from gateway.api.request import Endpoint, parse
from gateway.errors import InvalidRequest

DATA = "data:image/png;base64,AAAA"


def bodies(url: str) -> list[tuple[Endpoint, dict[str, Any]]]:
    chat = [{"type": "image_url", "image_url": {"url": url}}]
    audio = [{"type": "audio_url", "audio_url": {"url": url}}]
    shown = [{"type": "input_image", "image_url": url}]
    source = {"type": "image", "source": {"type": "url", "url": url}}
    returned = [{"type": "tool_result", "tool_use_id": "t", "content": [source]}]
    return [
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": chat}]}),
        (Endpoint.CHAT, {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": audio}]}),
        (Endpoint.RESPONSES, {"input": [{"role": "user", "content": shown}]}),
        (Endpoint.RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": shown}]}),
        (Endpoint.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": [source]}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": returned}]}),
    ]


@pytest.mark.parametrize("url", ["http://169.254.169.254/x", "HTTPS://x", "file:///etc/passwd", "//x", ""])
@pytest.mark.parametrize("shape", range(7))
def test_no_url_of_a_client_is_fetched_by_the_fleet(shape: int, url: str) -> None:
    endpoint, body = bodies(url)[shape]
    with pytest.raises(InvalidRequest, match="data:") as refused:
        parse(json.dumps({"model": "m", **body}).encode(), endpoint)
    assert refused.value.code == "unsupported_media_url"


@pytest.mark.parametrize("shape", range(7))
def test_media_within_the_request_passes(shape: int) -> None:
    endpoint, body = bodies(DATA)[shape]
    assert parse(json.dumps({"model": "m", **body}).encode(), endpoint).fields["model"] == "m"


def test_the_arguments_of_a_tool_call_are_nobodys_business() -> None:
    call = {"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "http://x", "image_url": "http://y"}}
    body = {"model": "m", "messages": [{"role": "assistant", "content": [call]}]}
    assert parse(json.dumps(body).encode(), Endpoint.MESSAGES)
