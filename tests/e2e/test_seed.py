"""A `seed` with a prompt of several prefill steps, which killed vLLM's CPU engine (docs/adr/0004)."""

import pytest

from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

LONG = "The keeper of the lighthouse wrote the day's weather into his book. " * 400
"""About 6,000 tokens of the 8,192 that the local stack takes."""


def test_a_seeded_long_prompt_is_answered_and_its_worker_lives(real_stack: Stack) -> None:
    before = real_stack.pid_of("prefill-0")
    answer = real_stack.chat(
        f"{LONG} What did he write?", max_tokens=4, seed=7, temperature=1.0, timeout_s=120
    ).raise_for_status()
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] > 4096
    assert usage["completion_tokens"] >= 1
    assert real_stack.pid_of("prefill-0") == before
    steps = (real_stack.state / "logs" / "prefill-0.log").read_text(errors="replace")
    assert "does not use offset" not in steps
