"""The real Dynamo frontend, router and parsers (none for TOOL_PARSER none) in one process, with canned text as engine.

The last message of the prompt names what the engine writes: `WIRE=<hex of the text>/<tokens a step>/<finish
reason>`. So the text, how a stream is cut and how it ends are the caller's, and everything between engine and HTTP
is the real thing. Each request's structural tag or grammar and its prompt are appended to TAGS_FILE, one JSON line a
request, for the tests of enforcement and of what the chat template makes of a request.

A prompt that names nothing is answered as the request's grammar allows (`grammar_writer`), otherwise with a fixed text.

Usage: canned_engine.py MODEL_DIR PORT TOOL_PARSER TAGS_FILE
"""

import asyncio
import json
import os
import re
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

os.environ.update(
    DYN_DISCOVERY_BACKEND="mem",
    DYN_REQUEST_PLANE="tcp",
    DYN_EVENT_PLANE="zmq",
    HF_HUB_OFFLINE="1",
    DYN_TCP_RPC_HOST="127.0.0.1",
    DYN_TCP_RESPONSE_STREAM_HOST="127.0.0.1",
    DYN_EVENT_PLANE_HOST="127.0.0.1",
)
from dynamo._core import WorkerType
from dynamo.llm import (
    EngineType,
    EntrypointArgs,
    KvRouterConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    RouterConfig,
    RouterMode,
    make_engine,
    register_model,
    run_input,
)
from dynamo.runtime import DistributedRuntime
from tokenizers import Tokenizer

from prime_inference.engine.tool_settings import REASONING_PARSER, STRUCTURAL_TAG

MODEL_NAME = "glm"
CANNED = re.compile(r"WIRE=([0-9a-f]*)/(\d+)/(\w+)")
MOST_TOKENS = 1024
STEP = 2
"""Tokens at a time, of what the grammar allowed."""
ENDPOINT_SETTLE_S = 0.5
"""The endpoint must be listening before the model is registered, and nothing reports that it is."""


def canned(prompt: str) -> tuple[str, int, str] | None:
    found = CANNED.findall(prompt)
    if not found:
        return None
    text, step, finish = found[-1]
    return bytes.fromhex(text).decode(), int(step), finish


def append(path: str, line: str) -> None:
    with Path(path).open("a") as lines:
        lines.write(line + "\n")


async def serve(model: str, port: int, tool_parser: str, tags_file: str) -> None:
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")

    writers: list[Any] = []

    def written(guided: dict[str, Any], request: dict[str, Any]) -> tuple[list[int], int, str]:
        if not (guided.get("grammar") or guided.get("structural_tag")):
            return tokenizer.encode("no canned text in this prompt", add_special_tokens=False).ids, 0, "stop"
        if not writers:
            from grammar_writer import GrammarWriter  # beside this script; it imports torch

            writers.append(GrammarWriter(model))
        most = (request.get("stop_conditions") or {}).get("max_tokens") or MOST_TOKENS
        seed = zlib.crc32(json.dumps([request["token_ids"], guided]).encode())
        tokens, finish = writers[0].write(guided, seed, most)
        return tokens, STEP, finish

    async def generate(request: dict[str, Any], context: Any = None) -> AsyncIterator[dict[str, Any]]:
        prompt = tokenizer.decode(request["token_ids"], skip_special_tokens=False)
        said = canned(prompt)
        guided = (request.get("sampling_options") or {}).get("guided_decoding") or {}
        append(tags_file, json.dumps({**guided, "prompt": prompt}))
        if said is None:
            ids, step, finish = written(guided, request)
        else:
            text, step, finish = said
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        step = step or max(len(ids), 1)
        for start in range(0, len(ids), step):
            yield {"token_ids": ids[start : start + step]}
        prompt_tokens = len(request["token_ids"])
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "total_tokens": prompt_tokens + len(ids),
        }
        yield {"token_ids": [], "finish_reason": finish, "completion_usage": usage}

    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    config = ModelRuntimeConfig()
    if tool_parser != "none":
        config.tool_call_parser, config.reasoning_parser = tool_parser, REASONING_PARSER
    config.set_structural_tag(STRUCTURAL_TAG)
    config.total_kv_blocks, config.max_num_seqs, config.max_num_batched_tokens = 10_000, 16, 65_536
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate, graceful_shutdown=False))
    await asyncio.sleep(ENDPOINT_SETTLE_S)
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        model,
        MODEL_NAME,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=16,
        runtime_config=config,
        ignore_weights=True,
    )
    router = RouterConfig(RouterMode.KV, KvRouterConfig(use_kv_events=False))
    arguments = EntrypointArgs(EngineType.Dynamic, http_host="127.0.0.1", http_port=port, router_config=router)
    await run_input(runtime, "http", await make_engine(runtime, arguments))
    serving.cancel()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
