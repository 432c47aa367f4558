"""What the contract costs a request of 20 tools, and a streamed event, in milliseconds of processor time.

    python -m benchmarks.toolcalls.cost --out FILE

`door_cold` reads and normalises tools whose schemas were never seen before and builds and hashes the tag;
`door_cold_longest_turn` is the longest that such a request holds the gateway's event loop at once, since the door awaits
between two schemas; `door_redescribed` is the door for known schemas under new descriptions; `door_warm` for tools of an
earlier turn, which is what every later turn of an agent pays. `judge` is one call's verdict; `chunk` is one chunk through
the parser of raw text and the judge together, which is all that is added to the time between two tokens; `event` is the
same in the gateway, bytes to bytes, `event_bare` what the gateway takes for an event without tools, and `event_responses`
and `event_messages` what it takes in the two dialects. What the compile process takes is in `compile_cost`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.toolcalls.record import environment, write
from gateway.dialects.editor import DialectEditor
from gateway.dialects.messages_answer import MessagesWriter
from gateway.dialects.responses_answer import ResponsesWriter
from gateway.dialects.responses_request import ToolNames
from gateway.relay.stream import Editor, StreamEditor
from gateway.toolcalls.books import Books
from gateway.toolcalls.editor import ToolStreamEditor
from gateway.toolcalls.metrics import ToolMetrics
from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.declared import Declared, declare, declaring, forget, read_schema
from prime_inference.toolcalls.raw import RawStream
from prime_inference.toolcalls.stream import StreamJudge
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.suite.generate import Sample, generate
from prime_inference.toolcalls.suite.wire import call
from prime_inference.toolcalls.tags import build_tag, tag_key
from prime_inference.toolcalls.verdict import judge

TOOLS = 20
SEED = 20
ROUNDS = 400
CHARACTERS_A_CHUNK = 4
"""About one token."""


def tools_of(samples: list[Sample], turn: int, new_schema: bool = False) -> list[dict[str, Any]]:
    """`turn` goes into a description, of the tool or also of its schema, so that no earlier turn's preparation fits."""
    said = {"description": f"turn {turn}"}
    return [
        function(
            f"tool_{index}",
            {**sample.parameters, **said} if new_schema else sample.parameters,
            description=f"Does the thing numbered {index} ({turn}).",
        )
        for index, sample in enumerate(samples)
    ]


def door(tools: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return grammar_of(declare(tools))


def grammar_of(declared: Declared) -> tuple[str, dict[str, Any]]:
    choice = read_choice("auto", declared.tools)
    return tag_key(declared, choice), build_tag(declared, choice)


def timed(work: Callable[[int], object], rounds: int) -> list[float]:
    """Milliseconds of each round."""
    result = []
    for number in range(rounds):
        start = time.process_time()
        work(number)
        result.append((time.process_time() - start) * 1000)
    return result


def turns_of(tools: list[dict[str, Any]]) -> list[float]:
    """Milliseconds of each turn of the event loop that the gateway's door takes for these tools: it awaits between two."""
    turns = []
    steps = declaring(tools)
    begun = time.process_time()
    try:
        schema = next(steps)
        while True:
            read = read_schema(schema)
            turns.append((time.process_time() - begun) * 1000)
            begun = time.process_time()
            schema = steps.send(read)
    except StopIteration as done:
        grammar_of(done.value)
    turns.append((time.process_time() - begun) * 1000)
    return turns


def chunk_costs(tools: list[dict[str, Any]]) -> list[float]:
    """Milliseconds of each chunk of an answer with text and a call of 8 KB."""
    declared = declare(tools)
    choice = read_choice("auto", declared.tools)
    text = "x" * 2000 + call("tool_0", ("query", "line of code\n" * 600)) + "done"
    raw, judged = RawStream(declared, choice, lambda: "call_0", thinking=False), StreamJudge(declared, choice)
    costs = []
    for start in range(0, len(text), CHARACTERS_A_CHUNK):
        delta = {"content": text[start : start + CHARACTERS_A_CHUNK]}
        chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        begun = time.process_time()
        sent = raw.feed(chunk)
        if sent is not None:
            judged.feed(sent)
        costs.append((time.process_time() - begun) * 1000)
    return costs


def event_costs(editor: Editor) -> list[float]:
    """Milliseconds of each event of the answer of `chunk_costs`, through a stream editor of the gateway."""
    text = "x" * 2000 + call("tool_0", ("query", "line of code\n" * 600)) + "done"
    costs = []
    for start in range(0, len(text), CHARACTERS_A_CHUNK):
        delta = {"content": text[start : start + CHARACTERS_A_CHUNK]}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}
        event = b"data: " + json.dumps({**chunk, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"
        begun = time.process_time()
        editor.feed(event)
        costs.append((time.process_time() - begun) * 1000)
    return costs


def tool_editor(tools: list[dict[str, Any]]) -> StreamEditor:
    declared = declare(tools)
    choice = read_choice("auto", declared.tools)
    books = Books(ToolMetrics(CollectorRegistry()), "m", declared, choice)
    raw = RawStream(declared, choice, lambda: "call_0", thinking=False)
    return ToolStreamEditor(forward_usage=False, raw=raw, books=books)


def measure() -> dict[str, list[float]]:
    samples = list(generate(TOOLS, SEED))
    arguments = [json.dumps(sample.right[0]) for sample in samples]
    warm = tools_of(samples, 0)
    tools = declare(warm).tools
    door(warm)
    forget()
    return {
        "door_cold": timed(lambda turn: door(tools_of(samples, turn + 1, new_schema=True)), ROUNDS // 4),
        "door_cold_longest_turn": [
            max(turns_of(tools_of(samples, turn + 1 + ROUNDS, new_schema=True))) for turn in range(ROUNDS // 4)
        ],
        "door_redescribed": timed(lambda turn: door(tools_of(samples, turn + 1)), ROUNDS // 4),
        "door_warm": timed(lambda _: door(warm), ROUNDS),
        "judge": timed(lambda turn: judge(f"tool_{turn % TOOLS}", arguments[turn % TOOLS], tools), ROUNDS),
        "request_warm": timed(lambda turn: (door(warm), judge("tool_0", arguments[0], tools)), ROUNDS),
        "chunk": chunk_costs(warm),
        "event": event_costs(tool_editor(warm)),
        "event_bare": event_costs(StreamEditor(forward_usage=False)),
        "event_responses": event_costs(DialectEditor(tool_editor(warm), ResponsesWriter({"model": "m"}, ToolNames()))),
        "event_messages": event_costs(DialectEditor(tool_editor(warm), MessagesWriter("m"))),
    }


def summary(values: list[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"n {len(ordered):5}  p50 {statistics.median(ordered):8.4f} ms  p99 {p99:8.4f} ms  max {ordered[-1]:8.4f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = environment("python -m benchmarks.toolcalls.cost")
    samples = measure()
    for name, values in samples.items():
        print(f"{name:18} {summary(values)}")
    if options.out is not None:
        write(options.out, about, {"unit": "ms", "clock": "process_time", "samples": samples})


if __name__ == "__main__":
    main()
