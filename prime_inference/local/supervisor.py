"""Starting, watching and stopping the processes of a stack.

A process is `waiting` for those it comes after, `starting` until its probe answers, then `ready`. One that ends before it
was ever ready stops the start: starting it again would fail the same way. One that ends later is `restarting`: started
again after a pause that doubles. Stopping goes against the order of starting, SIGTERM first, SIGKILL when time is up; each
process leads a group of its own, so that what it started goes with it. While the stack serves, processes may be added and
taken away: one that is `leaving` finishes what it has and is not started again.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prime_inference.local.backoff import ends_after, pause_s
from prime_inference.local.errors import StartFailed
from prime_inference.local.probes import is_ready
from prime_inference.local.reason import ended_because
from prime_inference.local.spec import ProcessSpec, Role
from prime_inference.local.state_dir import StateDir

PROBE_EVERY_S = 0.25
"""Readiness is asked for this often: a person waits."""

LOG_TAIL_BYTES = 64 * 1024
"""How much of a log is read for the reason of an end."""


class Phase(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass
class Child:
    """One process as it is now."""

    spec: ProcessSpec
    phase: Phase = Phase.WAITING
    process: asyncio.subprocess.Process | None = None
    since: float = field(default_factory=time.monotonic)
    log_start: int = 0
    """Where in its log the process that runs now began to write."""
    restarts: int = 0
    was_ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        return None if self.process is None or self.process.returncode is not None else self.process.pid


class Supervisor:
    """Owns the processes of one stack. `changed` is called after every change of phase."""

    def __init__(self, specs: list[ProcessSpec], state: StateDir, changed: Callable[[Child], None]) -> None:
        self.children = {spec.name: Child(spec) for spec in specs}
        self._state = state
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tasks_changed = asyncio.Event()

    async def start(self) -> None:
        """Returns when every process is ready. Raises StartFailed; what runs by then is the caller's to stop."""
        for name, child in self.children.items():
            self._tasks[name] = asyncio.create_task(self._keep(child), name=name)
        ready = asyncio.create_task(self._all_ready())
        tasks: set[asyncio.Task[None]] = {ready, *self._tasks.values()}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        for task in done:
            task.result()

    async def _all_ready(self) -> None:
        for child in self.children.values():
            await child.was_ready.wait()

    async def watch(self) -> None:
        """Runs until a keeping task fails, which is a bug: a process that ends is started again."""
        while True:
            self._tasks_changed.clear()
            changed = asyncio.create_task(self._tasks_changed.wait())
            tasks: set[asyncio.Task[Any]] = {changed, *self._tasks.values()}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            # One that was taken away meanwhile was cancelled, which is no bug.
            for task in done & set(self._tasks.values()):
                task.result()

    async def add(self, spec: ProcessSpec) -> None:
        """Start one more; returns when it is ready. Raises StartFailed, and then it is gone again."""
        child = self.children[spec.name] = Child(spec)
        keeping = asyncio.create_task(self._keep(child), name=spec.name)
        ready = asyncio.create_task(child.was_ready.wait())
        try:
            await asyncio.wait({keeping, ready}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
        except BaseException:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._end(child, child.spec.stop_within_s)
            del self.children[spec.name]
            raise
        finally:
            ready.cancel()
        self._tasks[spec.name] = keeping
        self._tasks_changed.set()

    async def remove(self, name: str, within_s: float, number: signal.Signals = signal.SIGTERM) -> bool:
        """Ask it to finish what it has and end; after `within_s` it is killed. True if it ended by itself."""
        child = self.children[name]
        task = self._tasks.pop(name)
        self._tasks_changed.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._enter(child, Phase.LEAVING)
        ended = await self._end(child, within_s, number)
        del self.children[name]
        return ended

    async def replace_in_place(self, name: str, within_s: float) -> None:
        """End it and let it be started again, for a process that holds what a second one cannot have. Raises
        StartFailed when it is not ready in time."""
        child = self.children[name]
        if child.process is not None:
            _signal_group(child.process.pid, signal.SIGTERM)
        before = child.restarts
        try:
            async with asyncio.timeout(within_s):
                while child.restarts == before or child.phase is not Phase.READY:  # noqa: ASYNC110 - several things change it
                    await asyncio.sleep(PROBE_EVERY_S)
        except TimeoutError:
            raise self._failed(child, f"not ready within {within_s:g} s") from None

    def living(self) -> dict[str, int]:
        """The processes that run: name -> pid, which is also their group."""
        return {name: child.pid for name, child in self.children.items() if child.pid is not None}

    async def stop(self) -> None:
        """Stop every process, the last started first. Safe to call at any moment, also twice."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        children = list(reversed(self.children.values()))
        gateways = [child for child in children if child.spec.role is Role.GATEWAY]
        for group in (gateways, [child for child in children if child not in gateways]):
            await asyncio.gather(*(self._end(child, child.spec.stop_within_s) for child in group))

    async def _keep(self, child: Child) -> None:
        for name in child.spec.after:
            await self.children[name].was_ready.wait()
        ends = 0
        while True:
            started = time.monotonic()
            self._enter(child, Phase.STARTING)
            log = self._state.log_of(child.spec.name)
            child.log_start = log.stat().st_size if log.exists() else 0
            process = child.process = await self._spawn(child.spec)
            await self._until_ready(child, process)
            code = await process.wait()
            _kill_group(process.pid)  # what the process leaves behind would hold ports and memory
            if child.phase is Phase.READY:
                await self._end_those_that_map(child)
            ends = ends_after(ends, time.monotonic() - started)
            child.restarts += 1
            self._enter(child, Phase.RESTARTING)
            self._note(child, f"ended with {code}; starting again in {pause_s(ends):g} s")
            await asyncio.sleep(pause_s(ends))
            await self._those_before_again(child)

    async def _those_before_again(self, child: Child) -> None:
        """What it starts after may have ended with it: two workers that start together on one GPU take each other's
        memory. One that does not come back holds nobody up for longer than a start may take."""
        deadline = time.monotonic() + child.spec.ready_within_s
        before = [self.children[name] for name in child.spec.after if name in self.children]
        again = (Phase.STARTING, Phase.RESTARTING)
        while any(each.phase in again for each in before) and time.monotonic() < deadline:  # noqa: ASYNC110 - several things change it
            await asyncio.sleep(PROBE_EVERY_S)

    async def _until_ready(self, child: Child, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + child.spec.ready_within_s
        while process.returncode is None:
            if await is_ready(child.spec.probe):
                self._enter(child, Phase.READY)
                child.was_ready.set()
                return
            if time.monotonic() > deadline:
                if not child.was_ready.is_set():
                    raise self._failed(child, f"not ready within {child.spec.ready_within_s:g} s")
                _kill_group(process.pid)  # it hangs: end it, so that it is started again
                return
            await asyncio.sleep(PROBE_EVERY_S)
        if not child.was_ready.is_set():
            raise self._failed(child, ended_because(process.returncode, self._log_tail(child)))

    async def _end_those_that_map(self, child: Child) -> None:
        """They are started again by their own tasks."""
        role = child.spec.memory_mapped_by
        holders = [each for each in self.children.values() if role is not None and each.spec.role is role]
        living = [(each, each.process) for each in holders if each.process is not None and each.pid is not None]
        for each, process in living:
            self._note(each, f"maps the memory of {child.spec.name}, which has ended: starting again")
            _signal_group(process.pid, signal.SIGTERM)
        for each, process in living:
            try:
                async with asyncio.timeout(each.spec.stop_within_s):
                    await process.wait()
            except TimeoutError:
                _kill_group(process.pid)

    async def _spawn(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        tether = (sys.executable, "-m", "prime_inference.local.tether", str(os.getpid()), str(spec.nice), "--")
        with self._state.log_of(spec.name).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *tether,
                *spec.argv,
                env=spec.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                pass_fds=spec.pass_fds,
            )

    async def _end(self, child: Child, within_s: float, number: signal.Signals = signal.SIGTERM) -> bool:
        """True if it ended by itself."""
        process, by_itself = child.process, True
        if process is None:
            return by_itself
        if process.returncode is None:
            _signal_group(process.pid, number)
            # A stopped process (SIGSTOP) gets its SIGTERM only once it runs again.
            _signal_group(process.pid, signal.SIGCONT)
            try:
                async with asyncio.timeout(within_s):
                    await process.wait()
            except TimeoutError:
                by_itself = False
                self._note(child, f"did not end within {within_s:g} s: killed")
        _kill_group(process.pid)
        await process.wait()
        self._enter(child, Phase.STOPPED)
        return by_itself

    def _enter(self, child: Child, phase: Phase) -> None:
        child.phase, child.since = phase, time.monotonic()
        self._changed(child)

    def _failed(self, child: Child, reason: str) -> StartFailed:
        return StartFailed(child.spec.name, reason, str(self._state.log_of(child.spec.name)))

    def _log_tail(self, child: Child) -> str:
        with self._state.log_of(child.spec.name).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(child.log_start, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _note(self, child: Child, text: str) -> None:
        with self._state.log_of(child.spec.name).open("a", encoding="utf-8") as log:
            log.write(f"--- supervisor: {text}\n")


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return  # the whole group has ended


def _kill_group(pid: int) -> None:
    _signal_group(pid, signal.SIGKILL)
