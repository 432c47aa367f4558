"""A thread that sees LMCache's server go and come back, and the wiring into LMCache's adapters (ZMQ shell).

The watch holds an idle connection of its own: the kernel closes it the moment the server dies, and no request is needed to
learn of it. When a connection stands again, the recovery is tried until it succeeds: a PING, and on a worker the
registration of its KV caches.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from lmcache.v1.multiprocess.futures import MessagingFuture
from zmq.utils.monitor import recv_monitor_message

from prime_inference.kv.server_health import NO_ANSWER, GuardedClient, Health

log = logging.getLogger("vllm.prime_inference.tier")

LOOK_EVERY_S = 0.5
"""How often a recovery is tried, and how soon `stop` is seen; a loss is seen at once."""

TRANSFERS = dict.fromkeys(("prepare_store", "commit_store", "prepare_retrieve", "commit_retrieve"), NO_ANSWER)
"""The worker's calls, made on the thread that runs the model."""

LOOKUPS: dict[str, object] = {"lookup": None, "query_prefetch_status": 0}
"""The scheduler's. A lookup that was acknowledged with nothing found is a miss; `end_session` waits for both."""


class ServerWatch(threading.Thread):
    """`recover` is called on this thread while the server is lost and a connection stands; True when it succeeded."""

    def __init__(self, url: str, health: Health, recover: Callable[[], bool]) -> None:
        super().__init__(name="prime-lmcache-watch", daemon=True)
        self._url = url
        self._health = health
        self._recover = recover
        self._stop_asked = threading.Event()
        self.connected = threading.Event()
        self.start()

    @property
    def losses(self) -> int:
        return self._health.losses

    def stop(self, timeout_s: float = 2.0) -> None:
        self._stop_asked.set()
        self.join(timeout_s)

    def run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        idle = context.socket(zmq.DEALER)
        idle.linger = 0
        events = idle.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            idle.connect(self._url)
            while not self._stop_asked.is_set():
                if events.poll(int(LOOK_EVERY_S * 1000)):
                    self._saw(int(recv_monitor_message(events)["event"]))
                if self.connected.is_set() and not self._health.is_set():
                    self._try_recovery()
        finally:
            idle.disable_monitor()
            events.close(0)
            idle.close(0)
            context.term()

    def _saw(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected.set()
        elif self.connected.is_set():
            self.connected.clear()
            log.warning("LMCache's server at %s went away: computing instead of loading", self._url)
            self._health.clear()

    def _try_recovery(self) -> None:
        turn = self._health.turn
        if self._recover() and self._health.restore(turn):
            log.warning("LMCache's server at %s is used again", self._url)


def answers_ping(client: Any, instance: int | None, within_s: float) -> bool:
    try:
        return bool(client.ping(instance).result(timeout=within_s))
    except TimeoutError:
        return False


def guard_worker(adapter: Any, url: str, answer_within_s: float) -> ServerWatch:
    """Bound the worker adapter's calls and have it registered anew with a server that was started again.

    Call after the adapter's construction and before `register_kv_caches`.
    """
    health = Health()
    register_again = adapter._reregister_kv_caches_callback
    submit_store = adapter.submit_store_request

    def store_unless_lost(*arguments: Any, **named: Any) -> None:
        try:
            submit_store(*arguments, **named)
        except TimeoutError:
            log.warning("a store was given up: LMCache's server did not answer within %g s", answer_within_s)

    adapter._mq_timeout = answer_within_s
    adapter._health_event = health
    adapter.req_client = GuardedClient(adapter.req_client, health, TRANSFERS, MessagingFuture)
    adapter.submit_store_request = store_unless_lost
    adapter._reregister_kv_caches_callback = lambda: True  # by LMCache's heartbeat: the watch does it
    return ServerWatch(
        url,
        health,
        lambda: answers_ping(adapter.req_client, adapter.instance_id, answer_within_s) and register_again(),
    )


def guard_scheduler(adapter: Any, answer_within_s: float) -> list[ServerWatch]:
    """Bound the scheduler adapter's calls, and use a server again that answers again. One watch a server."""
    adapter._mq_timeout = answer_within_s
    watches = []
    for url in adapter._server_urls:
        health = adapter._health_events[url] = Health()
        client = adapter.req_clients[url]
        adapter.req_clients[url] = GuardedClient(client, health, LOOKUPS, MessagingFuture)
        watches.append(ServerWatch(url, health, partial(answers_ping, client, None, answer_within_s)))
    return watches
