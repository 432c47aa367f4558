"""Lookups are asked after until they are answered or forgotten, by a thread that then ends."""

import threading
import time
from collections.abc import Callable

from prime_inference.kv.lookup_watch import LookupWatch


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_answer_has_the_time_at_which_it_came_until_it_is_forgotten() -> None:
    found: dict[str, int] = {}
    watch = LookupWatch(found.get)
    watch.watch("one")
    watch.watch("two")
    before = time.monotonic()
    found["one"] = 512
    until(lambda: watch.answer("one") is not None)
    answer = watch.answer("one")
    assert answer is not None
    assert answer.tokens == 512
    assert before <= answer.at <= time.monotonic()
    assert watch.answer("two") is None
    watch.forget("one")
    assert watch.answer("one") is None
    watch.stop()


def test_what_is_forgotten_is_not_asked_after_and_without_any_the_thread_ends() -> None:
    asked: list[str] = []

    def ask(request: str) -> None:
        asked.append(request)

    watch = LookupWatch(ask)
    watch.watch("one")
    until(lambda: bool(asked))
    watch.forget("one")
    count = len(asked)
    until(lambda: watch._thread is None)
    assert len(asked) == count
    watch.watch("two")  # and begins again
    until(lambda: "two" in asked)
    watch.stop()
    until(lambda: watch._thread is None)
    until(lambda: not any(thread.name == "prime-lookup-watch" for thread in threading.enumerate()))


def test_the_longer_a_lookup_takes_the_fewer_questions_it_costs() -> None:
    asked: list[float] = []

    def ask(_request: str) -> None:
        asked.append(time.monotonic())

    watch = LookupWatch(ask)
    watch.watch("one")
    until(lambda: asked[-1] - asked[0] > 0.6)
    watch.stop()
    assert len(asked) < 150  # at 2 ms it would have been 300
    last, before = asked[-1], asked[-2]
    assert last - before > 0.9 * (before - asked[0]) / 32


def test_one_whose_question_fails_takes_no_other_along() -> None:
    asked: list[str] = []

    def ask(request: str) -> int | None:
        asked.append(request)
        if asked.count(request) == 1:
            return None
        if request == "bad":
            raise RuntimeError
        return 256

    failed: list[object] = []
    threading.excepthook, before = failed.append, threading.excepthook
    try:
        watch = LookupWatch(ask)
        watch.watch("bad")
        until(lambda: bool(failed))
        watch.watch("good")
        until(lambda: watch.answer("good") is not None)
    finally:
        threading.excepthook = before
