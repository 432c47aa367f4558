"""The OpenAPI document: what FastAPI knows of the routes, and what the gateway itself checks and answers.

A body is described as far as the gateway judges it; the other fields are the engine's, whose refusal is a 400 too. So a
field without a type here is passed on as it is, and tests may hold the gateway to every type that is written.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.api.request import Endpoint

Schema = dict[str, Any]

ERROR = "Error"
ANTHROPIC_ERROR = "AnthropicError"

TEXT: Schema = {"type": "string"}
NULLABLE_TEXT: Schema = {"type": ["string", "null"]}
OBJECT: Schema = {"type": "object"}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _of_the_engine(description: str) -> Schema:
    return {"description": description}


COMMON: dict[str, Schema] = {
    "model": {"type": "string", "minLength": 1, "description": "One of `GET /models`."},
    "stream": {"type": ["boolean", "null"], "default": False},
    "stream_options": {
        "type": ["object", "null"],
        "description": "Only with `stream: true`. `include_usage`: the last chunk says what was used.",
    },
    "n": {"enum": [1, None], "default": 1},
    "session_id": _of_the_engine("Names the conversation, so that its turns meet the same caches. Not forwarded."),
    "prompt_cache_key": _of_the_engine("The same, where neither `session_id` nor `x-session-id` is sent."),
    "temperature": _of_the_engine("And other sampling parameters: judged by the engine."),
}
TURNS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": _object(["role"], role=TEXT, content=_of_the_engine("Text, or parts; media only as `data:` URLs.")),
}
TEXT_OR_LIST: Schema = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]}
MOST_TOKENS = _of_the_engine("The longest answer, in tokens.")
TOOLS = _of_the_engine("See docs/toolcalls.md.")
ENGINES_USAGE: Schema = {"type": ["object", "null"], "description": "Tokens used, as the engine counted them."}

BODIES: dict[Endpoint, Schema] = {
    Endpoint.CHAT: _object(
        ["model", "messages"],
        **COMMON, messages=TURNS, max_tokens=MOST_TOKENS, max_completion_tokens=MOST_TOKENS, tools=TOOLS,
        tool_choice=TOOLS, parallel_tool_calls=TOOLS, response_format=_of_the_engine("A JSON schema for the answer."),
    ),
    Endpoint.COMPLETIONS: _object(["model", "prompt"], **COMMON, prompt=TEXT_OR_LIST, max_tokens=MOST_TOKENS),
    Endpoint.RESPONSES: _object(
        ["model", "input"], **COMMON, input=TEXT_OR_LIST, max_output_tokens=MOST_TOKENS, tools=TOOLS,
        instructions=_of_the_engine("The system prompt."),
    ),
    Endpoint.MESSAGES: _object(
        ["model", "messages"], **COMMON, messages=TURNS, max_tokens=MOST_TOKENS, tools=TOOLS,
        system=_of_the_engine("The system prompt."),
    ),
}  # fmt: skip

ANSWERS: dict[Endpoint, Schema] = {
    Endpoint.CHAT: _object(["choices"], choices={"type": "array", "minItems": 1}, usage=ENGINES_USAGE),
    Endpoint.COMPLETIONS: _object(["choices"], choices={"type": "array", "minItems": 1}, usage=ENGINES_USAGE),
    Endpoint.RESPONSES: _object(["output"], output={"type": "array"}, usage=ENGINES_USAGE),
    Endpoint.MESSAGES: _object(["content"], content={"type": "array"}, usage=ENGINES_USAGE),
}

SCHEMAS: dict[str, Schema] = {
    ERROR: _object(
        ["error"],
        error=_object(
            ["message", "type", "param", "code"], message=TEXT, type=TEXT, param=NULLABLE_TEXT, code=NULLABLE_TEXT
        ),
    ),
    ANTHROPIC_ERROR: _object(
        ["type", "error"], type={"const": "error"}, error=_object(["type", "message"], type=TEXT, message=TEXT)
    ),
    "Model": _object(
        ["id", "object", "created", "owned_by"],
        id=TEXT, object={"const": "model"}, created={"type": "integer"}, owned_by=TEXT,
    ),
    "ModelList": _object(["object", "data"], object={"const": "list"}, data={"type": "array", "items": _ref("Model")}),
    "Status": _object(["status"], status={"enum": ["ok", "ready", "draining"]}),
}  # fmt: skip

SECURITY_SCHEMES: dict[str, Schema] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer sk-...`"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "As Anthropic's SDKs send it."},
}
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"key": []}]

ERRORS = {
    400: "The request is wrong",
    401: "No key, or an unknown one",
    404: "Unknown model, or one that the key may not use",
    413: "The body is too large",
    429: "No capacity, or the key's limit is reached; `Retry-After`, `x-should-retry`",
    500: "A bug of ours",
    502: "A deployment failed, or answered wrongly",
    503: "Every deployment is unavailable, or this replica is draining; `Retry-After`",
    504: "No answer in time",
}
ALL_ERRORS = tuple(ERRORS)

HEADERS: dict[str, Schema] = {
    "x-request-id": {"description": "The client's own if it is harmless, else a new one.", "schema": TEXT}
}
SENT_HEADERS: tuple[Schema, ...] = tuple(
    {"name": name, "in": "header", "required": False, "schema": TEXT, "description": description}
    for name, description in (
        ("x-request-id", "Goes to the engines and comes back, if it is harmless."),
        ("x-session-id", "Names the conversation, where the body does not."),
    )
)


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "headers": HEADERS, "content": {"application/json": {"schema": schema}}}


def _errors(statuses: tuple[int, ...], error: str = ERROR) -> dict[str, Schema]:
    return {str(status): _json(ERRORS[status], _ref(error)) for status in statuses}


def _generation(endpoint: Endpoint) -> Schema:
    answer = _json("The answer; with `stream: true`, events", ANSWERS[endpoint])
    answer["content"]["text/event-stream"] = {"schema": {"description": "The engine's events; see docs/api.md."}}
    error = ANTHROPIC_ERROR if endpoint is Endpoint.MESSAGES else ERROR
    return {
        "parameters": list(SENT_HEADERS),
        "requestBody": {"required": True, "content": {"application/json": {"schema": BODIES[endpoint]}}},
        "responses": {"200": answer, **_errors(ALL_ERRORS, error)},
        "security": SECURITY,
    }


def _operations(prefix: str) -> dict[tuple[str, str], Schema]:
    status = _json("It is so", _ref("Status"))
    return {
        **{(f"{prefix}/{endpoint.value}", "post"): _generation(endpoint) for endpoint in Endpoint},
        (f"{prefix}/models", "get"): {
            "responses": {"200": _json("The models this key may use", _ref("ModelList")), **_errors((401,))},
            "security": SECURITY,
        },
        (f"{prefix}/models/{{name}}", "get"): {
            "responses": {"200": _json("The model", _ref("Model")), **_errors((401, 404))},
            "security": SECURITY,
        },
        ("/healthz", "get"): {"responses": {"200": status}},
        ("/readyz", "get"): {"responses": {"200": status, "503": _json("The replica drains", _ref("Status"))}},
    }


def document_of(app: FastAPI, prefix: str) -> Callable[[], Schema]:
    """In place of `app.openapi`. Routes not described here keep FastAPI's own words, but for its 422, which is never
    sent."""

    def document() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, prefix)
        return app.openapi_schema

    return document


def _described(app: FastAPI, prefix: str) -> Schema:
    document: Schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    operations = _operations(prefix)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["responses"].pop("422", None) is not None:
                operation["responses"].update(_errors((400,)))
            operation.update(operations.get((path, method), {}))
    components = document.setdefault("components", {})
    schemas = {
        name: schema
        for name, schema in components.get("schemas", {}).items()
        if name not in ("HTTPValidationError", "ValidationError")
    }
    document["components"] = {**components, "schemas": {**schemas, **SCHEMAS}, "securitySchemes": SECURITY_SCHEMES}
    return document
