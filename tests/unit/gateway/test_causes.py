import json

import pytest

from gateway.relay.causes import AttemptFailed, Cause, cause_of_status, client_error, error_for


@pytest.mark.parametrize(
    ("causes", "status"),
    [
        ([Cause.BUSY], 429),
        ([Cause.CONNECT, Cause.BUSY], 429),
        ([Cause.CONNECT], 503),
        ([Cause.UNAVAILABLE, Cause.CONNECT], 503),
        ([Cause.FIRST_EVENT_TIMEOUT], 504),
        ([Cause.SERVER_ERROR], 502),
        ([Cause.UNAVAILABLE, Cause.LOST], 503),
        ([Cause.UNAVAILABLE, Cause.SERVER_ERROR], 502),
        ([Cause.EMPTY], 502),
        ([Cause.GARBAGE], 502),
    ],
)
def test_what_a_client_sees_when_every_attempt_failed(causes: list[Cause], status: int) -> None:
    error = error_for([AttemptFailed(cause, "why") for cause in causes])
    assert error.status == status
    if status in (429, 503):
        assert int(error.headers()["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("status", "cause"),
    [(529, Cause.BUSY), (429, Cause.BUSY), (503, Cause.UNAVAILABLE), (404, Cause.UNAVAILABLE), (500, Cause.SERVER_ERROR),
     (502, Cause.SERVER_ERROR), (400, None), (413, None), (422, None), (501, None)],
)  # fmt: skip
def test_which_upstream_statuses_another_attempt_may_cure(status: int, cause: Cause | None) -> None:
    assert cause_of_status(status) is cause


def test_a_worker_that_has_just_gone_is_unavailable_not_a_fault_of_ours() -> None:
    body = b'{"message":"Failed to generate completions","type":"Internal Server Error","code":500}'
    assert cause_of_status(500, body) is Cause.UNAVAILABLE
    assert cause_of_status(500, b'{"message":"boom"}') is Cause.SERVER_ERROR


def test_a_refusal_of_dynamo_is_wrapped() -> None:
    body = b'{"message":"Validation: Temperature must be between 0 and 2, got 9","type":"Bad Request","code":400}'
    error = client_error(400, body)
    assert error.body()["error"]["message"] == "Temperature must be between 0 and 2, got 9"
    assert set(error.body()["error"]) == {"message", "type", "param", "code"}


def test_a_prompt_that_is_too_long_has_openais_code() -> None:
    details = {"type": "context_length", "limit": 2048, "actual": 5031}
    error = client_error(400, json.dumps({"message": "Invalid request", "details": details}).encode())
    assert error.code == "context_length_exceeded"
    assert "2048" in error.message


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"error":{"message":"x"}}', b"\xff"])
def test_any_refusal_body_is_answered(body: bytes) -> None:
    assert client_error(400, body).message
