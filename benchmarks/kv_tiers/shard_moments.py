"""The Valkeys of a running stack, seen and touched from outside: which hold a tenant's chunks, which of them were read, and
the moment between a lookup and its load.

That moment is made, not waited for. One shard that holds a chunk of the prompt, the holder, is stopped before the prompt
is asked: the lookup goes to all shards at once and cannot end before the holder answers. When another, the victim, has
answered its part (its own log of commands says so), something is done to the victim, and the holder goes on. The lookup
then ends with "all there", and what was said of the victim is no longer true when the load comes.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

LOGGED_BYTES = 128
"""Valkey cuts an argument in its log off here."""

SEEN_WITHIN_S = 60.0
"""From the question to its lookup: the engine may be busy with prompts of the load."""

POLL_S = 0.002


class Shards:
    """`ports` in shard order; `pid_of` gives the process of a shard now."""

    def __init__(self, ports: Sequence[int], pid_of: Callable[[int], int]) -> None:
        self.ports = ports
        self._pid_of = pid_of

    def redis(self, shard: int) -> Redis:
        return Redis(host="127.0.0.1", port=self.ports[shard], socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    def allow(self, memory: int) -> None:
        """So many bytes a shard from now on, until it is started again."""
        for shard in range(len(self.ports)):
            self.redis(shard).config_set("maxmemory", memory)

    def log_commands(self, shard: int) -> None:
        """Every command from now on is in the shard's log; what was there is forgotten."""
        client = self.redis(shard)
        client.config_set("slowlog-max-len", 256)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()

    def keys_of(self, salt: str) -> dict[int, dict[bytes, int]]:
        """Shard -> the keys of this salt there and for how many seconds each was not read or written. A shard that is away
        holds nothing."""
        found: dict[int, dict[bytes, int]] = {}
        for shard in range(len(self.ports)):
            client = self.redis(shard)
            try:
                keys = list(client.scan_iter(match=f"*@{salt}", count=1000))
                idle = {key: client.object("idletime", key) for key in keys}
            except RedisError:
                continue
            if idle:
                found[shard] = {key: int(seconds) for key, seconds in idle.items() if seconds is not None}
        return found

    def send(self, shard: int, number: signal.Signals) -> None:
        os.kill(self._pid_of(shard), number)

    def until_answered(self, shard: int, keys: Sequence[bytes], over: Callable[[], bool]) -> float | None:
        """Seconds until the shard had answered the lookup; None if it had not when all was `over`, or never."""
        client, began = self.redis(shard), time.monotonic()
        while time.monotonic() - began < SEEN_WITHIN_S and not over():
            if any(asks_for(bytes(entry["command"]), keys) for entry in client.slowlog_get(64)):
                return time.monotonic() - began
            time.sleep(POLL_S)
        return None

    def evict(self, shard: int, keys: Sequence[bytes]) -> int:
        """Forget these keys; how many it held."""
        return int(self.redis(shard).delete(*keys))

    def evict_by_memory(self, shard: int, keys: Sequence[bytes]) -> int:
        """Let the shard evict by its own policy, by taking its memory away for a moment; how many of `keys` it evicted."""
        client = self.redis(shard)
        before = int(client.exists(*keys))
        memory = int(client.config_get("maxmemory")["maxmemory"] or 0)
        client.config_set("maxmemory", 1)
        try:
            deadline = time.monotonic() + 1.0
            while (left := int(client.exists(*keys))) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:
            client.config_set("maxmemory", memory)
        return before - left


def asks_for(command: bytes, keys: Sequence[bytes]) -> bool:
    """Is this line of a shard's log the question whether it holds one of these keys?"""
    name, _, argument = command.partition(b" ")
    logged = argument.partition(b"... (")[0]  # so it ends where it was cut off
    return (
        name.upper() == b"EXISTS" and len(logged) >= LOGGED_BYTES // 2 and any(key.startswith(logged) for key in keys)
    )


def victim_and_holder(
    held: dict[int, dict[bytes, int]], spared: frozenset[int] = frozenset()
) -> tuple[int, int] | None:
    """Two shards that hold a chunk of the prompt, the victim not among `spared`; None when there are no two."""
    victims = [shard for shard in held if shard not in spared]
    for victim in victims:
        for holder in held:
            if holder != victim:
                return victim, holder
    return None
