"""What an operator may do, and what it makes of a site's orders: pure."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gateway.errors import Conflict
from gateway.fleet.orders import Heard, Order, Ramp, SiteOrders, left_alone, obeyed
from gateway.fleet.registry import Deployment, Fleet, Name

MAX_WEIGHT = 1000.0
"""As in the fleet file."""

LONGEST_RAMP_S = 86_400.0


class Result(StrEnum):
    """How an action ended. Closed: it is in the audit line."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Drain(_Closed):
    """New requests go elsewhere; what runs ends by itself."""

    action: Literal["drain"]
    deployment: Name
    force: bool = False
    """Also where nobody would be left to serve a model."""


class Undrain(_Closed):
    action: Literal["undrain"]
    deployment: Name


class SetWeight(_Closed):
    """At once, or in steps over `ramp_seconds` from `start` (without it: from the weight that rules now)."""

    action: Literal["weight"]
    deployment: Name
    weight: Annotated[float, Field(ge=0.0, le=MAX_WEIGHT)] | None
    """None: the fleet file's."""
    ramp_seconds: Annotated[float, Field(ge=0.0, le=LONGEST_RAMP_S)] = 0.0
    start: Annotated[float, Field(ge=0.0, le=MAX_WEIGHT)] | None = None
    overflow: bool | None = None
    """False brings an overflow deployment in as one among the others; None leaves that as it is."""


class SetOverflow(_Closed):
    action: Literal["overflow"]
    deployment: Name
    overflow: bool | None
    """None: the fleet file's word."""


class Probe(_Closed):
    """An open breaker's probe is due now; any other gets a prompt of which nothing is reported."""

    action: Literal["probe"]
    deployment: Name


class DrainSite(_Closed):
    action: Literal["drain_site"]
    site: Name
    force: bool = False


class UndrainSite(_Closed):
    action: Literal["undrain_site"]
    site: Name


DeploymentOrder = Drain | Undrain | SetWeight | SetOverflow
SiteOrder = DrainSite | UndrainSite
Action = DeploymentOrder | SiteOrder | Probe

ACTION: TypeAdapter[Action] = TypeAdapter(Annotated[Action, Field(discriminator="action")])


def target_of(action: Action) -> str:
    return action.site if isinstance(action, DrainSite | UndrainSite) else action.deployment


def ordered(action: DeploymentOrder | SiteOrder, heard: Heard, now: Deployment | None) -> SiteOrders:
    """The site's orders after it. `now` is the deployment as it rules, for actions that are about one."""
    orders = heard.orders
    if isinstance(action, DrainSite | UndrainSite):
        return replace(orders, draining=isinstance(action, DrainSite))
    assert now is not None
    order = orders.order(now.name)
    match action:
        case Drain():
            order = replace(order, draining=True)
        case Undrain():
            order = replace(order, draining=False)
        case SetOverflow():
            order = replace(order, overflow=action.overflow)
        case SetWeight():
            order = _weighed(action, order, heard.now_ms, now)
    return orders.with_order(now.name, order)


def _weighed(action: SetWeight, order: Order, now_ms: int, now: Deployment) -> Order:
    ramp = None
    if action.weight is not None and action.ramp_seconds > 0:
        start = now.weight if action.start is None else action.start
        ramp = Ramp(start, now_ms, int(action.ramp_seconds * 1000))
    overflow = order.overflow if action.overflow is None else action.overflow
    return replace(order, weight=action.weight, ramp=ramp, overflow=overflow)


def check(
    action: DeploymentOrder | SiteOrder, written: Fleet, before: dict[str, Heard], after: dict[str, Heard]
) -> None:
    """Raises Conflict where the action would do nothing, or leave a model with nobody to serve it."""
    if isinstance(action, Undrain) and written.deployments[action.deployment].draining:
        raise Conflict(
            f"The fleet file drains {action.deployment} (its configuration, or the health agent): change it there.",
            code="drained_by_file",
        )
    if isinstance(action, Drain | DrainSite) and not action.force:
        already = {model.name for model in left_alone(obeyed(written, before))}
        alone = [model.name for model in left_alone(obeyed(written, after)) if model.name not in already]
        if alone:
            raise Conflict(
                f"Nobody would be left to serve {', '.join(alone)}. Send it again with force to do it all the same.",
                code="last_deployment",
            )
