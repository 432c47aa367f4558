"""Lookups that nobody waits for any more are asked after until they are answered or forgotten, by a thread that then ends."""

import threading
import time
from collections.abc import Callable

from prime_inference.kv.late_lookups import LateLookups


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_answer_has_the_time_at_which_it_came_and_is_told_once() -> None:
    found: dict[str, int] = {}
    late = LateLookups(found.get)
    late.watch("one")
    late.watch("two")
    before = time.monotonic()
    found["one"] = 512
    until(lambda: bool(late._answers))
    (answer,) = late.take()
    assert (answer.request, answer.tokens) == ("one", 512)
    assert before <= answer.at <= time.monotonic()
    assert late.take() == []
    found["two"] = 0
    until(lambda: bool(late._answers))
    assert [each.request for each in late.take()] == ["two"]


def test_what_is_forgotten_is_not_asked_after_and_without_any_the_thread_ends() -> None:
    asked: list[str] = []

    def ask(request: str) -> None:
        asked.append(request)

    late = LateLookups(ask)
    late.watch("one")
    until(lambda: bool(asked))
    late.forget("one")
    count = len(asked)
    until(lambda: not any(thread.name == "prime-late-lookups" for thread in threading.enumerate()))
    assert len(asked) == count
    late.watch("two")  # and begins again
    until(lambda: "two" in asked)
    late.stop()
    until(lambda: late._thread is None)
