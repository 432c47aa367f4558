"""One round of readings against the baselines: findings. Pure but for the baselines it moves on.

Thresholds are those of NVIDIA's NVSentinel and Azure's node health checks; what
this node should have is what it had at its best, not a constant of a product sheet.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prime_inference.health.baselines import SATURATION, Baselines, Growth, Look
from prime_inference.health.readings import FabricState, FabricSummary, Gpu, Port, Snapshot
from prime_inference.health.verdicts import Check, Finding, Severity, Verdict
from prime_inference.health.xids import event_in

FATAL_COUNTERS = frozenset(
    {"link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err"}
)
"""Any growth of these means lost or refused packets."""

RATES_PER_SECOND = {
    "symbol_error": 10.0,
    "link_error_recovery": 5 / 60,
    "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0,
    "local_ack_timeout_err": 1.0,
    "roce_slow_restart": 10.0,
}
"""Growth past these is told."""

FABRIC_JOINS_WITHIN_S = 900.0
"""From a boot to the fabric manager's last word: minutes, so this is not one of them."""

RECOVERY_ACTIONS = {
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}


@dataclass
class Expected:
    """What this node had at its best: GPUs, active links and ports, domains joined. Kept with the baselines."""

    gpus: int = 0
    links: dict[str, int] = field(default_factory=dict)
    """Active links by GPU uuid."""
    ports: set[str] = field(default_factory=set)
    """Ports that were ever ACTIVE."""
    joined: set[str] = field(default_factory=set)
    """GPUs that ever were in an NVLink domain."""
    imex: bool = False
    """This node's IMEX was ever READY, as far as the agent can see it."""
    joining_since: dict[str, float] = field(default_factory=dict)
    """When a GPU that had been in one was first seen outside. Not kept: a reboot starts it anew, as it should."""


def findings_of(now: Snapshot, before_at: float | None, baselines: Baselines, expected: Expected) -> list[Finding]:
    """Judge one round. `before_at` is the last round's time, for rates; None on the first."""
    baselines.begin(now.boot_id)
    elapsed = None if before_at is None else max(now.at - before_at, 1e-3)
    found: list[Finding] = []
    if now.gpus is not None:
        found += _gpus(now.gpus, now.at, baselines, expected)
    if now.ports is not None:
        found += _ports(now.ports, elapsed, baselines, expected)
    if now.kernel is not None:
        found += _kernel(line.text for line in now.kernel)
    if now.imex is not None:
        ready = now.imex == "READY"
        expected.imex |= ready
        # NVIDIA's DRA driver runs it in a pod, where the host's command finds nobody: never ready says nothing.
        wrong = Verdict.BAD if expected.imex else Verdict.UNKNOWN
        found.append(Finding(Check.IMEX, "domain", Verdict.OK if ready else wrong, now.imex))
    return found


def _gpus(gpus: tuple[Gpu, ...], at: float, baselines: Baselines, expected: Expected) -> Iterator[Finding]:
    expected.gpus = max(expected.gpus, len(gpus))
    missing = expected.gpus - len(gpus)
    verdict = Verdict.BAD if missing else Verdict.OK
    yield Finding(Check.GPU_COUNT, "node", verdict, f"{len(gpus)} of {expected.gpus}")
    for gpu in gpus:
        yield from _links(gpu, baselines, expected)
        yield _grown(Check.ECC_UNCORRECTED, f"gpu{gpu.index}", baselines.grow(f"{gpu.uuid}/ecc", gpu.ecc_uncorrected))
        yield _flag(Check.ROW_REMAP, f"gpu{gpu.index}", gpu.remap_pending, gpu.remap_failed)
        yield _recovery(gpu)
        if gpu.fabric is not None:
            yield _fabric(gpu)
            yield _joined(gpu, at, expected)


def _links(gpu: Gpu, baselines: Baselines, expected: Expected) -> Iterator[Finding]:
    known = [active for active in gpu.links_active if active is not None]
    if known:
        up = sum(known)
        best = expected.links[gpu.uuid] = max(expected.links.get(gpu.uuid, 0), up)
        verdict = Verdict.BAD if up < best else Verdict.OK
        down = [str(i) for i, active in enumerate(gpu.links_active) if active is False]
        yield Finding(Check.NVLINK_DOWN, f"gpu{gpu.index}", verdict, f"{up} of {best} up, down: {','.join(down)}")
    else:
        yield Finding(Check.NVLINK_DOWN, f"gpu{gpu.index}", Verdict.UNKNOWN)
    for kind, value in sorted(gpu.link_errors.items()):
        growth = baselines.grow(f"{gpu.uuid}/nvlink/{kind}", value)
        severity = Severity.FATAL if kind == "recovery" else Severity.WARN
        yield _grown(Check.NVLINK_ERRORS, f"gpu{gpu.index}/{kind}", growth, severity)


def _grown(check: Check, entity: str, growth: Growth, severity: Severity = Severity.FATAL) -> Finding:
    verdict = {Look.GREW: Verdict.BAD, Look.UNKNOWN: Verdict.UNKNOWN, Look.SATURATED: Verdict.UNKNOWN}.get(
        growth.look, Verdict.OK
    )
    return Finding(check, entity, verdict, f"+{growth.by}" if growth.by else "", severity)


