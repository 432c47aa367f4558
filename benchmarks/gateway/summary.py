"""From the points to the numbers that documents quote: pure, so that a test can do it again.

Only points that are not void count. Added latency is a percentile through the target less the same percentile straight to
the upstream at the same rate (a difference of two percentiles, not a percentile of differences).
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.gateway.histogram import Histogram, added, percentile_ms, unpacked
from benchmarks.gateway.saturation import What, after, of_search, of_soon

BUSY_LIMIT = 0.85
"""Of the load's core: beyond it the load generator measures itself."""

SHARE_OF_SATURATION = 0.7
MIB = 2**20
DIRECT, RELAY, LITELLM = "direct", "relay", "litellm"
Point = dict[str, Any]
Number = float | int | None
Points = Mapping[str, Sequence[Point]]


def summarise(points: Points) -> dict[str, Any]:
    """By target, in the order of the memory part; `ratios` to the bare relay and to LiteLLM; `void_points`."""
    names = [point["target"] for point in points["memory"]]
    targets = {name: _target(name, points) for name in names}
    every = [point for part in ("unary", "search", "streams", "open") for point in points.get(part, ())]
    return {
        "targets": targets,
        "ratios": {
            other: {name: _ratios(targets[name], targets[other]) for name in names if name != other}
            for other in (RELAY, LITELLM)
            if other in targets
        },
        **({"open": _open(names, points)} if points.get("open") else {}),
        "points": len(every),
        "void_points": sum(point["void"] for point in every),
        **_laps(every),
        "load_core_busy_most": max((point["cores"][1] for point in every if not point["void"]), default=0.0),
    }


def _laps(every: Sequence[Point]) -> dict[str, Any]:
    """The fastest, the median and the slowest look at the target's core; nothing of results from before there were any."""
    laps = sorted(lap for point in every for lap in point.get("laps_ms", ()))
    return {"laps_ms": {"least": laps[0], "median": median(laps), "most": laps[-1]}} if laps else {}


def _target(name: str, points: Points) -> dict[str, Number]:
    memory = next(point for point in points["memory"] if point["target"] == name)
    unary = [point for point in points["unary"] if not point["void"]]
    search = [point for point in points["search"] if point["target"] == name]
    streams = [point for point in points["streams"] if not point["void"]]
    saturated = [point for point in unary if point["kind"] == "saturation" and point["target"] == name]
    mine = [point for point in unary if point.get("at") == name and point["target"] == name]
    bare = [point for point in unary if point.get("at") == name and point["target"] == DIRECT]
    my_streams = [point for point in streams if point["at"] == name and point["target"] == name]
    bare_streams = [point for point in streams if point["at"] == name and point["target"] == DIRECT]
    borne = [point for point in search if point["sustained"] and not point["void"]]
    highest = max(borne, key=lambda point: float(point["rate"]), default=None)
    latency, bare_latency = _merged(mine, "latency"), _merged(bare, "latency")
    first, bare_first = _merged(my_streams, "first_event"), _merged(bare_streams, "first_event")
    gap, bare_gap = _merged(my_streams, "gap"), _merged(bare_streams, "gap")
    delay, bare_delay = _merged(my_streams, "delay"), _merged(bare_streams, "delay")
    every = [*saturated, *mine, *search, *my_streams]
    return {
        "requests_per_s": _rounded(median(p["ok"] / p["seconds"] for p in saturated) if saturated else None, 1),
        "cpu_ms_per_request": _rounded(_ratio(1000 * _sum(saturated, "cpu_s"), _sum(saturated, "ok")), 3),
        "latency_at_requests_per_s": mine[0]["rate"] if mine else None,
        "latency_samples": sum(latency.values()),
        "latency_p50_ms": _percentile(latency, 0.5),
        "latency_p99_ms": _percentile(latency, 0.99),
        "added_p50_ms": _added(latency, bare_latency, 0.5),
        "added_p99_ms": _added(latency, bare_latency, 0.99),
        "events_per_s": highest["rate"] if highest else None,
        "events_bounded_by_load": any(p["void"] for p in search if p["rate"] > (highest["rate"] if highest else 0)),
        "events_per_cpu_s": _rounded(_ratio(_sum(my_streams, "events"), _sum(my_streams, "cpu_s")), 0),
        "streams_at_events_per_s": my_streams[0]["rate"] if my_streams else None,
        "first_event_samples": sum(first.values()),
        "added_ttft_p50_ms": _added(first, bare_first, 0.5),
        "added_ttft_p99_ms": _added(first, bare_first, 0.99),
        "added_itl_p99_ms": _added(gap, bare_gap, 0.99),
        "added_delay_p50_ms": _added(delay, bare_delay, 0.5),
        "added_delay_p99_ms": _added(delay, bare_delay, 0.99),
        "idle_streams": memory["streams"],
        "idle_left_open": memory["left_open"],
        "idle_mib": _rounded(memory["during_bytes"] / MIB, 1),
        "idle_added_mib": _rounded((memory["during_bytes"] - memory["before_bytes"]) / MIB, 1),
        "failed": int(sum(p["failed"] + p["unanswered"] for p in every)),
    }


