"""The stack as a list of processes: pure. Which ones, with which arguments, in which order."""

import sys
from dataclasses import dataclass, replace

from prime_inference.engine.presets import Role as WorkerRole
from prime_inference.engine.presets import WorkerPlan, worker_arguments, worker_environment
from prime_inference.engine.tier import TierPlan
from prime_inference.engine.tool_settings import Parsing
from prime_inference.local.devices import WorkerDevice
from prime_inference.local.model import LocalModel
from prime_inference.local.mooncake import PORTS as MOONCAKE_PORTS
from prime_inference.local.mooncake import MooncakePorts, mooncake_specs
from prime_inference.local.options import EngineChoice, UpOptions
from prime_inference.local.spec import HttpOk, ProcessSpec, Role, TcpPing
from prime_inference.local.state_dir import StateDir
from prime_inference.local.tiers import TierPorts, tier_plan, tier_ports_needed, tier_ports_of, tier_specs
from prime_inference.toolcalls.serving import ToolFormat

AFFINITY_TTL_S = 600
"""How long Dynamo keeps a session on its decode worker: OpenRouter's sticky time. Without it affinity is off."""

MIGRATION_LIMIT = 2
"""How often Dynamo may carry a running request to another worker when its own dies."""

STREAM_TIMEOUT_S = 120
"""Dynamo ends a stream whose worker has gone silent after this long; by default it never does."""

WORKER_READY_WITHIN_S = 600.0
"""Loading a large model from a cold disk takes minutes; SmolLM2 on two cores is ready in less than one."""

ENGINE_NICE = 5
"""On a CPU the engines use every core: whoever hands them work goes first."""


@dataclass(frozen=True)
class Ports:
    """Ports of one stack. The workers' are lists, prefill first, then decode."""

    gateway: int
    gateway_internal: int
    valkey: int
    frontend: int
    worker_system: list[int]
    worker_side_channel: list[int]
    worker_kv_events: list[int]
    tier: TierPorts | None = None
    mooncake: MooncakePorts | None = None


def ports_needed(workers: int, shards: int = 0, servers: int = 1, *, mooncake: bool = False) -> int:
    """How many free ports `Ports` takes beside the gateway's own. `servers`: of the tier."""
    return 3 + 3 * workers + (MOONCAKE_PORTS if mooncake else tier_ports_needed(shards, servers))


def ports_of(gateway: int, free: list[int], workers: int, servers: int = 1, *, mooncake: bool = False) -> Ports:
    internal, valkey, frontend, *rest = free
    return Ports(
        gateway=gateway,
        gateway_internal=internal,
        valkey=valkey,
        frontend=frontend,
        worker_system=rest[:workers],
        worker_side_channel=rest[workers : 2 * workers],
        worker_kv_events=rest[2 * workers : 3 * workers],
        tier=None if mooncake else tier_ports_of(rest[3 * workers :], servers),
        mooncake=MooncakePorts(*rest[3 * workers :]) if mooncake else None,
    )


@dataclass(frozen=True)
class StackPlan:
    options: UpOptions
    model: LocalModel
    context_tokens: int | None
    state: StateDir
    ports: Ports
    devices: list[WorkerDevice]
    cores: int
    valkey_binary: str
    gateway_secret: str
    inherited: dict[str, str]
    listen_fd: int | None = None
    """The gateway's listening socket: held by the supervisor, so that one gateway can take over from another, and a
    client that comes while it is started again waits instead of being refused."""


def tier_servers(options: UpOptions, model: LocalModel) -> int:
    """One a rank where all ranks hold the same KV: each then keeps its own part of it."""
    return options.prefill_ranks if model.latent_attention else 1


def specs_of(plan: StackPlan) -> list[ProcessSpec]:
    """All processes, in the order in which they start."""
    return [_valkey(plan), *_tiers(plan), _frontend(plan), *_workers(plan), _gateway(plan)]


def _tiers(plan: StackPlan) -> list[ProcessSpec]:
    on_gpu = plan.devices[0].gpu is not None
    if plan.ports.mooncake is not None:
        return mooncake_specs(plan.ports.mooncake, plan.inherited, nice=0 if on_gpu else ENGINE_NICE)
    if plan.ports.tier is None:
        return []
    nice = 0 if on_gpu else ENGINE_NICE
    return tier_specs(plan.ports.tier, plan.options.l1_gib, plan.valkey_binary, plan.inherited, nice=nice)


def _valkey(plan: StackPlan) -> ProcessSpec:
    argv = (
        plan.valkey_binary,
        *("--bind", "127.0.0.1"),
        *("--port", str(plan.ports.valkey)),
        *("--dir", str(plan.state.valkey)),
        # Control state: leases and breakers must never be evicted, and settle records survive a restart.
        *("--maxmemory-policy", "noeviction"),
        *("--appendonly", "yes"),
        *("--save", ""),
    )
    return ProcessSpec("valkey", Role.VALKEY, argv, dict(plan.inherited), TcpPing(plan.ports.valkey))


