"""How long an answer that comes whole may take, and when a late one speaks against the deployment."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.breaker import Ending
from gateway.relay.attempts import REPLY_MARGIN_S, whole_answer_allowance

TICKET: Any = SimpleNamespace(first_event_s=60.0, token_s=0.1)
LATE, SHORT = Ending.FIRST_EVENT_TIMEOUT, Ending.TOO_LITTLE_TIME


@pytest.mark.parametrize(
    ("left_s", "most_tokens", "ours", "seconds", "late"),
    [
        (600.0, 100, False, 70.0, LATE),  # an SDK's usual patience: another deployment may have the rest
        (600.0, None, False, 600.0, LATE),  # nobody knows how long the answer is: it may take all, and 470 s were owed
        (400.0, None, False, 400.0, SHORT),
        (60.0, 100, False, 60.0, SHORT),
        (60.0, 100, True, 60.0, LATE),  # the gateway's own limit says what an answer may take
        (3600.0, 100_000, True, 3600.0, LATE),
        (0.01, 1, False, 0.0 + REPLY_MARGIN_S, SHORT),
    ],
)
def test_a_deployment_is_blamed_once_it_had_the_time_it_is_owed(
    left_s: float, most_tokens: int | None, ours: bool, seconds: float, late: Ending
) -> None:
    allowance = whole_answer_allowance(TICKET, left_s, most_tokens, deadline_is_ours=ours)
    owed = most_tokens is not None and seconds == 70.0
    assert allowance.seconds == pytest.approx(seconds if owed else seconds - REPLY_MARGIN_S)
    assert allowance.late is late
