"""Is the gate ever worse than computing everything? The replay with the tier throttled from 0.1 to 10 times B*.

Virtual time; see replay.py for the model. Each row is one bandwidth and one load, with every rule on the same trace;
`changing` rows vary the bandwidth during the run, `wrong start` rows give the gate a start-up measurement that is off.

    python -m benchmarks.kv_tiers.replay_throttle --out benchmarks/results/<date>-kv-replay/result.json
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kv_tiers.replay import (
    BYTES_PER_TOKEN,
    PREFILL_TOKENS_PER_S,
    Arrival,
    Outcome,
    Replay,
    Rule,
    factors,
    make_trace,
)
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.capacity import break_even_bytes_per_s

SERVICE_TIMES = ROOT / "benchmarks/results/2026-11-29-kv-service-times/result.json"
BREAK_EVEN = break_even_bytes_per_s(BYTES_PER_TOKEN, PREFILL_TOKENS_PER_S)
THROTTLES = (0.1, 0.2, 0.35, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.2, 10.0)
"""0.35 and 4.2 are the article's one store and eight stores."""

RATES_PER_S = (0.4, 1.2, 2.0)
"""Prompts a second: an engine at 15 %, 45 % (the article's replay) and 75 % when it computes everything."""

ALLOWED = 1.05


@dataclass(frozen=True)
class Case:
    """`bandwidth` in multiples of B* at a virtual time; `known`: what the start-up check had measured."""

    name: str
    bandwidth: Callable[[float], float]
    known: float


CONSTANT = [Case(f"{times:g} x B*", lambda _now, times=times: times, times) for times in THROTTLES]  # type: ignore[misc]
WRONG_START = [
    Case("0.1 x B*, start-up said 10", lambda _now: 0.1, 10.0),
    Case("10 x B*, start-up said 0.1", lambda _now: 10.0, 0.1),
    Case("dead, start-up said 10", lambda _now: 1e-9, 10.0),
]
CHANGING = [
    Case("10, after 200 s 0.1", lambda now: 10.0 if now < 200.0 else 0.1, 10.0),
    Case("0.1, after 200 s 10", lambda now: 0.1 if now < 200.0 else 10.0, 0.1),
    Case("10 and 0.1, every 150 s", lambda now: 10.0 if now % 300.0 < 150.0 else 0.1, 10.0),
    Case("10 and 0.1, every 30 s", lambda now: 10.0 if now % 60.0 < 30.0 else 0.1, 10.0),
    Case("10 and 0.1, every 5 s", lambda now: 10.0 if now % 10.0 < 5.0 else 0.1, 10.0),
    Case("0.1 to 10, sine of 126 s", lambda now: 10.0 ** math.sin(now / 20.0), 1.0),
]


def recorded_factors() -> tuple[list[float], list[float]]:
    """(prefill, load) service times as multiples of the median at their size and concurrency."""
    recorded = json.loads(SERVICE_TIMES.read_text())
    prefill = [each for row in recorded["prefills"] for each in factors(row["seconds"])]
    load = [each for row in recorded["loads"] for each in factors(row["seconds"])]
    return prefill, load


def replay(trace: Sequence[Arrival], case: Case, rule: Rule) -> Outcome:
    return Replay(trace, rule, lambda now: case.bandwidth(now) * BREAK_EVEN, case.known * BREAK_EVEN).run()


def compare(cases: Sequence[Case], requests: int, per_s: float, seed: int) -> list[dict[str, Any]]:
    """One row a case: p50 and p99 of TTFT under every rule, and the gate against no tier at all."""
    prefill, load = recorded_factors()
    trace = make_trace(requests, per_s, prefill, load, seed)
    without = replay(trace, cases[0], Rule.NONE)
    rows = []
    for case in cases:
        outcomes = {Rule.NONE: without}
        for rule in (Rule.SYNC, Rule.ASYNC, Rule.GATE):
            outcomes[rule] = replay(trace, case, rule)
        gate = outcomes[Rule.GATE]
        rows.append(
            {
                "case": case.name,
                "requests_per_s": per_s,
                "seed": seed,
                "requests": requests,
                "ttft_p50_s": {rule: outcome.percentile(0.50) for rule, outcome in outcomes.items()},
                "ttft_p99_s": {rule: outcome.percentile(0.99) for rule, outcome in outcomes.items()},
                "gate_p99_over_no_tier": gate.percentile(0.99) / without.percentile(0.99),
                "gate_p50_over_no_tier": gate.percentile(0.50) / without.percentile(0.50),
                "share_of_hit_tokens_loaded": gate.loaded_tokens / gate.hit_tokens,
                "decisions": gate.decisions,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    record = provenance(
        [],
        [
            *(ROOT / "prime_inference/kv/gate").glob("*.py"),
            *(
                ROOT / "benchmarks/kv_tiers" / name
                for name in ("replay.py", "replay_throttle.py", "record_service_times.py")
            ),
            SERVICE_TIMES,
        ],
    )
    rows: list[dict[str, Any]] = []
    for per_s in RATES_PER_S:
        for seed in arguments.seeds:
            for row in compare([*CONSTANT, *WRONG_START, *CHANGING], arguments.requests, per_s, seed):
                rows.append(row)
                p99 = row["ttft_p99_s"]
                print(
                    f"{per_s} req/s seed {seed}  {row['case']:28} p99 s: "
                    + "  ".join(f"{rule} {p99[rule]:8.3f}" for rule in Rule)
                    + f"  gate/no tier p99 {row['gate_p99_over_no_tier']:.3f} p50 {row['gate_p50_over_no_tier']:.3f}"
                    + ("  WORSE" if row["gate_p99_over_no_tier"] > ALLOWED else ""),
                    flush=True,
                )
    write(arguments.out, {"provenance": record, "virtual_time": True, "allowed": ALLOWED, "rows": rows})


if __name__ == "__main__":
    main()
