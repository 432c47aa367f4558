"""What a walk over the tier's paths under load (under_load.py) says, from its raw samples alone. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Any

from benchmarks.kv_tiers.fidelity import needle_of
from benchmarks.kv_tiers.l2_client import interval


class Way(StrEnum):
    """Where a prompt's KV came from, or should have."""

    COLD = "cold"
    OWN_CACHE = "own cache"
    L1 = "L1"
    L2 = "L2"
    EVICTED = "evicted"
    KILLED = "killed"
    RESTARTED = "restarted"
    EVICTED_BY_MEMORY = "evicted by memory"


Row = Mapping[str, Any]

BESIDE_L2 = "e"
"""The tenant whose prompts are computed one by one right after the same prompt came from L2."""


def summarise(samples: Mapping[str, Any]) -> dict[str, Any]:
    rows, load = samples["rows"], samples["load"]
    told = {
        "ways": {way: of_way([row for row in rows if row["path"] == way], rows) for way in Way},
        "load": of_load(load, samples["replaced"]),
        "hung": sum(each["hung"] for each in [*rows, *load]),
        "lookups": of_batches(samples["pages"], "lookup"),
        "loads": of_batches(samples["pages"], "load"),
        "engine": {
            "ends": engine_counts(samples["pages"], "vllm:prime_kv_loads_total", "end"),
            "server_losses": sum(engine_counts(samples["pages"], "vllm:prime_kv_server_losses_total", "").values()),
        },
    }
    differences = against_computing(rows)
    return told | {"l2_minus_computed": differences} if differences else told


def against_computing(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Seconds to the whole answer: from L2 behind the gate, less computed right after, prompt by prompt. None without pairs."""
    computed = {row["name"]: row for row in rows if row["path"] == Way.COLD and row["tenant"] == BESIDE_L2}
    pairs = [(row, computed[row["name"]]) for row in rows if row["path"] == Way.L2 and row["name"] in computed]
    differences = [one["seconds"] - other["seconds"] for one, other in pairs if one["status"] == other["status"] == 200]
    if not differences:
        return None
    low, high = interval(differences)
    return {"pairs": len(differences), "median_s": statistics.median(differences), "interval_95_s": [low, high]}


def of_way(rows: Sequence[Row], all_rows: Sequence[Row]) -> dict[str, Any]:
    """`equal` of `pairs`: every answer beside every cold answer of the same prompt; a cold one beside the other cold ones."""
    answered = [row for row in rows if row["status"] == 200]
    cold: dict[str, list[Row]] = {}
    for row in all_rows:
        if row["path"] == Way.COLD and row["status"] == 200:
            cold.setdefault(row["name"], []).append(row)
    if rows and rows[0]["path"] == Way.COLD:
        pairs = [pair for copies in cold.values() for pair in combinations(copies, 2)]
    else:
        pairs = [(row, other) for row in answered for other in cold.get(row["name"], ())]
    found = [row for row in answered if needle_of(row["name"]) in row["text"]]
    moments = [row["moment"] for row in rows if "moment" in row]
    told = {
        "asked": len(rows),
        "answered": len(answered),
        "cached_tokens": dict(sorted(Counter(str(row["cached_tokens"]) for row in answered).items())),
        "chunks_from_l2": sum(row["from_l2"] for row in rows),
        "pairs": len(pairs),
        "equal": sum(one["text"] == other["text"] for one, other in pairs),
        "needles": len(found),
        "slowest_s": max((row["seconds"] for row in rows), default=None),
        "median_s": statistics.median(row["seconds"] for row in rows) if rows else None,
    }
    if moments:
        told["caught"] = sum(bool(moment["touched"]) and any(moment["lost"].values()) for moment in moments)
        told["lost"] = dict(sum((Counter(moment["lost"]) for moment in moments), Counter()))
    return told


def of_load(load: Sequence[Row], replaced: Sequence[Row]) -> dict[str, Any]:
    """`refused_while_served`: not answered, though no process was being replaced from the question to its end."""

    def away(each: Row) -> bool:
        return any(
            each["at_s"] <= one["at_s"] + one["seconds"] and one["at_s"] <= each["at_s"] + each["seconds"]
            for one in replaced
        )

    seconds = sorted(each["seconds"] for each in load if each["status"] == 200)
    return {
        "asked": len(load),
        "statuses": dict(Counter(str(each["status"]) for each in load)),
        "refused_while_served": sum(each["status"] != 200 and not away(each) for each in load),
        "median_s": statistics.median(seconds),
        "slowest_s": max(each["seconds"] for each in load),
    }


def of_batches(pages: Sequence[Row], operation: str) -> dict[str, Any]:
    """The L2 client's batches of one operation, over all lives of LMCache's server: how many, the slowest, how many beyond
    each edge, and its keys by outcome."""
    samples = [each for page in pages for each in page["page"] if each["labels"].get("operation") == operation]

    def total(name: str, label: str) -> dict[str, float]:
        return counted((each["labels"][label], each["value"]) for each in samples if each["name"] == name)

    up_to = total("prime_kv_l2_batch_seconds_bucket", "le")
    batches = up_to.get("+Inf", 0.0)
    slowest = [each["value"] for each in samples if each["name"] == "prime_kv_l2_slowest_batch_seconds"]
    return {
        "batches": batches,
        "slowest_s": max(slowest, default=0.0),
        "beyond": {edge: batches - count for edge, count in up_to.items() if edge != "+Inf" and count < batches},
        "keys": total("prime_kv_l2_keys_total", "outcome"),
    }


def engine_counts(pages: Sequence[Row], name: str, label: str) -> dict[str, float]:
    """Over all lives of the prefill worker."""
    samples = [each for page in pages for each in page["page"] if each["name"] == name]
    return counted((each["labels"].get(label, ""), each["value"]) for each in samples)


def counted(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for key, value in pairs:
        totals[key] = totals.get(key, 0.0) + value
    return totals
