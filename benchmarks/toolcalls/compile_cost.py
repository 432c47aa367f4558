"""What the compile process takes for a request's grammar, in ms of its processor time: none of it is the gateway's.

    python -m benchmarks.toolcalls.compile_cost --tokenizer FOLDER --out FILE

`new`: 20 tools never seen. `recombined`: 19 of them, which are only written out. `anew`: those 19 if they were compiled again.
"""

import argparse
import time
from pathlib import Path

import xgrammar
from transformers import AutoTokenizer

from benchmarks.toolcalls.cost import SEED, TOOLS, door, summary, tools_of
from benchmarks.toolcalls.record import environment, write
from prime_inference.toolcalls.compile_process import CACHE_BYTES, compile_tag
from prime_inference.toolcalls.suite.generate import generate

SETS = 12


def measure(tokenizer: Path) -> dict[str, list[float]]:
    info = xgrammar.TokenizerInfo.from_huggingface(AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True))
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)
    costs: dict[str, list[float]] = {"new": [], "recombined": [], "anew": []}
    for seed in range(SETS):
        tools = tools_of(list(generate(TOOLS, SEED + seed)), 0)
        for name, of, known in (("new", tools, False), ("recombined", tools[1:], True), ("anew", tools[1:], False)):
            tag = door(of)[1]
            begun = time.process_time()
            assert compile_tag(compiler, tag, True, known)["ok"]
            costs[name].append((time.process_time() - begun) * 1000)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = environment("python -m benchmarks.toolcalls.compile_cost --tokenizer FOLDER")
    samples = measure(options.tokenizer)
    for name, values in samples.items():
        print(f"{name:12} {summary(values)}")
    if options.out is not None:
        write(options.out, about, {"unit": "ms", "clock": "process_time", "samples": samples})


if __name__ == "__main__":
    main()
