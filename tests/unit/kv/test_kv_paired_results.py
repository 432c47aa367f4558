"""What the paired measurement says follows from its samples; the arms met the same prompts, in no fixed order."""

import json
from collections import Counter
from typing import Any

import pytest

from benchmarks.kv_tiers.paired_summary import LEARNING, paired, summarise
from benchmarks.kv_tiers.report import RESULTS, paired_verdict
from benchmarks.provenance import ROOT

RUNS = sorted(path.parent.name for path in RESULTS.glob("*-kv-paired/result.json"))


def result(name: str) -> Any:
    return json.loads((RESULTS / name / "result.json").read_text())


def row(prompt: int, arm: str, seconds: float, multiple: float = 1.0) -> dict[str, Any]:
    return {
        "multiple": multiple,
        "prompt": prompt,
        "arm": arm,
        "seconds": seconds,
        "cached_tokens": 1024 * (arm != "compute"),
    }


def test_differences_are_taken_prompt_by_prompt_and_what_the_gate_still_learnt_is_told_apart() -> None:
    rows = [
        row(prompt, arm, seconds)
        for prompt in range(LEARNING + 4)
        for arm, seconds in (
            ("gate", 9.0 if prompt < LEARNING else 1.0),
            ("always", 1.5),
            ("compute", 2.0 + prompt / 10),
        )
    ]
    (told,) = summarise(rows)
    assert told["prompts"] == LEARNING + 4
    assert told["median_s"]["always"] == 1.5
    assert told["loaded"] == {"always": LEARNING + 4, "compute": 0, "gate": LEARNING + 4}
    settled = told["gate_minus_compute"]["settled"]
    assert settled["pairs"] == 4
    assert settled["median_s"] == pytest.approx(-(1.0 + (LEARNING + 1.5) / 10))
    assert settled["mean_95_s"][1] < 0 < told["gate_minus_compute"]["all"]["mean_s"]
    assert told["gate_minus_always"]["settled"]["mean_95_s"] == [-0.5, -0.5]
    assert paired([]) is None


def test_a_bandwidth_is_called_faster_or_slower_only_with_its_whole_interval() -> None:
    def block(multiple: float, low: float, high: float) -> dict[str, Any]:
        pair = {"all": {"mean_95_s": [low, high]}}
        return {"multiple": multiple, "gate_minus_compute": pair, "gate_minus_always": pair}

    told = paired_verdict([block(10, -2.0, -1.0), block(3, -2.0, -0.1), block(1, -0.1, 0.1), block(0.2, 0.1, 0.4)])
    assert told.startswith("Against computing the gate is shown faster at 10 and 3 x B* and slower at 0.2 x B*.")


@pytest.mark.parametrize("name", RUNS)
def test_the_summary_follows_from_the_samples(name: str) -> None:
    told = result(name)
    assert told["summary"] == json.loads(json.dumps(summarise(told["rows"])))


@pytest.mark.parametrize("name", RUNS)
def test_every_prompt_was_asked_once_of_each_arm_and_only_the_tier_could_hold_it(name: str) -> None:
    rows = result(name)["rows"]
    assert set(Counter((row["prompt"], row["arm"]) for row in rows).values()) == {1}
    assert {row["cached_tokens"] for row in rows if row["arm"] == "compute"} == {0}
    assert {row["cached_tokens"] for row in rows if row["arm"] == "always"} == {1024}
    orders = Counter(tuple(row["arm"] for row in rows[at : at + 3]) for at in range(0, len(rows), 3))
    assert len(orders) > 3


@pytest.mark.parametrize("name", RUNS)
def test_the_gate_takes_no_slow_tier_once_it_has_met_it_and_the_fast_one_in_the_end(name: str) -> None:
    told = {row["multiple"]: row for row in result(name)["summary"]}
    slow, fast = told[min(told)], told[max(told)]
    assert slow["multiple"] < 1 < fast["multiple"]
    assert slow["gate_minus_always"]["all"]["mean_95_s"][1] < 0
    assert fast["gate_minus_compute"]["settled"]["mean_95_s"][1] < 0


def test_what_the_page_says_of_the_gates_losses_is_in_the_newest_run() -> None:
    page = " ".join((ROOT / "docs/kv.md").read_text().split())
    rows = result("2026-11-30b-kv-paired")["rows"]
    seconds = {(row["prompt"], row["arm"]): row["seconds"] for row in rows}
    said: dict[tuple[float, bool], list[float]] = {}
    probes, seen = 0, Counter[float]()
    for row in (each for each in rows if each["arm"] == "gate"):
        probed = row["page"].get("gate_decisions/take_part/probe", 0) > probes
        probes = row["page"].get("gate_decisions/take_part/probe", 0)
        seen[row["multiple"]] += 1
        if seen[row["multiple"]] > LEARNING and row["cached_tokens"] == 0:
            loss = row["seconds"] - seconds[row["prompt"], "compute"]
            said.setdefault((row["multiple"], probed), []).append(loss)
    told = {key: (len(losses), f"{sum(losses) / len(losses):.2f}") for key, losses in said.items()}
    assert told[0.5, False] == (6, "0.26")
    assert told[1.0, False] == (6, "0.13")
    assert told[0.2, False] == (4, "0.01")
    assert told[0.2, True] == (5, "0.28")
    assert told[0.5, True] == (3, "0.40")
    assert "the six settled ones that were neither looked up nor probed took 0.26 s longer" in page
    assert "at 1 x B* six took 0.13 s and at 0.2 x B* four 0.01 s" in page
    assert "Five at 0.2 x B* cost 0.28 s and three at 0.5 x B* 0.40 s" in page
