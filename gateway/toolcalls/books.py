"""One answer's tool calls, counted: each call once, when it is settled, and the answer once, when it ends."""

from gateway.toolcalls.metrics import ToolMetrics
from prime_inference.toolcalls.choice import Choice
from prime_inference.toolcalls.declared import Declared
from prime_inference.toolcalls.raw import Chunk
from prime_inference.toolcalls.stream import Outcome, StreamJudge
from prime_inference.toolcalls.verdict import Verdict

LOST = "the model began a tool call, or had to make one, and did not finish it"


class Books:
    """For the first choice, which is the only one: `n` is 1. `saw` takes what goes to the client."""

    def __init__(self, metrics: ToolMetrics, model: str, declared: Declared, choice: Choice) -> None:
        self._metrics = metrics
        self._model = model
        self._choice = choice
        self._judge = StreamJudge(declared, choice)
        self._closed = False

    def saw(self, chunk: Chunk) -> None:
        self._judge.feed(chunk)

    def close(self, lost_calls: int = 0) -> bool:
        """Count what the answer came to. True when the client was owed a call and has got none, so that a normal end
        would be a lie. A call that the token limit cut off is not owed: `length` says so."""
        if self._closed:
            return False
        self._closed = True
        summary = self._judge.finish(lost_calls)
        for judgement in summary.judgements:
            self._metrics.calls.labels(self._model, judgement.verdict.value).inc()
            self._metrics.counted.labels(self._model, judgement.counted.value).inc()
        for fault in summary.faults:
            self._metrics.faults.labels(self._model, fault.value).inc()
        self._metrics.answers.labels(self._model, summary.outcome.value).inc()
        delivered = any(judgement.verdict is not Verdict.DROPPED for judgement in summary.judgements)
        owed = lost_calls > 0 or self._choice.must_call
        return summary.outcome is Outcome.DROPPED and owed and not delivered
