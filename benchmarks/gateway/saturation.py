"""The highest open-loop rate that a target still serves, and the one at which its streams still begin soon: what a probe
says, and which rate is tried next. Pure.

A rate is served when all of this holds for five seconds of it: nothing failed; what came back is what was asked for, less
what lies at the edges of the measured time; no backlog grew; answers and streamed events were on time; and the target's core
had idle time left. Without the last a target that takes many requests in one turn of its loop would look as if it had room
at a rate that leaves it none.

On a shared machine a core's speed halves and doubles within seconds. So the rate that a search found is asked for again
(AGAIN), the targets taking turns, and lowered each time that it is not served: what counts is what is borne in slow seconds,
too.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from benchmarks.gateway.histogram import percentile_ms, unpacked

OTHERS_LIMIT = 0.15
"""Of the target's core: beyond it the machine was not the target's."""

FULL_CORE = 0.97
"""Of the target's core, strangers included up to their limit: from here on it has no idle time left but what a clock tick
hides."""

LOSS = 0.03
"""Of what was offered, this much may fall out of the measured time at its edges."""

BACKLOG_SHARE, BACKLOG_LEAST = 0.02, 4
"""So many more open requests at the end than at the beginning (a share of those sent, and a few) are chance."""

LATE_MS = 50.0
"""99 % of streamed events come within this of the time at which they were due, and 99 % of unary answers within this of the
time at which their request was."""

NEAR = 1.1
"""Served and not served are at most this factor apart when the search ends; the lower one is taken. A rate that is not
served when it is asked for again is lowered by it."""

AGAIN = 5
"""So many probes of the rate that was found, a turn of all targets apart; after the last of them until one is served."""

STEP = 1.4
"""To the next rate while only one side is known."""

SOON_MS = 5.0
"""Added to the time of the first event at p99: the aim. Beyond it a stream does not begin soon."""


class What(StrEnum):
    UNARY = "unary"
    STREAMS = "streams"


class Verdict(StrEnum):
    SERVED = "served"
    FAILED = "failed"
    BEHIND = "behind"
    """Fewer answers or events than were asked for."""
    BACKLOG = "backlog"
    LATE = "late"
    """Answers or events."""
    FULL = "full"
    """The core."""


def judge(what: What, result: Mapping[str, Any], offered: float) -> Verdict:
    """Of one probe: the load generator's counts and `cores`; `offered` in requests or events a second."""
    if result["failed"] or result["unanswered"]:
        return Verdict.FAILED
    wanted = (1 - LOSS) * offered * result["seconds"]
    if (result["ok"] if what is What.UNARY else result["events"]) < wanted:
        return Verdict.BEHIND
    if what is What.UNARY:
        grown = result["open_at_end"] - result["open_at_start"]
        if grown > BACKLOG_LEAST + BACKLOG_SHARE * result["sent"]:
            return Verdict.BACKLOG
    if percentile_ms(unpacked(result["latency" if what is What.UNARY else "delay"]), 0.99) > LATE_MS:
        return Verdict.LATE
    return Verdict.FULL if busy(result) >= FULL_CORE else Verdict.SERVED


def busy(result: Mapping[str, Any]) -> float:
    """Of the target's core. What strangers had beyond their limit is not counted: such a point is void, but for a trial
    run on a crowded machine, whose searches must end all the same."""
    return float(min(result["cores"][0], result["cpu_s"] / result["seconds"] + OTHERS_LIMIT))


class Bracket(NamedTuple):
    """What is known: `served` is the highest rate that was, `beyond` the lowest that was not."""

    served: float = 0.0
    beyond: float = math.inf

    def narrowed(self, rate: float, served: bool) -> "Bracket":
        """A probe that contradicts an earlier one lowers the bracket: the search never ends above what was not served."""
        if served:
            return self if rate >= self.beyond else self._replace(served=max(self.served, rate))
        return Bracket(self.served if self.served < rate else 0.0, min(self.beyond, rate))

    def next_rate(self, guess: float) -> float | None:
        """To be probed; None when the two sides are near each other. `guess` when nothing is known."""
        if self.served and self.beyond <= self.served * NEAR:
            return None
        if self.served and math.isfinite(self.beyond):
            return math.sqrt(self.served * self.beyond)
        if self.served:
            return self.served * STEP
        return guess if math.isinf(self.beyond) else self.beyond / STEP


def after(probes: Iterable[Mapping[str, Any]], known: Bracket = Bracket()) -> Bracket:  # noqa: B008 - immutable
    """What these probes say beyond what is `known`. A void one says that no more was seen to be served."""
    for probe in probes:
        known = known.narrowed(float(probe["rate"]), probe["verdict"] == Verdict.SERVED and not probe["void"])
    return known


def of_search(points: Iterable[Mapping[str, Any]]) -> Bracket:
    """The search for the highest rate of events that is borne at all (`sustained`) says this much of the one that leaves
    the core time."""
    return after(
        {**point, "verdict": Verdict.SERVED if point["sustained"] and busy(point) < FULL_CORE else Verdict.FULL}
        for point in points
    )


def added_ttft_ms(through: Mapping[str, Any], straight: Mapping[str, Any]) -> float | None:
    """At p99, of a point and of one straight to the upstream at its rate. None where one is void or has no first event."""
    if through["void"] or straight["void"] or "first_event" not in through or "first_event" not in straight:
        return None
    mine, other = (percentile_ms(unpacked(point["first_event"]), 0.99) for point in (through, straight))
    return mine - other


def of_soon(pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Bracket:
    """Up to which rate streams begin soon, by pairs of a point and one straight to the upstream."""
    bracket = Bracket()
    for through, straight in pairs:
        added_ms = added_ttft_ms(through, straight)
        bracket = bracket.narrowed(float(through["rate"]), added_ms is not None and added_ms <= SOON_MS)
    return bracket
