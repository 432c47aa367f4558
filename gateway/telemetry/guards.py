"""What the guards know, as metrics: read when they are scraped, so that the request path pays nothing."""

import asyncio
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.admission import Outcome
from gateway.breaker import State
from gateway.guard.guards import Guards
from gateway.site import Trouble

PREFIX = "prime_gateway_"


class GuardCollector(Collector):
    def __init__(self, guards: Guards) -> None:
        self._guards = guards

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(f"{PREFIX}tasks", "Tasks of the event loop now.", value=_tasks())
        yield from self._of_deployments()
        yield from self._of_sites()

    def _of_deployments(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            f"{PREFIX}breaker_state", "1 for the state that holds.", labels=["deployment", "state"]
        )
        requests = GaugeMetricFamily(
            f"{PREFIX}admitted_requests", "Requests of this replica that hold capacity now.", labels=["deployment"]
        )
        tokens = GaugeMetricFamily(
            f"{PREFIX}admitted_tokens",
            "Uncached prompt tokens that these are reckoned at, and prefills left behind.",
            labels=["deployment"],
        )
        waiting = GaugeMetricFamily(
            f"{PREFIX}waiting_requests", "Requests in line for capacity in this replica.", labels=["deployment"]
        )
        scarce = GaugeMetricFamily(
            f"{PREFIX}capacity_scarce", "1 while nearly all of a deployment is given out.", labels=["deployment"]
        )
        for guard in self._guards.all():
            names = guard.deployments()
            for name, now in guard.breakers.board.states(names).items():
                for each in State:
                    state.add_metric([name, each.value], float(now is each))
            for name in names:
                held = guard.admission.in_use(name)
                requests.add_metric([name], held.requests)
                tokens.add_metric([name], held.tokens)
                waiting.add_metric([name], guard.admission.waiting(name))
                scarce.add_metric([name], float(guard.admission.is_scarce(name)))
        yield from (state, requests, tokens, waiting, scarce)

    def _of_sites(self) -> Iterator[Metric]:
        outcomes = CounterMetricFamily(
            f"{PREFIX}admission_outcomes", "How asking for capacity ended.", labels=["site", "outcome"]
        )
        lost = CounterMetricFamily(
            f"{PREFIX}leases_lost", "Times this replica's lease was pruned while it lived.", labels=["site"]
        )
        failed = CounterMetricFamily(
            f"{PREFIX}guard_tasks_failed", "Background tasks ended by a bug and begun again.", labels=["site"]
        )
        trips = CounterMetricFamily(f"{PREFIX}site_trips", "Trips to the site's Valkey.", labels=["site"])
        troubles = CounterMetricFamily(
            f"{PREFIX}site_troubles", "Trips that brought no answer, by why.", labels=["site", "trouble"]
        )
        drops = CounterMetricFamily(
            f"{PREFIX}site_drops", "Times the site's Valkey was given up for a while.", labels=["site"]
        )
        replicas = GaugeMetricFamily(f"{PREFIX}site_replicas", "Replicas with a lease, as last heard.", labels=["site"])
        alone = GaugeMetricFamily(
            f"{PREFIX}site_alone", "1 while this replica admits on its own share.", labels=["site"]
        )
        for guard in self._guards.all():
            for outcome in Outcome:
                outcomes.add_metric([guard.name, outcome.value], guard.admission.outcomes[outcome])
            lost.add_metric([guard.name], guard.admission.leases_lost)
            failed.add_metric([guard.name], guard.tasks_failed)
            replicas.add_metric([guard.name], guard.admission.replicas)
            alone.add_metric([guard.name], float(guard.admission.alone))
            if guard.valkey is not None:
                trips.add_metric([guard.name], guard.valkey.trips)
                drops.add_metric([guard.name], guard.valkey.link.drops)
                for trouble in Trouble:
                    troubles.add_metric([guard.name, trouble.value], guard.valkey.troubles[trouble])
        yield from (outcomes, lost, failed, trips, troubles, drops, replicas, alone)


def _tasks() -> int:
    """0 when read outside of the event loop, as at registration."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0
