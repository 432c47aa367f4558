"""The scheduler's client of one rank's server, translated to that rank's own prompt (shard_prompt.py).

LMCache's scheduler adapter asks all servers for the whole prompt and takes the smallest answer. Behind this client each
server is asked for its rank's chunks, and its answer comes back as the rank's reach in the real prompt; so the smallest is
the usable prefix (prefix.py), and the locks that the adapter releases beyond it are those of chunks that are held.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prime_inference.kv.sharding.prefix import reach
from prime_inference.kv.sharding.shard_prompt import owned_below, shard_prompt


class Told:
    """An LMCache future whose result is translated. None, which means "not yet", stays None."""

    def __init__(self, inner: Any, translate: Callable[[int], int]) -> None:
        self._inner = inner
        self._translate = translate

    def query(self) -> bool:
        done: bool = self._inner.query()
        return done

    def wait(self, timeout: float | None = None) -> bool:
        done: bool = self._inner.wait(timeout)
        return done

    def result(self, timeout: float | None = None) -> int | None:
        found = self._inner.result(timeout)
        return None if found is None else self._translate(int(found))


class ShardClient:
    """Calls that carry no key pass through."""

    def __init__(self, client: Any, rank: int, world: int, chunk_tokens: int, done: Callable[[object], Any]) -> None:
        """`done` makes a future that has ended with the given result."""
        self._client = client
        self._rank = rank
        self._world = world
        self._chunk_tokens = chunk_tokens
        self._done = done
        self._asked: dict[str, int] = {}
        """Request -> whole chunks of its prompt that were asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lookup(self, key: Any, readers: int) -> Any:
        self._asked[key.request_id] = key.end // self._chunk_tokens
        own = self._own(key)
        return self._done(None) if own.start == own.end else self._client.lookup(own, readers)

    def query_prefetch_status(self, request_id: str) -> Any:
        chunks = self._asked.get(request_id, 0)
        if not owned_below(chunks, self._rank, self._world):
            return self._done(chunks)  # owns none of them, so limits nothing
        return Told(
            self._client.query_prefetch_status(request_id), lambda found: reach(self._rank, self._world, found, chunks)
        )

    def free_lookup_locks(self, key: Any, readers: int) -> Any:
        own = self._own(key)
        return self._done(None) if own.start == own.end else self._client.free_lookup_locks(own, readers)

    def end_session(self, request_id: str) -> Any:
        self._asked.pop(request_id, None)
        return self._client.end_session(request_id)

    def _own(self, key: Any) -> Any:
        start, end = (
            owned_below(tokens // self._chunk_tokens, self._rank, self._world) * self._chunk_tokens
            for tokens in (key.start, key.end)
        )
        tokens = shard_prompt(key.token_ids, self._chunk_tokens, self._rank, self._world)
        return replace(key, token_ids=tuple(tokens), start=start, end=end)
