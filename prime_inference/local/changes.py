"""Changing a stack while it serves: pools of another size, each process for a new one. One change at a time.

Whatever leaves is drained first: a worker withdraws from Dynamo's discovery and ends what it runs; a frontend leaves the
gateway's fleet file and goes when it has nothing in flight; a gateway hands its socket to its successor. What cannot be
doubled, the control Valkey, is started again in place: the gateway admits on its own share meanwhile.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

from prime_inference.engine.presets import Role as WorkerRole
from prime_inference.local import memory
from prime_inference.local.credentials import write_frontend
from prime_inference.local.devices import CPU_DEVICE, GPU_MEMORY_SHARE, WorkerDevice, visible_gpus
from prime_inference.local.errors import UpError
from prime_inference.local.options import EngineChoice
from prime_inference.local.pools import ORDER, Target, next_name, resized
from prime_inference.local.ports import free_ports
from prime_inference.local.probes import get
from prime_inference.local.readings import sum_of
from prime_inference.local.spec import HttpOk, Role
from prime_inference.local.stack import (
    PORTS_PER_WORKER,
    StackPlan,
    another_frontend,
    another_gateway,
    one_more_worker,
)
from prime_inference.local.supervisor import Supervisor
from prime_inference.local.warm_up import until_instances

DRAIN_WITHIN_S = 300.0
"""A leaving process may finish for this long; a stream that is longer is moved by Dynamo, or ends with an error event."""

MODEL_SERVED_WITHIN_S = 60.0
TAKEN_WITHIN_S = 30.0
"""The gateway looks at its fleet file each second."""

VALKEY_WITHIN_S = 30.0
LOOK_EVERY_S = 0.1

SETTLE_S = 1.0
"""After a frontend has left the fleet file: requests that the gateway was about to send still reach it."""


@dataclass
class Serving:
    """Where the stack serves now."""

    frontend: str = "frontend"
    frontend_port: int = 0
    gateway: str = "gateway"
    gateway_internal: int = 0


class Changes:
    def __init__(
        self, plan: StackPlan, supervisor: Supervisor, say: Callable[[str], None], publish: Callable[[Serving], None]
    ) -> None:
        """`publish` writes down where the stack serves, after each step that changed it."""
        self.serving = Serving(frontend_port=plan.ports.frontend, gateway_internal=plan.ports.gateway_internal)
        self._plan = plan
        self._supervisor = supervisor
        self._say = say
        self._publish = publish
        self._one_at_a_time = asyncio.Lock()

    def pool(self, role: WorkerRole) -> list[str]:
        return [name for name, child in self._supervisor.children.items() if child.spec.role == role.value]

    # ── sizes ──

    async def scale(self, sizes: dict[WorkerRole, int]) -> str:
        """Raises UpError; what had come by then stays."""
        async with self._one_at_a_time:
            changes = {role: resized(role.value, self.pool(role), size) for role, size in sizes.items()}
            self._check_memory(sum(len(change.come) for change in changes.values()))
            for role, change in changes.items():
                for name in change.come:
                    await self._add_worker(role, name)
            for change in changes.values():
                for name in change.go:
                    await self._drain(name)
            return ", ".join(f"{len(self.pool(role))} {role.value}" for role in WorkerRole)

    async def restart(self, target: Target) -> str:
        """Raises UpError; what was restarted by then stays so."""
        async with self._one_at_a_time:
            done: list[str] = []
            for each in ORDER if target is Target.ALL else (target,):
                done += await self._restart(each)
            return ", ".join(done)

    async def _restart(self, target: Target) -> list[str]:
        match target:
            case Target.VALKEY:
                await self._supervisor.replace_in_place("valkey", VALKEY_WITHIN_S)
                return ["valkey"]
            case Target.FRONTEND:
                return [await self._replace_frontend()]
            case Target.GATEWAY:
                return [await self._replace_gateway()]
            case _:
                role = WorkerRole(target.value)
                return [await self._replace_worker(role, name) for name in self.pool(role)]

    # ── steps ──

    async def _add_worker(self, role: WorkerRole, name: str) -> None:
        device = self._device(name)
        spec = one_more_worker(self._plan, role, name, device, free_ports(PORTS_PER_WORKER))
        before = {each: len(self.pool(each)) for each in WorkerRole}
        self._say(f"{name}: coming")
        await self._supervisor.add(spec)
        before[role] += 1
        await until_instances(self.serving.frontend_port, before[WorkerRole.PREFILL], before[WorkerRole.DECODE])
        self._publish(self.serving)

    async def _replace_worker(self, role: WorkerRole, name: str) -> str:
        """The new one first: with one worker in its pool, nothing would be served meanwhile."""
        self._check_memory(1)
        successor = next_name(role.value, self.pool(role))
        await self._add_worker(role, successor)
        await self._drain(name)
        return f"{name} -> {successor}"

    async def _drain(self, name: str) -> None:
        self._say(f"{name}: drains")
        if not await self._supervisor.remove(name, DRAIN_WITHIN_S):
            self._say(f"{name}: did not end what it had within {DRAIN_WITHIN_S:g} s")
        self._publish(self.serving)

    async def _replace_frontend(self) -> str:
        former, former_port = self.serving.frontend, self.serving.frontend_port
        (port,) = free_ports(1)
        name = next_name("frontend", self._supervisor.children)
        await self._supervisor.add(another_frontend(self._plan, name, port))
        await until_instances(port, len(self.pool(WorkerRole.PREFILL)), len(self.pool(WorkerRole.DECODE)))
        await self._until_served(port)
        taken = await self._reloads()
        write_frontend(self._plan.state, port)
        await self._until(
            lambda: self._reloads_after(taken), TAKEN_WITHIN_S, "the gateway did not take the new frontend"
        )
        self.serving.frontend, self.serving.frontend_port = name, port
        self._publish(self.serving)
        await asyncio.sleep(SETTLE_S)
        await self._until(lambda: self._is_idle(former_port), DRAIN_WITHIN_S, f"{former} still has requests")
        await self._supervisor.remove(former, DRAIN_WITHIN_S)
        return f"{former} -> {name}"

    async def _replace_gateway(self) -> str:
        former = self.serving.gateway
        (internal,) = free_ports(1)
        name = next_name("gateway", self._supervisor.children)
        await self._supervisor.add(another_gateway(self._plan, name, internal))
        self.serving.gateway, self.serving.gateway_internal = name, internal
        self._publish(self.serving)
        self._say(f"{name} serves; metrics and console are at http://127.0.0.1:{internal} now")
        await self._supervisor.remove(former, DRAIN_WITHIN_S, signal.SIGUSR1)
        return f"{former} -> {name}"

    # ── looking ──

    def _device(self, name: str) -> WorkerDevice:
        if self._plan.devices[0].gpu is None:
            return CPU_DEVICE
        living = {child.spec.env.get("CUDA_VISIBLE_DEVICES") for child in self._supervisor.children.values()}
        for gpu in visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")):
            if gpu not in living:
                return WorkerDevice(gpu, GPU_MEMORY_SHARE)
        raise UpError("every GPU has a worker already: a new one, also one that takes over, needs a free GPU.")

    def _check_memory(self, more: int) -> None:
        plan = self._plan
        if not more or plan.devices[0].gpu is not None:
            return
        needed = (
            more * memory.MOCKER_BYTES
            if plan.options.engine is EngineChoice.MOCKER
            else more * (memory.CPU_WORKER_BYTES + plan.model.weight_bytes)
        )
        memory.check_memory(memory.available_bytes(psutil.virtual_memory().available), needed)

    async def _until_served(self, port: int) -> None:
        model = self._plan.model.name.encode()

        async def served() -> bool:
            status, body = await get(f"http://127.0.0.1:{port}/v1/models")
            return status == 200 and model in body

        await self._until(served, MODEL_SERVED_WITHIN_S, "the new frontend does not serve the model")

    async def _reloads(self) -> float:
        _, page = await get(f"http://127.0.0.1:{self.serving.gateway_internal}/metrics")
        return sum_of(page, "prime_gateway_file_reloads_total", result="taken")

    async def _reloads_after(self, before: float) -> bool:
        return await self._reloads() > before

    async def _is_idle(self, port: int) -> bool:
        status, page = await get(f"http://127.0.0.1:{port}/metrics")
        return status == 200 and sum_of(page, "dynamo_frontend_inflight_requests") == 0

    @staticmethod
    async def _until(what: Callable[[], Awaitable[bool]], within_s: float, why: str) -> None:
        give_up = time.monotonic() + within_s
        while not await what():
            if time.monotonic() > give_up:
                raise UpError(f"{why} within {within_s:g} s.")
            await asyncio.sleep(LOOK_EVERY_S)


def worker_urls(supervisor: Supervisor) -> dict[str, str]:
    return {
        name: child.spec.probe.url.rpartition("/")[0]
        for name, child in supervisor.children.items()
        if child.spec.role in (Role.PREFILL, Role.DECODE) and isinstance(child.spec.probe, HttpOk)
    }
