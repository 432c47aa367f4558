"""The supervisor with small processes."""

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prime_inference.local.errors import StartFailed
from prime_inference.local.ports import free_ports
from prime_inference.local.spec import HttpOk, ProcessSpec, Role
from prime_inference.local.state_dir import StateDir
from prime_inference.local.supervisor import Child, Phase, Supervisor

SERVER = (
    "import http.server,sys\n"
    "http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')"
)


def serving(name: str, port: int, after: tuple[str, ...] = (), code: str = SERVER) -> ProcessSpec:
    probe = HttpOk(f"http://127.0.0.1:{port}/")
    argv = (sys.executable, "-c", code, str(port))
    return ProcessSpec(name, Role.VALKEY, argv, dict(os.environ), probe, after, ready_within_s=20, stop_within_s=5)


class Seen:
    def __init__(self) -> None:
        self.phases: list[tuple[str, Phase]] = []

    def __call__(self, child: Child) -> None:
        self.phases.append((child.spec.name, child.phase))


async def test_processes_start_in_order_and_stop_without_a_trace(tmp_path: Path) -> None:
    state, seen = StateDir(tmp_path / "state"), Seen()
    one, two = free_ports(2)
    with state.locked():
        supervisor = Supervisor([serving("one", one), serving("two", two, after=("one",))], state, seen)
        await supervisor.start()
        pids = supervisor.living()
        await supervisor.stop()
    assert seen.phases.index(("one", Phase.READY)) < seen.phases.index(("two", Phase.STARTING))
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


async def test_a_killed_process_comes_back_and_its_children_do_not_stay(tmp_path: Path) -> None:
    state, seen = StateDir(tmp_path / "state"), Seen()
    (port,) = free_ports(1)
    with_child = "import subprocess,sys; subprocess.Popen(['sleep','300'])\n" + SERVER
    with state.locked():
        supervisor = Supervisor([serving("one", port, code=with_child)], state, seen)
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        first = supervisor.living()["one"]
        (sleeper,) = psutil.Process(first).children()
        os.kill(first, 9)
        async with asyncio.timeout(20):
            while (
                supervisor.living().get("one") in (None, first) or supervisor.children["one"].phase is not Phase.READY
            ):
                await asyncio.sleep(0.05)
        assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE
        watching.cancel()
        await supervisor.stop()
    assert ("one", Phase.RESTARTING) in seen.phases


async def test_what_maps_a_dead_ones_memory_ends_before_it_starts_again(tmp_path: Path) -> None:
    state, seen = StateDir(tmp_path / "state"), Seen()
    one, two, three = free_ports(3)
    prefill = replace(serving("prefill", one), role=Role.PREFILL, memory_mapped_by=Role.DECODE)
    decode = replace(serving("decode", two, after=("prefill",)), role=Role.DECODE)
    with state.locked():
        supervisor = Supervisor([prefill, decode, serving("other", three)], state, seen)
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        first = supervisor.living()
        os.kill(first["prefill"], 9)
        async with asyncio.timeout(20):
            while any(supervisor.children[name].restarts < 1 for name in ("prefill", "decode")) or any(
                child.phase is not Phase.READY for child in supervisor.children.values()
            ):
                await asyncio.sleep(0.05)
        second = supervisor.living()
        watching.cancel()
        await supervisor.stop()
    assert second["other"] == first["other"]
    assert second["decode"] != first["decode"]
    again = seen.phases[seen.phases.index(("decode", Phase.RESTARTING)) :]
    assert again.index(("prefill", Phase.READY)) < again.index(("decode", Phase.STARTING))


async def test_the_reason_of_a_failed_start_is_of_this_run(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.locked():
        state.log_of("one").write_text("ValueError: the reason of last week\n")
        for code, reason in (
            ("raise ValueError('today')", "ValueError: today"),
            ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ):
            supervisor = Supervisor([serving("one", 1, code=code)], state, Seen())
            with pytest.raises(StartFailed, match=reason):
                await supervisor.start()
            await supervisor.stop()


async def test_a_proxy_of_the_environment_is_not_asked_for_what_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        state = StateDir(tmp_path / "state")
        (port,) = free_ports(1)
        with state.locked():
            supervisor = Supervisor([serving("one", port)], state, Seen())
            await supervisor.start()
            await supervisor.stop()


async def test_processes_come_and_go_while_the_others_are_watched(tmp_path: Path) -> None:
    state, seen = StateDir(tmp_path / "state"), Seen()
    one, two = free_ports(2)
    with state.locked():
        supervisor = Supervisor([serving("one", one)], state, seen)
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        await supervisor.add(serving("two", two))
        assert set(supervisor.living()) == {"one", "two"}
        pid = supervisor.living()["two"]
        assert await supervisor.remove("two", within_s=5)
        assert ("two", Phase.LEAVING) in seen.phases
        assert ("two", Phase.RESTARTING) not in seen.phases
        assert not psutil.pid_exists(pid)
        first = supervisor.living()["one"]
        await supervisor.replace_in_place("one", within_s=15)
        assert supervisor.living()["one"] != first
        assert not watching.done()
        watching.cancel()
        await supervisor.stop()


async def test_one_that_cannot_start_is_told_and_the_others_stay(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    one, two = free_ports(2)
    with state.locked():
        supervisor = Supervisor([serving("one", one)], state, Seen())
        await supervisor.start()
        with pytest.raises(StartFailed, match="two did not start"):
            await supervisor.add(serving("two", two, code="raise SystemExit('no room')"))
        assert set(supervisor.living()) == {"one"}
        assert set(supervisor.children) == {"one"}
        await supervisor.stop()


async def test_one_that_does_not_end_in_time_is_killed_and_that_is_said(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    one, two = free_ports(2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
    with state.locked():
        supervisor = Supervisor([serving("one", one)], state, Seen())
        await supervisor.start()
        await supervisor.add(serving("two", two, code=deaf))
        assert not await supervisor.remove("two", within_s=0.5)
        assert set(supervisor.living()) == {"one"}
        await supervisor.stop()
