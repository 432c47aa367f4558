"""What operators have said of a site's deployments, on top of the fleet file: pure.

The fleet file stays the word of whoever deploys; orders are what the person on call does about it now, and they rule
until taken back. They can drain, but never bring back what the file drains: that may be a failed node's doing.

A ramp raises a weight in steps from `start` to the ordered weight. Its times are the store's clock, so that all replicas
are at the same step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.fleet.registry import Deployment, Fleet, Model

RAMP_STEPS = 20
"""Each step moves a twentieth of the sessions that will move: their caches are made anew a few at a time."""


@dataclass(frozen=True)
class Ramp:
    start: float
    started_ms: int
    duration_ms: int


@dataclass(frozen=True)
class Order:
    """Of one deployment. What is None is the fleet file's business."""

    draining: bool = False
    weight: float | None = None
    overflow: bool | None = None
    ramp: Ramp | None = None

    @property
    def says_nothing(self) -> bool:
        return self == Order()


@dataclass(frozen=True)
class SiteOrders:
    """As kept by the site. `revision` grows with every change: who changes names the one he has seen."""

    revision: int = 0
    draining: bool = False
    deployments: dict[str, Order] = field(default_factory=dict)

    def order(self, deployment: str) -> Order:
        return self.deployments.get(deployment, Order())

    def with_order(self, deployment: str, order: Order) -> "SiteOrders":
        others = {name: each for name, each in self.deployments.items() if name != deployment}
        return replace(self, deployments=others if order.says_nothing else {**others, deployment: order})


@dataclass(frozen=True)
class Heard:
    """One reading of a site's orders."""

    orders: SiteOrders = SiteOrders()
    now_ms: int = 0
    """The store's clock when it was read."""


def weight_now(order: Order, written: float, now_ms: int) -> float:
    """The weight that rules now: the file's, the ordered one, or a step between."""
    if order.weight is None:
        return written
    ramp = order.ramp
    if ramp is None or now_ms >= ramp.started_ms + ramp.duration_ms:
        return order.weight
    step = max(0, RAMP_STEPS * (now_ms - ramp.started_ms) // ramp.duration_ms)
    return ramp.start + (order.weight - ramp.start) * step / RAMP_STEPS


def ramp_left_ms(order: Order, now_ms: int) -> int:
    """0 without a ramp, or when it has ended."""
    return 0 if order.ramp is None else max(0, order.ramp.started_ms + order.ramp.duration_ms - now_ms)


def obeyed(fleet: Fleet, heard: Mapping[str, Heard]) -> Fleet:
    """The fleet as the file and the orders of all sites together have it. The very same object if no order says
    anything."""
    deployments = {name: _obeyed(deployment, heard) for name, deployment in fleet.deployments.items()}
    if all(deployments[name] is deployment for name, deployment in fleet.deployments.items()):
        return fleet
    models = {
        name: replace(model, deployments=tuple(deployments[each.name] for each in model.deployments))
        for name, model in fleet.models.items()
    }
    return replace(fleet, models=models, deployments=deployments)


def _obeyed(deployment: Deployment, heard: Mapping[str, Heard]) -> Deployment:
    said = heard.get(deployment.site, Heard())
    order = said.orders.order(deployment.name)
    draining = deployment.draining or said.orders.draining or order.draining
    weight = weight_now(order, deployment.weight, said.now_ms)
    overflow = deployment.overflow if order.overflow is None else order.overflow
    if (draining, weight, overflow) == (deployment.draining, deployment.weight, deployment.overflow):
        return deployment
    return replace(deployment, draining=draining, weight=weight, overflow=overflow)


def left_alone(fleet: Fleet) -> list[Model]:
    """Models of which every deployment drains: nobody serves them."""
    return [model for model in fleet.models.values() if all(each.draining for each in model.deployments)]
