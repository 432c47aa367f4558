from pathlib import Path

import pytest

from gateway.accounts.keys import KeyPriority
from gateway.admission import Kind, Priority
from gateway.api.terms import Terms, terms_of
from gateway.settings import GatewaySettings

SETTINGS = GatewaySettings.model_validate(
    {"fleet_file": Path("f"), "keys_file": Path("k"), "secret": "s", "total_timeout_seconds": 1000}
)


def terms(stream: bool = False, priority: KeyPriority = KeyPriority.INTERACTIVE, **headers: str) -> Terms:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return terms_of(names, priority, stream, SETTINGS, now=0.0)


def test_a_clients_read_timeout_ends_a_unary_answer_and_hurries_a_streams_first_comment() -> None:
    assert terms(x_stainless_read_timeout="60").deadline == 60
    streaming = terms(stream=True, x_stainless_read_timeout="4")
    assert (streaming.deadline, streaming.keepalive_s) == (1000, 2)
    assert not terms(x_stainless_read_timeout="60").deadline_is_ours
    assert terms(x_stainless_read_timeout="6000").deadline_is_ours
    assert terms(stream=True, x_stainless_read_timeout="1e-9").keepalive_s >= 0.1


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e999", "abc", "NotGiven"])
def test_a_read_timeout_that_is_none_is_ignored(text: str) -> None:
    assert terms(x_stainless_read_timeout=text).deadline == 1000


def test_retries_stand_behind_first_attempts_and_batch_does_not_wait() -> None:
    assert terms().priority is Priority.INTERACTIVE
    assert terms(x_stainless_retry_count="2").priority is Priority.RETRY
    assert terms(x_stainless_retry_count="-1").priority is Priority.INTERACTIVE
    batch = terms(priority=KeyPriority.BATCH, x_stainless_retry_count="1")
    assert (batch.kind, batch.priority, batch.patience_s) == (Kind.BATCH, Priority.BATCH, 0.0)
    routed = terms(priority=KeyPriority.ROUTED)
    assert (routed.priority, routed.patience_s) == (Priority.ROUTED, SETTINGS.queue_seconds / 10)
