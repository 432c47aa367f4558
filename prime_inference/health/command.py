"""`prime-inference health`: the agent, the fleet watch, the canary, and a capture for tests."""

import json
import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

health = typer.Typer(no_args_is_help=True, help="Node health: agent, fleet watch, canary, capture.")


class SystemClock:
    def now(self) -> float:
        return time.time()


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


@health.command()
def agent() -> None:
    """Watch this node (settings: PRIME_HEALTH_* environment variables)."""
    from prime_inference.health.agent import Agent, Sources  # noqa: PLC0415 - `--help` imports no driver
    from prime_inference.health.canary_watch import CanaryWatch  # noqa: PLC0415
    from prime_inference.health.cordon import Budget  # noqa: PLC0415
    from prime_inference.health.kubernetes import Kubernetes  # noqa: PLC0415
    from prime_inference.health.out_of_rotation import OutOfRotation  # noqa: PLC0415
    from prime_inference.health.page import Page  # noqa: PLC0415
    from prime_inference.health.settings import HealthSettingsError, load_health_settings  # noqa: PLC0415
    from prime_inference.health.sources.imex import ImexCtl  # noqa: PLC0415
    from prime_inference.health.sources.klog import Klog  # noqa: PLC0415
    from prime_inference.health.sources.kmsg import Kmsg  # noqa: PLC0415
    from prime_inference.health.sources.nvml import Nvml  # noqa: PLC0415
    from prime_inference.health.sources.sysfs import Sysfs  # noqa: PLC0415

    try:
        settings = load_health_settings()
    except HealthSettingsError as error:
        typer.echo(f"prime-inference health agent: {error}", err=True)
        raise typer.Exit(2) from error
    watched = Agent(
        node=settings.node,
        sources=Sources(
            Nvml() if settings.nvml else None,
            Sysfs(settings.sysfs_root),
            Kmsg(settings.kmsg_path) if settings.kernel_log == "kmsg" else Klog(),
            ImexCtl(settings.imex_command),
        ),
        clock=SystemClock(),
        deadline_s=settings.probe_deadline_seconds,
        clear_after_s=settings.clear_after_seconds,
        state_file=settings.state_file,
    )
    if settings.cordon:
        server = None if settings.api_server is None else str(settings.api_server)
        budget = Budget(settings.cordon_max_nodes, settings.cordon_max_share)
        watched.told.append(OutOfRotation(Kubernetes(server), budget))
    stop = _stop_on_signals()
    if settings.canary_frontend is not None:
        server = None if settings.api_server is None else str(settings.api_server)
        asked = Kubernetes(server)
        canary = CanaryWatch(
            str(settings.canary_frontend),
            settings.canary_model,
            lambda: asked.addresses_on(settings.node, settings.canary_namespace),
            settings.canary_interval_seconds,
        )
        watched.canary = canary.findings
        canary.start(stop)
    with Page(watched, settings.host, settings.port) as page:
        typer.echo(f"health agent of {settings.node} on port {page.port}")
        watched.run(settings.interval_seconds, stop)


@health.command()
def fleet(
    source: Annotated[Path, typer.Option(help="The fleet file as it was deployed.")],
    target: Annotated[Path, typer.Option(help="The fleet file the gateway watches.")],
    namespace: Annotated[str, typer.Option(help="Where the workers' pods are.")],
    api_server: Annotated[str | None, typer.Option(help="Kubernetes; in a pod it is found without.")] = None,
    interval_seconds: Annotated[float, typer.Option(help="From look to look.", min=0.1)] = 2.0,
) -> None:
    """Keep the gateway's fleet file: deployments whose nodes fail get no new requests."""
    from prime_inference.health.fleet_watch import FleetWatch, NoFleet  # noqa: PLC0415
    from prime_inference.health.kubernetes import Kubernetes  # noqa: PLC0415

    watch = FleetWatch(Kubernetes(api_server), namespace, source, target)
    try:
        watch.run(interval_seconds, _stop_on_signals())
    except NoFleet as error:
        typer.echo(f"prime-inference health fleet: {error}", err=True)
        raise typer.Exit(2) from error


@health.command()
def capture(
    out: Annotated[Path, typer.Option(help="The fixture to write.")],
    sysfs_root: Annotated[Path, typer.Option(help="Root of sysfs.")] = Path("/sys"),
    kmsg: Annotated[Path, typer.Option(help="The kernel log's device.")] = Path("/dev/kmsg"),
) -> None:
    """Read this node once and write what its sources said, for tests: no UUIDs, no kernel text but Xids."""
    from prime_inference.health.capture import capture as take  # noqa: PLC0415

    typer.echo(json.dumps(take(out, sysfs_root, kmsg)))


@health.command()
def canary(
    frontend: Annotated[str, typer.Option(help="URL of a Dynamo frontend.")],
    model: Annotated[str, typer.Option(help="The model it serves.")],
    golden_file: Annotated[
        Path | None, typer.Option(help="The golden answer; written when the pairs first agree on one.")
    ] = None,
    within_seconds: Annotated[float, typer.Option(help="For one answer.", min=1)] = 60.0,
) -> None:
    """Ask every prefill-decode pair the same question with cold caches; 1 if one answers wrongly or not at all."""
    import httpx  # noqa: PLC0415

    from prime_inference.health.canary import Ending, ending_of, golden_of, suspects  # noqa: PLC0415
    from prime_inference.health.canary_client import FrontendError, ask, pairs  # noqa: PLC0415

    with httpx.Client(base_url=frontend) as client:
        try:
            answers = [(pair, ask(client, model, pair, within_seconds)) for pair in pairs(client)]
        except FrontendError as error:
            typer.echo(f"prime-inference health canary: {error}", err=True)
            raise typer.Exit(2) from error
    golden = None
    if golden_file is not None and golden_file.is_file():
        golden = golden_file.read_text(encoding="utf-8")
    elif (golden := golden_of(answers)) is not None and golden_file is not None:
        golden_file.write_text(golden, encoding="utf-8")
    endings = {pair: ending_of(pair, answer, golden) for pair, answer in answers}
    prefill, decode = suspects(endings)
    told = {
        "golden": golden is not None,
        "pairs": [
            {
                "pair": pair.name,
                "ending": endings[pair].value,
                "seconds": round(answer.seconds, 3),
                "error": answer.error,
            }
            for pair, answer in answers
        ],
        "suspect_prefill": [f"{worker:x}" for worker in sorted(prefill)],
        "suspect_decode": [f"{worker:x}" for worker in sorted(decode)],
    }
    typer.echo(json.dumps(told, indent=1))
    if any(ending in (Ending.WRONG_TOKENS, Ending.BROKEN, Ending.LATE) for ending in endings.values()):
        raise typer.Exit(1)
