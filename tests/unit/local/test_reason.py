import signal

from prime_inference.local.reason import ended_because, reason_in

VLLM_LOG = """
(EngineCore pid=7596) ERROR 11-29 23:33:44 [core.py:1433] ValueError: No common block size for 16 (CPU_ATTN)
(EngineCore pid=7596) ERROR 11-29 23:33:44 [core.py:1433] RuntimeError: Worker failed with error (No common block size)
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_first_cause_is_told_not_the_summary_of_it() -> None:
    assert reason_in(VLLM_LOG) == "ValueError: No common block size for 16 (CPU_ATTN)"


def test_a_log_without_an_error_tells_its_last_line() -> None:
    assert reason_in("one\ntwo\n\n") == "two"
    assert reason_in("") == "it wrote nothing"


def test_our_own_commands_tell_their_sentence() -> None:
    assert reason_in("prime-inference gateway: cannot listen on 127.0.0.1:1: in use\n").startswith(
        "prime-inference gateway:"
    )


def test_a_validation_error_is_told_with_what_is_wrong() -> None:
    log = "ValidationError: 1 validation error for ModelConfig\n  Value error, NoSuchModel is unknown [x]\n    For more see\n"
    assert "NoSuchModel is unknown" in reason_in(log)


def test_a_signal_is_told_before_anything_in_the_log() -> None:
    assert ended_because(-signal.SIGKILL, VLLM_LOG) == "it was killed by SIGKILL (out of memory?)"
    assert ended_because(1, VLLM_LOG) == reason_in(VLLM_LOG)