def dynamo_environment(state: StateDir) -> dict[str, str]:
    """How the Dynamo processes of one machine find and reach each other."""
    return {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(state.discovery),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_LOGGING_DISABLE_ANSI_COLORS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def _frontend(plan: StackPlan) -> ProcessSpec:
    argv = (
        *(sys.executable, "-m", "dynamo.frontend"),
        *("--http-host", "127.0.0.1"),
        *("--http-port", str(plan.ports.frontend)),
        *("--router-mode", "kv"),
        *("--router-policy-config", str(plan.state.router_policy_file)),
        *("--router-session-affinity-mode", "soft"),
        *("--router-session-affinity-ttl-secs", str(AFFINITY_TTL_S)),
        *("--migration-limit", str(MIGRATION_LIMIT)),
        "--enable-anthropic-api",
    )
    environment = {
        **plan.inherited,
        **dynamo_environment(plan.state),
        "DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS": str(STREAM_TIMEOUT_S),
    }
    return ProcessSpec(
        "frontend", Role.FRONTEND, argv, environment, HttpOk(f"http://127.0.0.1:{plan.ports.frontend}/live")
    )


def _workers(plan: StackPlan) -> list[ProcessSpec]:
    options = plan.options
    roles = [WorkerRole.PREFILL] * options.prefill + [WorkerRole.DECODE] * options.decode
    names = worker_names(options)
    return [_worker(plan, index, role, names[index]) for index, role in enumerate(roles)]


def worker_names(options: UpOptions) -> list[str]:
    """In the order of the plan's devices: the prefill workers, then the decode workers."""
    return [f"prefill-{n}" for n in range(options.prefill)] + [f"decode-{n}" for n in range(options.decode)]


def _worker(plan: StackPlan, index: int, role: WorkerRole, name: str) -> ProcessSpec:
    build = _vllm_worker if plan.options.engine is EngineChoice.VLLM else _mocker_worker
    return build(plan, index, role, name)


PORTS_PER_WORKER = 3


def one_more_worker(plan: StackPlan, role: WorkerRole, name: str, device: WorkerDevice, free: list[int]) -> ProcessSpec:
    """A worker beside those of the plan, on PORTS_PER_WORKER free ports."""
    system, side_channel, kv_events = ([port] for port in free)
    ports = replace(plan.ports, worker_system=system, worker_side_channel=side_channel, worker_kv_events=kv_events)
    return _worker(replace(plan, devices=[device], ports=ports), 0, role, name)


def another_frontend(plan: StackPlan, name: str, port: int) -> ProcessSpec:
    return replace(_frontend(replace(plan, ports=replace(plan.ports, frontend=port))), name=name)


def another_gateway(plan: StackPlan, name: str, internal_port: int) -> ProcessSpec:
    """On the same socket as the one it takes over from."""
    ports = replace(plan.ports, gateway_internal=internal_port)
    return replace(_gateway(replace(plan, ports=ports)), name=name, after=())


def _tier_of(plan: StackPlan) -> TierPlan | None:
    if plan.ports.mooncake is not None:
        return TierPlan(mooncake_config=str(plan.state.mooncake_file))
    return tier_plan(plan.ports.tier)


def processes_of(options: UpOptions, role: WorkerRole) -> int:
    """Processes that compute, of all workers of a role."""
    return options.decode if role is WorkerRole.DECODE else options.prefill * options.prefill_ranks


def _vllm_worker(plan: StackPlan, index: int, role: WorkerRole, name: str) -> ProcessSpec:
    device, ports = plan.devices[index], plan.ports
    on_gpu = device.gpu is not None
    worker = WorkerPlan(
        role=role,
        model_path=str(plan.model.path),
        model_name=plan.model.name,
        context_tokens=plan.context_tokens,
        on_gpu=on_gpu,
        gpu_memory_share=device.memory_share,
        kv_events_port=ports.worker_kv_events[index],
        ranks=plan.options.prefill_ranks if role is WorkerRole.PREFILL else 1,
        tier=_tier_of(plan) if role is WorkerRole.PREFILL else None,
        parsing=Parsing.GATEWAY if plan.model.tool_format is ToolFormat.GLM else Parsing.NONE,
        thinks=plan.model.thinks,
    )
    tier = worker.tier
    environment = {
        **plan.inherited,
        **dynamo_environment(plan.state),
        **({"MOONCAKE_CONFIG_PATH": tier.mooncake_config} if tier is not None and tier.mooncake_config else {}),
        **worker_environment(
            role,
            cores=plan.cores // processes_of(plan.options, role),
            on_gpu=on_gpu,
            gpu=device.gpu,
            side_channel_port=ports.worker_side_channel[index],
            system_port=ports.worker_system[index],
        ),
    }
    return ProcessSpec(
        name=name,
        role=Role(role.value),
        argv=(sys.executable, "-m", "prime_inference.engine.worker", *worker_arguments(worker)),
        env=environment,
        probe=HttpOk(f"http://127.0.0.1:{ports.worker_system[index]}/health"),
        ready_within_s=WORKER_READY_WITHIN_S,
        stop_within_s=15.0,
        nice=0 if on_gpu else ENGINE_NICE,
        after=_before_on_the_same_gpu(plan, index),
        # UCX opens a peer's GPU memory once and keeps it open until its own process ends (openucx/ucx issue 11753).
        memory_mapped_by=Role.DECODE if on_gpu and role is WorkerRole.PREFILL else None,
    )


def _before_on_the_same_gpu(plan: StackPlan, index: int) -> tuple[str, ...]:
    """The worker that must be ready first. vLLM measures the GPU's memory while it starts and takes what a neighbour
    allocates meanwhile for its own: of two that started together on an H200, one found no memory left for its cache.
    """
    gpu = plan.devices[index].gpu
    before = [n for n in range(index) if gpu is not None and plan.devices[n].gpu == gpu]
    return (worker_names(plan.options)[before[-1]],) if before else ()


def _mocker_worker(plan: StackPlan, index: int, role: WorkerRole, name: str) -> ProcessSpec:
    ports = plan.ports
    argv = (
        *(sys.executable, "-m", "dynamo.mocker"),
        *("--model-path", str(plan.model.path)),
        *("--model-name", plan.model.name),
        *("--disaggregation-mode", role.value),
        *(("--max-model-len", str(plan.context_tokens)) if plan.context_tokens is not None else ()),
    )
    environment = {
        **plan.inherited,
        **dynamo_environment(plan.state),
        "DYN_SYSTEM_PORT": str(ports.worker_system[index]),
        "DYN_SELF_HOST_METADATA": "0",
    }
    return ProcessSpec(
        name=name,
        role=Role(role.value),
        argv=argv,
        env=environment,
        # A mocker calls itself "notready" for ever; that it serves is seen from the frontend's list of instances.
        probe=HttpOk(f"http://127.0.0.1:{ports.worker_system[index]}/metrics"),
    )


def _gateway(plan: StackPlan) -> ProcessSpec:
    ports, options = plan.ports, plan.options
    prefix = "PRIME_GATEWAY_"
    environment = {
        **plan.inherited,
        f"{prefix}HOST": options.host,
        f"{prefix}PORT": str(ports.gateway),
        f"{prefix}INTERNAL_PORT": str(ports.gateway_internal),
        f"{prefix}FLEET_FILE": str(plan.state.fleet_file),
        f"{prefix}KEYS_FILE": str(plan.state.keys_file),
        f"{prefix}VALKEY_URL": f"redis://127.0.0.1:{ports.valkey}/0",
        f"{prefix}SECRET": plan.gateway_secret,
        f"{prefix}DRAIN_SECONDS": "5",
        **({f"{prefix}LISTEN_FD": str(plan.listen_fd)} if plan.listen_fd is not None else {}),
    }
    return ProcessSpec(
        name="gateway",
        role=Role.GATEWAY,
        argv=(sys.executable, "-m", "prime_inference", "gateway"),
        env=environment,
        probe=HttpOk(f"http://127.0.0.1:{ports.gateway_internal}/readyz"),
        after=("valkey", "frontend"),
        pass_fds=(plan.listen_fd,) if plan.listen_fd is not None else (),
    )


ROUTER_POLICY = """\
# Dynamo's router policy: the form that stays when 1.7 drops the flags it replaces.
default_policy_family: standard
uncached_isl_buckets:
  - {bucket: all, min_tokens: 0}
policy_classes:
  - {name: standard, policy_family: standard, cache_bucket: all, quantum: 4096, queue_policy: fcfs}
worker_selection:
  prefill: prefill
  decode: decode
  instances:
    # A prefill worker is chosen for the prefix it holds, weighed against what waits there.
    - name: prefill
      type: dynamo-default-cost-fn
      parameters: {overlap_score_credit: 1.0, prefill_load_scale: 1.0, router_temperature: 0.0}
    # A decode worker pulls its KV anyway: load decides, and the session's affinity before it.
    - name: decode
      type: dynamo-default-cost-fn
      parameters: {overlap_score_credit: 0.0, decode_active_request_weight: 1.0, router_temperature: 0.0}
"""
