import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.request import Endpoint, parse
from gateway.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def test_usage_and_timing_are_always_asked_for_upstream() -> None:
    body = json.loads(parse(chat(stream=True), Endpoint.CHAT).upstream_body())
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["nvext"] == {"extra_fields": ["timing"]}


def test_what_only_the_gateway_may_say_is_taken_out() -> None:
    fields = {"session_id": "s", "nvext": {"backend_instance_id": 1}, "cache_salt": "x", "temperature": 0.5}
    body = json.loads(parse(chat(**fields), Endpoint.CHAT).upstream_body())
    assert "session_id" not in body
    assert "cache_salt" not in body
    assert "backend_instance_id" not in body["nvext"]
    assert body["temperature"] == 0.5


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        (b"{}", "model"),
        (b'{"model":"m"}', "messages"),
        (b'{"model":"m","messages":[]}', "messages"),
        (b'{"model":"m","messages":["x"]}', "messages[0]"),
        (chat(stream="yes"), "stream"),
        (chat(stream_options={"include_usage": True}), "stream_options"),
        (chat(stream=True, stream_options=3), "stream_options"),
        (chat(n=2), "n"),
    ],
)
def test_a_wrong_body_is_named(raw: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(raw, Endpoint.CHAT)
    assert caught.value.param == param
    assert caught.value.status == 400


def test_completions_need_a_prompt() -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        parse(b'{"model":"m"}', Endpoint.COMPLETIONS)
    assert parse(b'{"model":"m","prompt":[1,2]}', Endpoint.COMPLETIONS).model == "m"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))), json_values)
def test_what_the_client_wrote_reaches_the_engine_unchanged(text: str, extra: Any) -> None:
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "metadata": extra}).encode()
    body = json.loads(parse(raw, Endpoint.CHAT).upstream_body())
    assert body["messages"][0]["content"] == text
    assert body["metadata"] == extra
