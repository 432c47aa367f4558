"""Every final tool call of an answer, judged as it passes, streamed or whole.

`StreamJudge.feed` takes each complete chat chunk (a parsed dict) that goes to the client and gives the verdicts it
settles; it keeps only the calls' own texts and never holds anything back. `finish` closes the books: what became of
the request, and which of the API's promises about calls (ids, indices, finish reason) were broken.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.declared import Declared
from prime_inference.toolcalls.glm import MARKERS
from prime_inference.toolcalls.verdict import Judgement, Verdict, judge


class Outcome(StrEnum):
    """What became of one request, for the metric. `CALLS_WRONG` over `CALLS_OK` + `CALLS_WRONG` is OpenRouter's
    rate."""

    NO_CALLS = "no_calls"
    CALLS_OK = "calls_ok"
    CALLS_WRONG = "calls_wrong"
    DROPPED = "dropped"
    TRUNCATED = "truncated"
    UNENDED = "unended"
    """No finish reason came: the stream broke off."""


class Fault(StrEnum):
    """A broken promise of the API, whatever the call is worth."""

    INDEX_GAP = "index_gap"
    ID_MISSING = "id_missing"
    ID_REPEATED = "id_repeated"
    NAME_REPEATED = "name_repeated"
    MARKER_IN_CONTENT = "marker_in_content"
    MARKER_IN_NAME = "marker_in_name"
    FINISH_REASON = "finish_reason"
    """`tool_calls` without a call, or a call without `tool_calls` (and without truncation)."""
    CHOICE_IGNORED = "choice_ignored"
    """A call under `none`, another tool than the one named, or no call where one had to be made."""


@dataclass(frozen=True)
class Summary:
    outcome: Outcome
    judgements: tuple[Judgement, ...]
    faults: tuple[Fault, ...]
    finish_reason: str | None


@dataclass
class _Growing:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class StreamJudge:
    """For one choice of one answer; several choices take one judge each."""

    def __init__(self, declared: Declared, choice: Choice, index: int = 0) -> None:
        self._declared = declared
        self._choice = choice
        self._index = index
        self._calls: dict[int, _Growing] = {}
        self._judged: dict[int, Judgement] = {}
        self._faults: list[Fault] = []
        self._finish: str | None = None
        self._tail = ""

    def feed(self, chunk: dict[str, Any]) -> tuple[Judgement, ...]:
        settled: list[Judgement] = []
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != self._index:
                continue
            delta = choice.get("delta") or choice.get("message") or {}
            self._watch(delta.get("content"))
            for position, entry in enumerate(delta.get("tool_calls") or ()):
                settled += self._take(entry, entry.get("index", position))
            if choice.get("finish_reason") is not None:
                self._finish = choice["finish_reason"]
                settled += self._settle_all()
        return tuple(settled)

    def _take(self, entry: dict[str, Any], index: int) -> list[Judgement]:
        settled: list[Judgement] = []
        call = self._calls.get(index)
        if call is None:
            settled = self._settle_all()
            if index != len(self._calls):
                self._fault(Fault.INDEX_GAP)
            call = self._calls[index] = _Growing()
        function = entry.get("function") or {}
        if entry.get("id"):
            if (call.id and call.id != entry["id"]) or any(
                other.id == entry["id"] for other in self._calls.values() if other is not call
            ):
                self._fault(Fault.ID_REPEATED)
            call.id = entry["id"]
        if function.get("name"):
            if call.name:
                self._fault(Fault.NAME_REPEATED)
            call.name += function["name"]
        call.arguments.append(function.get("arguments") or "")
        return settled

    def _settle_all(self) -> list[Judgement]:
        return [self._settle(index) for index in self._calls if index not in self._judged]

    def _settle(self, index: int) -> Judgement:
        call = self._calls[index]
        if not call.id:
            self._fault(Fault.ID_MISSING)
        if any(marker in call.name for marker in MARKERS):
            self._fault(Fault.MARKER_IN_NAME)
        judgement = judge(call.name, "".join(call.arguments), self._declared.tools)
        self._judged[index] = judgement
        return judgement

    def _watch(self, content: Any) -> None:
        """Markers in the content of a request with tools: a call that was not taken for one."""
        if not isinstance(content, str) or not self._declared.tools or self._choice.mode is Mode.NONE:
            return
        text = self._tail + content
        if any(marker in text for marker in MARKERS):
            self._fault(Fault.MARKER_IN_CONTENT)
            text = ""
        self._tail = text[-max(map(len, MARKERS)) :]

    def _fault(self, fault: Fault) -> None:
        if fault not in self._faults:
            self._faults.append(fault)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, lost_calls: int = 0) -> Summary:
        """`lost_calls`: calls that a parser of ours knows the client did not get (`RawAnswer.dropped`)."""
        self._settle_all()
        judgements = [self._judged[index] for index in sorted(self._judged)]
        cut = self._finish == "length"
        if cut and judgements and judgements[-1].verdict is Verdict.INVALID_JSON:
            judgements.pop()  # cut off in the middle: truncation, not a wrong call
        elif (self._finish == "tool_calls") != bool(judgements) and not cut and self._finish is not None:
            self._fault(Fault.FINISH_REASON)
        self._check_choice(judgements, cut)
        missing = self._must_call_missing(judgements, cut)
        lost = lost_calls + int(Fault.MARKER_IN_CONTENT in self._faults) + int(missing)
        judgements += [Judgement(Verdict.DROPPED, Verdict.DROPPED, "") for _ in range(lost)]
        return Summary(self._outcome(judgements, cut), tuple(judgements), tuple(self._faults), self._finish)

    def _must_call_missing(self, judgements: list[Judgement], cut: bool) -> bool:
        said_so = self._finish == "tool_calls" or self._choice.must_call
        return said_so and not judgements and not cut and self._finish is not None

    def _check_choice(self, judgements: list[Judgement], cut: bool) -> None:
        names = {judgement.name for judgement in judgements}
        declared_but_closed = (names & set(self._declared.tools)) - set(self._choice.allowed)
        none_made = self._choice.must_call and not judgements and not cut and self._finish is not None
        if declared_but_closed or none_made or (judgements and self._choice.mode is Mode.NONE):
            self._fault(Fault.CHOICE_IGNORED)

    def _outcome(self, judgements: list[Judgement], cut: bool) -> Outcome:
        verdicts = {judgement.verdict for judgement in judgements}
        if self._finish is None:
            return Outcome.UNENDED
        if Verdict.DROPPED in verdicts:
            return Outcome.DROPPED
        if verdicts - {Verdict.OK}:
            return Outcome.CALLS_WRONG
        if cut:
            return Outcome.TRUNCATED
        return Outcome.CALLS_OK if verdicts else Outcome.NO_CALLS
