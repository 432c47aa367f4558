"""Canaries: judgement, and the client against a frontend that answers from a script."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from prime_inference.health.canary import (
    Answer,
    Ending,
    Pair,
    ending_of,
    findings_of,
    golden_of,
    successor_of,
    suspects,
)
from prime_inference.health.canary_client import FrontendError, ask, pairs
from prime_inference.health.verdicts import Check, Verdict
from tests.support.listening import listening

PAIR = Pair(1, 2)


def right(pair: Pair = PAIR, text: str = "2, 3, 5") -> Answer:
    return Answer(200, text, pair.prefill, pair.decode)


@pytest.mark.parametrize(
    ("answer", "ending", "tokens", "transfer"),
    [
        (right(), Ending.RIGHT, Verdict.OK, Verdict.OK),
        (right(text="!!!!"), Ending.WRONG_TOKENS, Verdict.BAD, Verdict.UNKNOWN),
        (Answer(200, "2, 3, 5", None, 2), Ending.NOT_TRANSFERRED, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (Answer(200, "2, 3, 5", 7, 2), Ending.NOT_TRANSFERRED, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (Answer(529), Ending.REFUSED, Verdict.UNKNOWN, Verdict.UNKNOWN),
        (Answer(500, error="x"), Ending.BROKEN, Verdict.UNKNOWN, Verdict.BAD),
        (Answer(0), Ending.LATE, Verdict.UNKNOWN, Verdict.BAD),
    ],
)
def test_an_answer_is_judged(answer: Answer, ending: Ending, tokens: Verdict, transfer: Verdict) -> None:
    assert ending_of(PAIR, answer, "2, 3, 5") is ending
    found = {finding.check: finding.verdict for finding in findings_of(PAIR, ending)}
    assert found == {Check.CANARY_TOKENS: tokens, Check.CANARY_TRANSFER: transfer}


def test_pairs_teach_the_golden_answer_only_when_most_agree() -> None:
    def said(*texts: str) -> str | None:
        return golden_of((Pair(1, n), right(Pair(1, n), text)) for n, text in enumerate(texts))

    assert said("a", "a", "b") == "a"
    assert said("a") is None
    assert said("a", "b") is None
    assert said("a", "a", "b", "b") is None
    assert said("", "") is None
    assert golden_of([(Pair(1, 2), right(Pair(3, 4))), (Pair(1, 2), right(Pair(3, 4)))]) is None


def test_another_golden_answer_is_taken_only_from_all_and_never_from_one_worker_alone() -> None:
    def said(*pairs: tuple[int, int, str]) -> list[tuple[Pair, Answer]]:
        return [(Pair(p, d), Answer(200, text, p, d)) for p, d, text in pairs]

    busy = (Pair(2, 9), Answer(503))
    assert successor_of([*said((1, 8, "new"), (2, 9, "new")), busy]) == "new"
    assert successor_of(said((1, 8, "new"), (2, 9, "new"), (2, 8, "old"))) is None
    assert successor_of([*said((1, 8, "garbage"), (1, 9, "garbage")), busy]) is None, "worker 1 is in both"
    assert successor_of(said((1, 8, ""), (2, 9, ""))) is None
    assert successor_of([]) is None


def test_the_worker_that_fails_with_every_partner_is_the_suspect() -> None:
    endings = {Pair(p, d): Ending.WRONG_TOKENS if d == 4 else Ending.RIGHT for p in (1, 2) for d in (3, 4)}
    assert suspects(endings) == (frozenset(), frozenset({4}))
    endings = dict.fromkeys(endings, Ending.BROKEN)
    assert suspects(endings) == (frozenset(), frozenset()), "all of them: it is no worker's fault alone"
    assert suspects({Pair(1, 2): Ending.REFUSED}) == (frozenset(), frozenset())


@contextmanager
def frontend(
    answer: dict[str, Any], instances: list[dict[str, Any]]
) -> Iterator[tuple[httpx.Client, list[dict[str, str]]]]:
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say({"instances": instances})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self._say(answer)

        def _say(self, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as url, httpx.Client(base_url=url) as client:
        yield client, seen


def instance(component: str, number: int, endpoint: str = "generate") -> dict[str, Any]:
    return {"component": component, "endpoint": endpoint, "instance_id": number}


def test_every_pair_is_asked_by_its_ids_and_with_a_salt_of_its_own() -> None:
    instances = [
        instance("prefill", 1),
        instance("backend", 2),
        instance("backend", 3),
        instance("backend", 9, "clear"),
    ]
    said = {
        "choices": [{"message": {"content": "x"}}],
        "nvext": {"worker_id": {"prefill_worker_id": 1, "decode_worker_id": 2}},
    }
    with frontend(said, instances) as (client, seen):
        assert pairs(client) == [Pair(1, 2), Pair(1, 3)]
        assert ending_of(Pair(1, 2), ask(client, "m", Pair(1, 2), 5), "x") is Ending.RIGHT
        assert ending_of(Pair(1, 3), ask(client, "m", Pair(1, 3), 5), "x") is Ending.NOT_TRANSFERRED
    assert [s["x-dynamo-worker-instance-id"] for s in seen] == ["2", "3"]
    assert seen[0]["x-tenant-id"] != seen[1]["x-tenant-id"]


def test_a_garbled_answer_is_broken_and_a_frontend_that_is_gone_says_so() -> None:
    with frontend({"choices": []}, []) as (client, _):
        assert ending_of(PAIR, ask(client, "m", PAIR, 5), None) is Ending.BROKEN
        assert pairs(client) == []
    with httpx.Client(base_url="http://127.0.0.1:1") as client:
        assert ending_of(PAIR, ask(client, "m", PAIR, 5), None) is Ending.BROKEN
        with pytest.raises(FrontendError):
            pairs(client)
