"""The open-loop part: which rate each target still serves, what it adds at 70 % of what the gateway serves, and up to which
rate the gateway's streams begin soon.

`bench.py` calls it after the closed-loop parts, whose results are its first guesses.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gateway.points import Length, Limits, point
from benchmarks.gateway.saturation import NEAR, Bracket, Verdict, What, judge, of_soon
from benchmarks.gateway.summary import SHARE_OF_SATURATION
from benchmarks.gateway.targets import GATEWAY, Target

MOST_PROBES = 7
"""Of one search; with a bracket a guess wide it takes four or five."""

FIRST_GUESS = 0.7
"""Of the closed-loop rate: a request is dearer when it comes alone."""

RECOVERY_S = 3.0
"""After a probe with failures: a gateway whose breaker they opened would refuse the next one, too."""

Keep = Callable[..., Any]
"""`keep(result, **about)` appends a point to the part."""


@dataclass(frozen=True)
class OpenPlan:
    connections: int
    streams: int
    events_a_stream: int
    rounds: int
    probe: Length
    stream_probe: Length
    unary: Length
    stream: Length
    soon: Length
    limits: Limits
    again: int
    """Probes of the rate that a search found."""


class OpenLoop:
    def __init__(
        self,
        plan: OpenPlan,
        direct: Target,
        measured: list[Target],
        opened: Callable[[Length, Target], Length],
        keep: Keep,
    ) -> None:
        """`opened` gives a length a warm-up in which the target can open all streams."""
        self._plan = plan
        self._direct = direct
        self._targets = measured
        self._opened = opened
        self._keep = keep

    def search(self, what: What, guesses: Mapping[str, float], known: Mapping[str, Bracket]) -> dict[str, float]:
        """By target, the highest rate that was served; without those that served none."""
        found = {}
        for each in self._targets:
            bracket = known.get(each.name, Bracket())
            for _ in range(MOST_PROBES):
                rate = bracket.next_rate(guesses[each.name])
                if rate is None:
                    break
                rate = round(rate, 1)
                bracket = bracket.narrowed(rate, self._served(what, each, rate))
            if bracket.served:
                found[each.name] = bracket.served
        return self._borne(what, found)

    def _borne(self, what: What, found: Mapping[str, float]) -> dict[str, float]:
        """Lowered to what is served at other times, too; without those that then serve none."""
        rates, served = dict(found), dict.fromkeys(found, True)
        for turn in range(self._plan.again + MOST_PROBES):
            for each in self._targets:
                name = each.name
                if name in rates and (turn < self._plan.again or not served[name]):
                    served[name] = self._served(what, each, rates[name])
                    if not served[name]:
                        rates[name] = round(rates[name] / NEAR, 1)
        return {name: rate for name, rate in rates.items() if served[name]}

    def _served(self, what: What, target: Target, rate: float) -> bool:
        probe = self._plan.probe if what is What.UNARY else self._plan.stream_probe
        result = self._point(what, target, probe, rate)
        verdict = judge(what, result, rate)
        kept = {name: value for name, value in result.items() if name not in ("first_event", "gap")}
        self._keep(kept, kind="probe", what=what.value, rate=rate, verdict=verdict.value)
        if verdict is Verdict.FAILED:
            time.sleep(RECOVERY_S)
        # A load generator that is too busy cannot say that more would be served.
        return verdict is Verdict.SERVED and not result["void"]

    def latencies(self, what: What, saturation: Mapping[str, float]) -> None:
        """At 70 % of what the gateway serves; of a target that does not serve as much, at 70 % of its own. Each rate goes
        straight to the upstream once a round."""
        plan = self._plan
        length = plan.unary if what is What.UNARY else plan.stream
        rates = rates_of(saturation)
        for _ in range(plan.rounds):
            for rate in dict.fromkeys(rates.values()):
                self._keep(self._point(what, self._direct, length, rate), kind="latency", what=what.value, rate=rate)
                for each in self._targets:
                    if rates.get(each.name) == rate:
                        result = self._point(what, each, length, rate)
                        self._keep(result, kind="latency", what=what.value, rate=rate)

    def spread(self, served: float) -> None:
        """What the gateway adds at 70 % of the rate it serves when streams begin anywhere within their interval, so that
        their events do not fall due together (load.c)."""
        rate = round(SHARE_OF_SATURATION * served, 1)
        for _ in range(self._plan.rounds):
            for each in (self._direct, *(each for each in self._targets if each.name == GATEWAY)):
                result = self._point(What.STREAMS, each, self._plan.stream, rate, spread=1)
                self._keep(result, kind="spread", what=What.STREAMS.value, rate=rate)

    def soon(self, served: float) -> None:
        """Where this gateway adds at most SOON_MS to the first event at p99. `served` is the rate it serves; each probe is
        a pair, the same rate straight to the upstream first."""
        gateway = next((each for each in self._targets if each.name == GATEWAY), None)
        if gateway is None:
            return
        pairs: list[tuple[Any, Any]] = []
        for _ in range(MOST_PROBES):
            rate = of_soon(pairs).next_rate(SHARE_OF_SATURATION * served)
            if rate is None:
                return
            rate = round(rate, 1)
            about = {"kind": "soon", "what": What.STREAMS.value, "rate": rate}
            straight, through = (
                self._point(What.STREAMS, each, self._plan.soon, rate) | about for each in (self._direct, gateway)
            )
            for result in (straight, through):
                self._keep(result)
            pairs.append((through, straight))

    def _point(self, what: What, target: Target, length: Length, rate: float, spread: int = 0) -> dict[str, Any]:
        plan = self._plan
        if what is What.UNARY:
            return point("open", target, plan.connections, length, plan.limits, rate)
        length = self._opened(length, target)
        return point("streams", target, plan.streams, length, plan.limits, rate, plan.events_a_stream, spread)


def rates_of(saturation: Mapping[str, float]) -> dict[str, float]:
    """By target: where its latency is taken. Without a gateway each has its own."""
    common = SHARE_OF_SATURATION * saturation.get(GATEWAY, 0.0)
    return {
        name: round(common if common and own >= common else SHARE_OF_SATURATION * own, 1)
        for name, own in saturation.items()
    }
