"""Nothing goes through the gateway before the frontend serves the model."""

import json

import pytest

from prime_inference.local import warm_up
from prime_inference.local.warm_up import models_in, until_model_is_served


async def test_the_frontend_is_asked_until_it_lists_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"data": [{"id": "m"}]}
    answers = [
        (0, b""),
        (503, b"starting"),
        (200, b'{"data": []}'),
        (200, json.dumps(listed).encode()),
        (200, b"never"),
    ]
    asked = []

    async def get(url: str) -> tuple[int, bytes]:
        asked.append(url)
        return answers[len(asked) - 1]

    monkeypatch.setattr(warm_up, "get", get)
    monkeypatch.setattr(warm_up, "ASK_EVERY_S", 0.0)
    await until_model_is_served(1, "m")
    assert asked == ["http://127.0.0.1:1/v1/models"] * 4


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": [1]}', b'{"data": null}'])
def test_an_answer_that_lists_nothing_names_no_model(body: bytes) -> None:
    assert models_in(body) == set()
