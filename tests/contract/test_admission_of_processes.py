"""Replicas as processes on a real Valkey, with the times of production: killed, paused, and what the others get."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.valkey_server import ValkeyServer

ROOT = Path(__file__).parents[2]
LIMIT = 20
BACK_WITHIN_S = 5.0
"""The promise after kill -9."""


class ReplicaProcess:
    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.replica_process", str(port), str(LIMIT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        self.settings = self._line()

    def ask(self, command: str) -> Any:
        self.send(command)
        return self._line()

    def send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def answer(self) -> Any:
        return self._line()

    @property
    def gone(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the replica is gone"
        return json.loads(line)


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    server = ValkeyServer().start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[list[ReplicaProcess]]:
    started: list[ReplicaProcess] = []
    yield started
    for each in started:
        each.close()


@pytest.fixture
def replicas(valkey: ValkeyServer, processes: list[ReplicaProcess]) -> list[ReplicaProcess]:
    """Three that live, hold nothing, know of each other and trust the sums."""
    for each in [each for each in processes if each.gone]:
        each.close()
        processes.remove(each)
    while len(processes) < 3:
        processes.append(ReplicaProcess(valkey.port))
    for each in processes:
        each.ask("release 1000")
    wait_until(lambda: all(each.ask("state")["replicas"] == 3 for each in processes), 10.0)
    wait_until(lambda: not any(each.ask("state")["settling"] for each in processes), 10.0)
    return list(processes)


def wait_until(happened: Callable[[], bool], seconds: float) -> float:
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - started


def take_all(replica: ReplicaProcess) -> int:
    """Until refused: the first asks may leave headroom at the others, which a refusal calls back."""
    taken = 0
    for _ in range(6):
        taken += replica.ask(f"take {LIMIT}")
        time.sleep(0.05)
    return taken


def take(replica: ReplicaProcess, wanted: int) -> int:
    """So many, asked for again where a trip on a crowded machine was given up after its 45 ms."""
    taken = 0
    for _ in range(6):
        taken += replica.ask(f"take {wanted - taken}")
        time.sleep(0.05)
    return taken


@pytest.mark.slow
def test_three_processes_under_load_never_run_more_than_the_limit(replicas: list[ReplicaProcess]) -> None:
    for each in replicas:
        each.send("churn 2.0")
    ran = [interval for each in replicas for interval in each.answer()]
    changes = sorted([(start, 1) for start, _ in ran] + [(end, -1) for _, end in ran])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    assert [each.ask("state")["troubles"] for each in replicas] == [0, 0, 0], "Valkey answered all the time"
    assert LIMIT // 2 < most <= LIMIT, "forty-five clients at twenty places"
    assert [each.ask("state")["in_use"] for each in replicas] == [0, 0, 0]
    print(f"{len(ran)} requests, at most {most} of {LIMIT} at once")


@pytest.mark.slow
def test_a_paused_replica_comes_back_with_its_true_load_and_admits_nothing_until_the_sum_fits(
    replicas: list[ReplicaProcess],
) -> None:
    paused, other, _ = replicas
    assert take(paused, 8) == 8
    paused.signal(signal.SIGSTOP)
    paused.send("take 5")  # waits in the pipe: the first thing it does when it wakes
    wait_until(lambda: other.ask("state")["replicas"] == 2, BACK_WITHIN_S + 1)
    assert take_all(other) == LIMIT, "the paused one's lease has ended"
    paused.signal(signal.SIGCONT)
    assert paused.answer() == 0, "not one request on a lease that had ended"
    # On a crowded machine the trip of those five may have been given up: the loss is heard of by the next heartbeat.
    wait_until(lambda: bool(paused.ask("state")["leases_lost"]), BACK_WITHIN_S)
    state = paused.ask("state")
    assert (state["in_use"], state["leases_lost"], state["alone"]) == (8, 1, False)
    other.ask("release 8")
    time.sleep(1.1)
    assert paused.ask("take 1") == 0, "12 + 8 fill it"
    other.ask("release 2")
    wait_until(lambda: paused.ask("take 1") == 1, 2.0)
    assert other.ask("take 5") <= 1


@pytest.mark.slow
def test_a_killed_replica_gives_its_capacity_back_within_five_seconds(replicas: list[ReplicaProcess]) -> None:
    killed, other, third = replicas
    held = take_all(killed)
    assert held == LIMIT
    assert other.ask("take 1") == third.ask("take 1") == 0
    killed.signal(signal.SIGKILL)
    died_at = time.monotonic()
    taken = [0, 0]

    def all_back() -> bool:
        taken[0] += other.ask("take 4")
        taken[1] += third.ask("take 4")
        assert sum(taken) <= LIMIT
        return sum(taken) == LIMIT

    wait_until(all_back, BACK_WITHIN_S)
    print(f"capacity back {time.monotonic() - died_at:.2f} s after kill -9")
    other.ask("leave")
    assert take_all(third) == taken[0], "who leaves gives back at once"