def _open(names: Sequence[str], points: Points) -> dict[str, dict[str, dict[str, Number]]]:
    """By target: what it serves in an open loop with its core not full, and what it adds at `*_at`."""
    found: dict[str, dict[str, dict[str, Number]]] = {}
    for name in names:
        search = [point for point in points["search"] if point["target"] == name]
        found[name] = {
            "unary": _open_unary(name, points["open"]),
            "streams": _open_streams(name, points["open"], search),
        }
    return found


def _open_unary(name: str, points: Sequence[Point]) -> dict[str, Number]:
    probes, mine, bare = _of(name, What.UNARY, points)
    latency, straight = _merged(mine, "latency"), _merged(bare, "latency")
    return {
        "requests_per_s": after(probes).served or None,
        "requests_at": mine[0]["rate"] if mine else None,
        "core_busy": _rounded(median(point["cores"][0] for point in mine) if mine else None, 2),
        "cpu_ms_per_request": _rounded(_ratio(1000 * _sum(mine, "cpu_s"), _sum(mine, "ok")), 3),
        "latency_samples": sum(latency.values()),
        "added_p50_ms": _added(latency, straight, 0.5),
        "added_p99_ms": _added(latency, straight, 0.99),
    }


def _open_streams(name: str, points: Sequence[Point], search: Sequence[Point]) -> dict[str, Number]:
    probes, mine, bare = _of(name, What.STREAMS, points)
    soon = [point for point in points if point["kind"] == "soon" and point["target"] == name]
    soon_straight = [point for point in points if point["kind"] == "soon" and point["target"] == DIRECT]
    first, straight = _merged(mine, "first_event"), _merged(bare, "first_event")
    gap, straight_gap = _merged(mine, "gap"), _merged(bare, "gap")
    return {
        "events_per_s": after(probes, of_search(search)).served or None,
        "events_at": mine[0]["rate"] if mine else None,
        "streams_core_busy": _rounded(median(point["cores"][0] for point in mine) if mine else None, 2),
        "first_event_samples": sum(first.values()),
        "added_ttft_p50_ms": _added(first, straight, 0.5),
        "added_ttft_p99_ms": _added(first, straight, 0.99),
        "added_itl_p99_ms": _added(gap, straight_gap, 0.99),
        # Only the gateway is asked, and only since there is this question.
        **_spread(name, points),
        **({"soon_events_per_s": of_soon(zip(soon, soon_straight, strict=True)).served or None} if soon else {}),
    }


def _spread(name: str, points: Sequence[Point]) -> dict[str, Number]:
    """At the same rate, of streams whose events do not fall due together."""
    every = [point for point in points if point["kind"] == "spread" and not point["void"]]
    mine = [point for point in every if point["target"] == name]
    if not mine:
        return {}
    bare = [point for point in every if point["target"] == DIRECT]
    first, gap = (_added(_merged(mine, field), _merged(bare, field), 0.99) for field in ("first_event", "gap"))
    return {"spread_events_at": mine[0]["rate"], "spread_added_ttft_p99_ms": first, "spread_added_itl_p99_ms": gap}


def _of(name: str, what: What, points: Sequence[Point]) -> tuple[list[Point], list[Point], list[Point]]:
    """Of one target: its probes, its latency points, and those straight to the upstream at the same rate."""
    own = [point for point in points if point["what"] == what and point["target"] == name]
    mine = [point for point in own if point["kind"] == "latency" and not point["void"]]
    rates = {point["rate"] for point in mine}
    straight = [point for point in points if point["what"] == what and point["target"] == DIRECT]
    bare = [point for point in straight if point["kind"] == "latency" and point["rate"] in rates]
    return (
        [point for point in own if point["kind"] == "probe"],
        mine,
        [point for point in bare if not point["void"]],
    )


def _ratios(mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float | None]:
    """More is better in the first two, less in the others."""
    return {
        field: _rounded(_ratio(mine[field], other[field]), 2)
        for field in ("requests_per_s", "events_per_s", "cpu_ms_per_request", "added_p50_ms", "added_p99_ms")
    }


def _sum(points: Iterable[Point], field: str) -> float:
    return float(sum(point[field] for point in points))


def _merged(points: Iterable[Point], field: str) -> Histogram:
    return added(unpacked(point[field]) for point in points if field in point)


def _percentile(histogram: Histogram, share: float) -> float | None:
    return _rounded(percentile_ms(histogram, share), 3) if histogram else None


def _added(through: Histogram, straight: Histogram, share: float) -> float | None:
    if not through or not straight:
        return None
    return _rounded(percentile_ms(through, share) - percentile_ms(straight, share), 3)


def _ratio(mine: float | None, other: float | None) -> float | None:
    return mine / other if mine is not None and other else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
