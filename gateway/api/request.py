"""A generation request, checked as far as the gateway must understand it: pure.

What the engines understand is theirs to judge (sampling parameters, message parts); their 400 reaches the client. The
gateway reads the model, the session, and whether and how to stream; it takes out what only the gateway may say to Dynamo.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from gateway.api.media import check_media
from gateway.errors import InvalidRequest

GATEWAY_ONLY_FIELDS = ("session_id", "nvext", "cache_salt")
"""Not forwarded: our own session field, and Dynamo's and vLLM's, with which a client could pick a worker or share
another tenant's cache."""

USUAL_ANSWER_TOKENS = 256
"""Charged for an answer of unstated length; what it was is settled at its end."""

MAX_ANSWER_TOKENS = 32_768
"""Clients state the model's whole context as a matter of course; few answers come near it."""

MOST_REASONABLE_TOKENS = 10**9
"""What a limit is reckoned with at most: JSON has integers of thousands of digits, which no float holds."""

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class Endpoint(StrEnum):
    """The generation endpoints; the value is the path under /api/v1 and under Dynamo's /v1."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


WITH_EXTENSION = (Endpoint.CHAT, Endpoint.COMPLETIONS)

STATEFUL_FIELDS = ("previous_response_id", "conversation", "background")
"""Of the Responses API: they need answers that are kept, and nothing is."""


@dataclass(frozen=True)
class GenerationRequest:
    endpoint: Endpoint
    model: str
    stream: bool
    wants_usage: bool
    """The client asked for the usage chunk."""
    fields: dict[str, Any]
    """The whole body as the client sent it."""

    @property
    def most_answer_tokens(self) -> int | None:
        """The client's own limit, where it states one."""
        for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
            most = self.fields.get(name)
            if isinstance(most, int) and not isinstance(most, bool) and most > 0:
                return min(most, MOST_REASONABLE_TOKENS)
        return None

    @property
    def answer_tokens(self) -> int:
        """What the answer is reckoned at before it is known, for the key's tokens a minute."""
        return min(self.most_answer_tokens or USUAL_ANSWER_TOKENS, MAX_ANSWER_TOKENS)

    def upstream_body(self) -> bytes:
        """The body for a Dynamo frontend: the client's, with usage and timing always asked for; of a chat or text stream
        with every chunk, so that the first says what the prefill had to compute, and one that is cut what it used."""
        fields = {name: value for name, value in self.fields.items() if name not in GATEWAY_ONLY_FIELDS}
        if self.endpoint not in WITH_EXTENSION:
            # These always say what was used, and know nothing of `nvext`.
            return _encoder.encode(fields)
        if self.stream:
            fields["stream_options"] = {**(self.fields.get("stream_options") or {}), "include_usage": True}
            fields["stream_options"]["continuous_usage_stats"] = True
        fields["nvext"] = {"extra_fields": ["timing"]}
        return _encoder.encode(fields)


def parse(raw: bytes, endpoint: Endpoint) -> GenerationRequest:
    """Raises InvalidRequest naming the parameter."""
    try:
        body = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("`model` must be a non-empty string.", param="model", code="missing_required_parameter")
    _check_prompt(body, endpoint)
    check_media(body, "input" if endpoint is Endpoint.RESPONSES else "messages")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("`stream` must be true or false.", param="stream", code="invalid_type")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest("`stream_options` must be an object.", param="stream_options", code="invalid_type")
    if options and not stream:
        raise InvalidRequest("`stream_options` needs `stream: true`.", param="stream_options", code="invalid_value")
    if body.get("n") not in (None, 1) or isinstance(body.get("n"), bool):
        # A decode worker that pulls its KV cannot split one prompt into n choices: vLLM lets the request hang.
        raise InvalidRequest("`n` other than 1 is not supported.", param="n", code="unsupported_value")
    return GenerationRequest(
        endpoint=endpoint,
        model=model,
        stream=bool(stream),
        wants_usage=bool((options or {}).get("include_usage")),
        fields=body,
    )


def _check_prompt(body: dict[str, Any], endpoint: Endpoint) -> None:
    if endpoint is Endpoint.RESPONSES:
        _check_responses(body)
    elif endpoint in (Endpoint.CHAT, Endpoint.MESSAGES):
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest(
                "`messages` must be a non-empty array.", param="messages", code="missing_required_parameter"
            )
        for index, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise InvalidRequest(
                    f"`messages[{index}]` must be an object with a `role`.",
                    param=f"messages[{index}]",
                    code="invalid_type",
                )
    elif not isinstance(body.get("prompt"), (str, list)) or not body["prompt"]:
        raise InvalidRequest(
            "`prompt` must be a non-empty string or array.", param="prompt", code="missing_required_parameter"
        )


def _check_responses(body: dict[str, Any]) -> None:
    if not isinstance(body.get("input"), (str, list)) or not body["input"]:
        raise InvalidRequest(
            "`input` must be a non-empty string or array.", param="input", code="missing_required_parameter"
        )
    for name in STATEFUL_FIELDS:
        if body.get(name):
            raise InvalidRequest(
                f"`{name}` is not supported: answers are not kept.", param=name, code="unsupported_parameter"
            )
