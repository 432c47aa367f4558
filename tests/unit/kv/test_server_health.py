"""The loss of LMCache's server, without a server: LMCache's futures are played by one with the same methods."""

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.server_health import NO_ANSWER, Answer, GuardedClient, Health, ServerLost


class Future:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: object = None
        self.error: BaseException | None = None

    def query(self) -> bool:
        return self.done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self.done.wait(timeout)

    def result(self, timeout: float | None = None) -> object:
        assert self.wait(timeout)
        if self.error is not None:
            raise self.error
        return self.value

    def set_result(self, value: object) -> None:
        self.value = value
        self.done.set()

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self.done.set()


class Client:
    """A server that never answers."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def _send(self, name: str) -> Future:
        self.sent.append(name)
        return Future()

    def prepare_retrieve(self, key: str) -> Future:
        return self._send(key)

    def lookup(self, key: str) -> Future:
        return self._send(key)

    def ping(self) -> str:
        return "pong"


def guarded(health: Health, client: Client) -> Any:
    return GuardedClient(client, health, {"prepare_retrieve": NO_ANSWER, "lookup": 0}, Future)


def test_a_call_in_flight_at_a_loss_ends_at_once_with_its_substitute() -> None:
    health, client = Health(), Client()
    calls = guarded(health, client)
    retrieve, look = calls.prepare_retrieve("a"), calls.lookup("b")
    threading.Timer(0.05, health.clear).start()
    began = time.monotonic()
    with pytest.raises(ServerLost):
        retrieve.result(timeout=30)
    assert look.result(timeout=30) == 0
    assert time.monotonic() - began < 5


def test_during_a_loss_nothing_is_sent_and_after_it_everything_is() -> None:
    health, client = Health(), Client()
    calls = guarded(health, client)
    health.clear()
    with pytest.raises(TimeoutError):
        calls.prepare_retrieve("lost").result(timeout=30)
    assert client.sent == []
    assert calls.ping() == "pong"
    assert health.restore(health.turn)
    calls.prepare_retrieve("found")
    assert client.sent == ["found"]


def test_a_call_that_is_not_answered_in_time_is_a_loss() -> None:
    health = Health()
    with pytest.raises(ServerLost):
        Answer(Future(), health).result(timeout=0.01)
    assert not health.is_set()
    assert health.losses == 1


def test_lmcaches_heartbeat_cannot_end_a_loss() -> None:
    health = Health()
    health.clear()
    health.set()
    assert not health.is_set()


@given(st.lists(st.sampled_from(["lose", "begin", "end", "set"]), max_size=30))
def test_only_a_recovery_begun_after_the_last_sign_of_trouble_ends_a_loss(steps: list[str]) -> None:
    health = Health()
    healthy, losses = True, 0
    begun: int | None = None
    trouble_since_begun = False
    for step in steps:
        if step == "lose":
            losses += healthy
            healthy, trouble_since_begun = False, True
            health.clear()
        elif step == "begin":
            begun, trouble_since_begun = health.turn, False
        elif step == "end" and begun is not None:
            healthy = healthy or not trouble_since_begun
            assert health.restore(begun) is healthy
        elif step == "set":
            health.set()
        assert health.is_set() is healthy
        assert health.losses == losses
