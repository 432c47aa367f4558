"""What the walk over the tier's paths under load says follows from its samples, and nothing hung."""

import json
import math
from typing import Any

import pytest

from benchmarks.kv_tiers.fidelity import CONTEXT_TOKENS, needle_of
from benchmarks.kv_tiers.report import RESULTS
from benchmarks.kv_tiers.under_load_summary import BESIDE_L2, Way, against_computing, summarise
from prime_inference.kv.capacity import CHUNK_TOKENS

RUNS = sorted(path.parent.name for path in RESULTS.glob("*-kv-under-load/result.json"))
LONGEST = sorted(path.parent.name for path in RESULTS.glob("*-kv-needles-longest/result.json"))


def result(name: str) -> Any:
    return json.loads((RESULTS / name / "result.json").read_text())


def row(path: Way, name: str, text: str, **more: Any) -> dict[str, Any]:
    told = {"path": path, "name": name, "tenant": "a", "status": 200, "hung": False, "text": text, "cached_tokens": 0}
    return told | {"from_l2": 0, "seconds": 1.0} | more


def asked(at_s: float, status: int) -> dict[str, Any]:
    return {"at_s": at_s, "status": status, "hung": False, "seconds": 1.0}


def page(*samples: tuple[str, dict[str, str], float]) -> dict[str, Any]:
    return {
        "process": "lmcache",
        "page": [{"name": n, "labels": labels, "value": value} for n, labels, value in samples],
    }


def test_each_answer_is_held_against_every_cold_one_of_its_prompt_and_cold_ones_against_each_other() -> None:
    rows = [
        row(Way.COLD, "Anna", " amber. Ten"),
        row(Way.COLD, "Anna", " amber. Ten"),
        row(Way.COLD, "Anna", " amber. One"),
        row(Way.L2, "Anna", " amber. One", cached_tokens=1024, from_l2=4, seconds=3.0),
        row(Way.EVICTED, "Anna", "", status=None, hung=True, cached_tokens=None, moment={"touched": 1, "lost": {}}),
    ]
    load = [asked(1.0, 200), asked(5.0, 503), asked(9.0, 503), asked(13.5, 503)]
    replaced = [{"processes": ["lmcache"], "at_s": 5.5, "seconds": 4.0}]
    told = summarise({"rows": rows, "load": load, "pages": [], "replaced": replaced})
    assert (told["ways"]["cold"]["equal"], told["ways"]["cold"]["pairs"]) == (1, 3)
    assert (told["ways"]["L2"]["equal"], told["ways"]["L2"]["pairs"]) == (1, 3)
    assert told["ways"]["L2"]["needles"] == 1
    assert told["ways"]["evicted"]["answered"] == told["ways"]["evicted"]["caught"] == 0
    assert told["hung"] == 1
    assert told["load"]["statuses"] == {"200": 1, "503": 3}
    assert told["load"]["refused_while_served"] == 1


def test_a_prompt_from_l2_is_held_against_the_same_one_computed_right_after() -> None:
    rows = [row(Way.COLD, "Anna", " amber", seconds=9.0)]
    assert against_computing(rows) is None
    for name, loaded, computed in (("Anna", 2.0, 5.0), ("Boris", 4.0, 3.0), ("Clara", 2.0, 4.0)):
        rows += [row(Way.L2, name, "", seconds=loaded), row(Way.COLD, name, "", seconds=computed, tenant=BESIDE_L2)]
    told = against_computing(rows)
    assert told is not None
    assert (told["pairs"], told["median_s"]) == (3, -2.0)
    assert told["interval_95_s"][0] <= -2.0 <= told["interval_95_s"][1]


def test_batches_are_added_over_the_lives_of_the_server_and_the_slowest_is_of_all() -> None:
    def life(count: float, within: float, slowest: float) -> dict[str, Any]:
        return page(
            ("prime_kv_l2_batch_seconds_bucket", {"operation": "lookup", "le": "0.5"}, within),
            ("prime_kv_l2_batch_seconds_bucket", {"operation": "lookup", "le": "+Inf"}, count),
            ("prime_kv_l2_slowest_batch_seconds", {"operation": "lookup"}, slowest),
            ("prime_kv_l2_keys_total", {"operation": "lookup", "outcome": "ok", "shard": "a"}, 3),
            ("prime_kv_l2_keys_total", {"operation": "lookup", "outcome": "ok", "shard": "b"}, 1),
        )

    pages = [life(10, 9, 0.52), life(5, 5, 0.1)]
    told = summarise({"rows": [], "load": [asked(0.0, 200)], "pages": pages, "replaced": []})["lookups"]
    assert told == {"batches": 15, "slowest_s": 0.52, "beyond": {"0.5": 1}, "keys": {"ok": 8}}


@pytest.mark.parametrize("name", [*RUNS, *LONGEST])
def test_the_summary_follows_from_the_samples(name: str) -> None:
    told = result(name)
    assert told["summary"] == json.loads(json.dumps(summarise(told["samples"])))


def least_equal(cold: dict[str, Any], answers: int) -> float:
    """The share of pairs with one text that so many answers have in 99 of 100 runs if they are as the cold ones: all, where
    cold ones were all alike."""
    share: float = cold["equal"] / cold["pairs"]
    return share - 2.33 * math.sqrt(share * (1 - share) / answers)


@pytest.mark.parametrize("name", RUNS)
def test_nothing_hung_and_every_path_was_met_by_all_its_prompts(name: str) -> None:
    told = result(name)
    assert told["settings"]["shards"] == 8
    assert told["summary"]["hung"] == 0
    for way in Way:
        asked = told["summary"]["ways"][way]
        assert asked["answered"] == asked["asked"] > 0, way
        assert asked["needles"] == asked["answered"], way
        assert asked["equal"] / asked["pairs"] >= least_equal(told["summary"]["ways"][Way.COLD], asked["answered"]), way
    for way in (Way.EVICTED, Way.KILLED):
        assert told["summary"]["ways"][way]["caught"] == told["summary"]["ways"][way]["asked"], way
    assert all(row["from_l2"] > 0 for row in told["samples"]["rows"] if row["path"] == Way.L2)


@pytest.mark.parametrize("name", LONGEST)
def test_at_the_longest_length_every_needle_that_cold_finds_is_found_on_each_path(name: str) -> None:
    rows = result(name)["samples"]["rows"]
    found = {row["name"] for row in rows if row["path"] == Way.COLD and needle_of(row["name"]) in row["text"]}
    assert len(found) >= 7
    longest = (CONTEXT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS
    for row in rows:
        assert row["status"] == 200
        assert row["prompt_tokens"] > longest
        assert row["name"] not in found or needle_of(row["name"]) in row["text"], (row["path"], row["name"])
    for way in (Way.L1, Way.L2):
        taken = [row for row in rows if row["path"] == way]
        assert len(taken) >= 7
        # No prompt that fits the context can have another chunk cached.
        assert sum(row["cached_tokens"] == longest for row in taken) >= 7
        assert all((row["from_l2"] > 0) == (way is Way.L2) for row in taken)
    for way in (Way.EVICTED, Way.KILLED):
        assert result(name)["summary"]["ways"][way]["caught"] > 0


@pytest.mark.parametrize("name", [*RUNS, *LONGEST])
def test_no_lookup_of_the_shards_ended_a_tenth_beyond_its_deadline(name: str) -> None:
    told = result(name)
    for kind, deadline in (("lookups", "lookup_deadline_s"), ("loads", "load_deadline_s")):
        assert told["summary"][kind]["batches"] > 0
        assert told["summary"][kind]["slowest_s"] < 1.1 * told["settings"][deadline]