def _flag(check: Check, entity: str, *flags: bool | None) -> Finding:
    if any(flags):
        return Finding(check, entity, Verdict.BAD)
    return Finding(check, entity, Verdict.UNKNOWN if None in flags else Verdict.OK)


def _recovery(gpu: Gpu) -> Finding:
    entity = f"gpu{gpu.index}"
    if gpu.recovery_action is None:
        return Finding(Check.RECOVERY_ACTION, entity, Verdict.UNKNOWN)
    if gpu.recovery_action == 0:
        return Finding(Check.RECOVERY_ACTION, entity, Verdict.OK)
    wanted = RECOVERY_ACTIONS.get(gpu.recovery_action, str(gpu.recovery_action))
    return Finding(Check.RECOVERY_ACTION, entity, Verdict.BAD, wanted)


def _fabric(gpu: Gpu) -> Finding:
    fabric, entity = gpu.fabric, f"gpu{gpu.index}"
    assert fabric is not None
    if fabric.state == FabricState.NOT_SUPPORTED:
        return Finding(Check.FABRIC, entity, Verdict.UNKNOWN)
    if fabric.state != FabricState.COMPLETED:
        # Between a boot and the fabric manager's word nothing is wrong yet; `_joined` says when it has taken too long.
        return Finding(Check.FABRIC, entity, Verdict.UNKNOWN, f"state {fabric.state}")
    if fabric.status != 0 or fabric.summary == FabricSummary.UNHEALTHY:
        return Finding(Check.FABRIC, entity, Verdict.BAD, f"status {fabric.status}, summary {fabric.summary}")
    if fabric.summary == FabricSummary.LIMITED_CAPACITY:
        return Finding(Check.FABRIC, entity, Verdict.BAD, "limited capacity", Severity.WARN)
    return Finding(Check.FABRIC, entity, Verdict.OK)


def _joined(gpu: Gpu, at: float, expected: Expected) -> Finding:
    """A driver that never finishes joining reports no error: seen on GB200 as a state that stays "in progress"."""
    fabric, entity = gpu.fabric, f"gpu{gpu.index}"
    assert fabric is not None
    if fabric.state == FabricState.COMPLETED:
        expected.joined.add(gpu.uuid)
        expected.joining_since.pop(gpu.uuid, None)
        return Finding(Check.FABRIC_JOIN, entity, Verdict.OK)
    if gpu.uuid not in expected.joined:
        return Finding(Check.FABRIC_JOIN, entity, Verdict.UNKNOWN)
    waited = at - expected.joining_since.setdefault(gpu.uuid, at)
    late = waited > FABRIC_JOINS_WITHIN_S
    detail = f"state {fabric.state} for {waited / 60:.0f} min"
    return Finding(Check.FABRIC_JOIN, entity, Verdict.BAD if late else Verdict.UNKNOWN, detail)


def _ports(
    ports: tuple[Port, ...], elapsed: float | None, baselines: Baselines, expected: Expected
) -> Iterator[Finding]:
    seen = {port.name: port for port in ports}
    expected.ports |= {port.name for port in ports if port.state == "ACTIVE"}
    for name in sorted(expected.ports - set(seen)):
        yield Finding(Check.IB_PORT, name, Verdict.BAD, "gone")
    for port in ports:
        if port.state is None:
            yield Finding(Check.IB_PORT, port.name, Verdict.UNKNOWN)
        elif port.name in expected.ports:
            verdict = Verdict.OK if port.state == "ACTIVE" else Verdict.BAD
            yield Finding(Check.IB_PORT, port.name, verdict, f"{port.state}/{port.phys_state}")
        # A port that was never up has no cable: not a fault.
        stuck = []
        for counter, value in sorted(port.counters.items()):
            growth = baselines.grow(f"{port.name}/{counter}", value, saturates_at=SATURATION.get(counter))
            if growth.look is Look.SATURATED:
                stuck.append(counter)
            finding = _counter(port.name, counter, growth, elapsed)
            if finding is not None:
                yield finding
        detail = ",".join(stuck)
        verdict = Verdict.BAD if stuck else Verdict.OK
        yield Finding(Check.IB_SATURATED, port.name, verdict, detail, Severity.WARN)


def _counter(port: str, counter: str, growth: Growth, elapsed: float | None) -> Finding | None:
    entity = f"{port}/{counter}"
    if counter in FATAL_COUNTERS:
        return _grown(Check.IB_COUNTER, entity, growth)
    if counter in RATES_PER_SECOND:
        if growth.look in (Look.UNKNOWN, Look.SATURATED):
            return Finding(Check.IB_COUNTER, entity, Verdict.UNKNOWN, severity=Severity.WARN)
        rate = growth.by / elapsed if elapsed else 0.0
        verdict = Verdict.BAD if rate > RATES_PER_SECOND[counter] else Verdict.OK
        return Finding(Check.IB_COUNTER, entity, verdict, f"{rate:.1f}/s", Severity.WARN)
    return None


def _kernel(lines: Iterable[str]) -> Iterator[Finding]:
    """One finding a distinct event: a GPU in trouble writes the same line hundreds of thousands of times."""
    events = Counter(event for line in lines if (event := event_in(line)) is not None)
    for event, times in events.items():
        check = Check.NIC_FATAL if event.kind == "nic" else Check.XID
        entity = event.device if event.kind == "nic" else f"{event.kind}{event.number}/{event.device}"
        yield Finding(check, entity, Verdict.BAD, f"{times} lines", event.severity)
