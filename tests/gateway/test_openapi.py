"""The OpenAPI document against the gateway as it serves: schemathesis makes requests of it, right ones and wrong ones, and
holds the answers to what is written."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
import requests
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from gateway.app import API_PREFIX, public_app
from gateway.state import GatewayState
from tests.gateway.test_relay import UNARY, WHOLE
from tests.gateway.test_typed_streams import MESSAGE_STREAM, RESPONSE_STREAM, response
from tests.support.gateway import KEY
from tests.support.served import served_gateway
from tests.support.upstream import Script, answers, sends

EXAMPLES = 30
"""An operation and way of making requests: right ones and wrong ones."""
ANSWERS: dict[str, tuple[bytes, list[bytes]]] = {
    "chat/completions": (UNARY, WHOLE),
    "completions": (UNARY, WHOLE),
    "responses": (json.dumps(response()).encode(), RESPONSE_STREAM),
    "messages": (b'{"type":"message","content":[]}', MESSAGE_STREAM),
}


async def engine(request: web.Request) -> web.StreamResponse:
    whole, events = ANSWERS[request.path.removeprefix("/v1/")]
    script: Script = sends(*events) if (await request.json()).get("stream") else answers(whole)
    return await script(request)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_gateway(tmp_path_factory.mktemp("openapi"), engine) as gw:
        yield gw.url.removesuffix(API_PREFIX)


DOCUMENT: dict[str, Any] = public_app(cast(GatewayState, None)).openapi()
schema = schemathesis.openapi.from_dict(DOCUMENT)


@schema.hook
def map_body(context: Any, body: Any) -> Any:
    """Nearly every made-up model is unknown: a model that exists is what leads further."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) % 4:
        body["model"] = "m"
    return body


load_all_checks()
# Some rules no schema tells: options that need `stream`, media that is no `data:` URL.
EXCEPT = [CHECKS.get_one("positive_data_acceptance")]


# The gateway draws random numbers in its own thread, which hypothesis takes for its strategies' doing.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_written_is_what_is_answered(case: Any, served: str) -> None:
    case.call_and_validate(
        base_url=served, headers={"Authorization": f"Bearer {KEY}"}, excluded_checks=EXCEPT, timeout=20
    )


def test_the_document_describes_every_public_route(served: str) -> None:
    document = requests.get(f"{served}{API_PREFIX}/openapi.json", timeout=10).json()
    assert document == DOCUMENT
    assert set(document["paths"]) == {
        *(f"{API_PREFIX}/{path}" for path in (*ANSWERS, "models", "models/{name}")),
        "/healthz",
        "/readyz",
    }
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert not any("422" in operation["responses"] for operation in operations)
    assert document["paths"][f"{API_PREFIX}/messages"]["post"]["responses"]["401"] != {}
