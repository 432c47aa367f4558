"""Runs cases against an endpoint, each whole and streamed, and says of each answer what was wrong with it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.declared import Declared, OnUnsupported, declare
from prime_inference.toolcalls.stream import Fault, Outcome, StreamJudge, Summary
from prime_inference.toolcalls.strict_json import NotJson, parse, spell
from prime_inference.toolcalls.suite.cases import Case, canned_messages
from prime_inference.toolcalls.suite.client import TIMEOUT_S, Answer, EndpointError, ask
from prime_inference.toolcalls.verdict import Verdict

STEPS = (1, 2, 3, 5, 0)
"""Tokens an engine of canned text writes at once (0: all): every way that a marker can fall apart, and a draft
burst."""
PROBE = "an engine of canned text says this"


@dataclass(frozen=True)
class Result:
    id: str
    group: str
    source: str
    way: str
    """`whole`, `streamed`, or `streamed/N` for N tokens a step."""
    outcome: Outcome | None
    """None when the endpoint gave no answer."""
    verdicts: tuple[Verdict, ...]
    counted: tuple[Verdict, ...]
    finish_reason: str | None
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def wrong_by_openrouters_count(self) -> bool:
        """Any wrong call makes a request wrong, among those that ended in tool_calls."""
        return self.finish_reason == "tool_calls" and bool(set(self.counted) - {Verdict.OK, Verdict.DROPPED})


@dataclass
class Run:
    results: list[Result] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    """Group, and why it was not run."""

    def rates(self) -> dict[str, Any]:
        """By request, as OpenRouter counts."""
        called = [result for result in self.results if result.finish_reason == "tool_calls"]
        wrong = [result for result in called if result.wrong_by_openrouters_count]
        return {
            "answers": len(self.results),
            "passed": sum(result.passed for result in self.results),
            "ended_in_tool_calls": len(called),
            "wrong_by_openrouters_count": len(wrong),
            "outcomes": dict(Counter(str(result.outcome or "no_answer") for result in self.results)),
            "verdicts": dict(Counter(str(verdict) for result in self.results for verdict in result.verdicts)),
        }


async def run_cases(
    base_url: str,
    model: str,
    cases: Iterable[Case],
    headers: dict[str, str],
    concurrency: int,
    steps: tuple[int, ...] = STEPS,
    done: Callable[[int, int], None] = lambda _cases, _all: None,
) -> Run:
    """`done` hears after each case how many are over, and of how many."""
    run = Run()
    url = base_url.rstrip("/")
    turn = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers, limits=limits, trust_env=False) as client:
        endpoint = Endpoint(client, url, model, steps)
        wanted = list(cases)
        if any(case.canned is not None for case in wanted) and not await endpoint.is_canned():
            wanted = [case for case in wanted if case.canned is None]
            run.not_run["wire"] = "needs an engine of canned text, and this endpoint's is a model"
        over = 0

        async def one(case: Case) -> list[Result]:
            nonlocal over
            results = await endpoint.run(case, turn)
            over += 1
            done(over, len(wanted))
            return results

        groups = await asyncio.gather(*(one(case) for case in wanted))
    run.results = [result for group in groups for result in group]
    return run


class Endpoint:
    def __init__(self, client: httpx.AsyncClient, url: str, model: str, steps: tuple[int, ...]) -> None:
        self._client = client
        self._steps = steps
        self._url = url
        self._model = model

    async def is_canned(self) -> bool:
        probe = Case("probe", "wire", "", (), canned_messages(f"</think>{PROBE}", 0, "stop"))
        answer = await ask(self._client, self._url, self._body(probe, 0), stream=False)
        return answer.content.strip() == PROBE

    def _body(self, case: Case, step: int) -> dict[str, Any]:
        messages = case.messages
        if case.canned is not None:
            messages = canned_messages(case.canned, step, case.canned_finish)
        body = {"model": self._model, "messages": list(messages), **case.options}
        return {**body, "tools": list(case.tools), "tool_choice": case.tool_choice} if case.tools else body

    async def run(self, case: Case, turn: asyncio.Semaphore) -> list[Result]:
        results: list[Result] = []
        first: Answer | None = None
        for way, step, stream in _ways(case, self._steps):
            async with turn:
                try:
                    answer = await ask(self._client, self._url, self._body(case, step), stream)
                except EndpointError as error:
                    results.append(_no_answer(case, way, str(error)))
                    continue
            result = check(case, way, answer)
            if case.canned is not None and first is not None and answer.seen() != first.seen():
                result = replace(result, problems=(*result.problems, "not the same as the whole answer"))
            first = first or answer
            results.append(result)
        return results


def _ways(case: Case, steps: tuple[int, ...]) -> list[tuple[str, int, bool]]:
    if case.canned is None:
        return [("whole", 0, False), ("streamed", 0, True)]
    return [("whole", 0, False), *((f"streamed/{step or 'all'}", step, True) for step in steps)]


def _no_answer(case: Case, way: str, problem: str) -> Result:
    return Result(case.id, case.group, case.source, way, None, (), (), None, (problem,))


def check(case: Case, way: str, answer: Answer) -> Result:
    declared = declare(case.tools, OnUnsupported.NAMES_ONLY)
    summary = _judged(case, declared, answer)
    wanted = (Verdict.OK,) * len(answer.calls)
    if case.expected is not None and case.expected.verdicts:
        wanted = case.expected.verdicts
    problems = list(_expectation(case, answer))
    verdicts = tuple(judgement.verdict for judgement in summary.judgements)
    if verdicts != wanted:
        reasons = "; ".join(reason for judgement in summary.judgements for reason in judgement.reasons)
        problems.append(f"verdicts {[str(one) for one in verdicts]}, not {[str(one) for one in wanted]}: {reasons}")
    problems += [f"fault: {fault}" for fault in summary.faults]
    problems += _choice_kept(case, answer, summary)
    counted = tuple(judgement.counted for judgement in summary.judgements)
    return Result(
        *(case.id, case.group, case.source, way),
        outcome=summary.outcome,
        verdicts=verdicts,
        counted=counted,
        finish_reason=answer.finish_reason,
        problems=tuple(problems),
    )


def _judged(case: Case, declared: Declared, answer: Answer) -> Summary:
    judge = StreamJudge(declared, read_choice(case.tool_choice, declared.tools))
    for chunk in answer.chunks:
        judge.feed(chunk)
    return judge.finish()


def _expectation(case: Case, answer: Answer) -> Iterable[str]:
    expected = case.expected
    if expected is None:
        return
    if answer.content != expected.content:
        yield f"content {answer.content!r}, not {expected.content!r}"
    if answer.finish_reason != expected.finish_reason:
        yield f"finish_reason {answer.finish_reason!r}, not {expected.finish_reason!r}"
    if [name for name, _ in answer.calls] != [name for name, _ in expected.calls]:
        yield f"calls of {[name for name, _ in answer.calls]}, not {[name for name, _ in expected.calls]}"
        return
    for (name, got), (_, wanted) in zip(answer.calls, expected.calls, strict=True):
        if not same_json(got, wanted):
            yield f"{name}: arguments {got[:300]!r}, not {wanted[:300]!r}"


def same_json(got: str, wanted: str) -> bool:
    """The same values in the same order, numbers written the same way (5 is not 5.0); spacing is free."""
    if got == wanted:
        return True
    try:
        return spell(parse(got)) == spell(parse(wanted))
    except NotJson:
        return False


def _choice_kept(case: Case, answer: Answer, summary: Summary) -> Iterable[str]:
    cut = summary.outcome is Outcome.TRUNCATED
    if case.calls_wanted and not answer.calls and not cut and Fault.CHOICE_IGNORED not in summary.faults:
        yield "no call, though one was required"
    if case.no_calls_wanted and answer.calls:
        yield "a call, though none was allowed"
    if case.most_calls is not None and len(answer.calls) > case.most_calls:
        yield f"{len(answer.calls)} calls, though at most {case.most_calls} were allowed"
    if case.only and any(name not in case.only for name, _ in answer.calls):
        yield f"calls of {[name for name, _ in answer.calls]}, though only {list(case.only)} were allowed"
