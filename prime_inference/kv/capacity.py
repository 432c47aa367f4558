"""The cost model of a cached prefix: one implementation, used by the gate and by the planner.

With n tokens, s bytes of KV a token, B the bandwidth that the tier gives to one prompt, t0 the fixed cost of a load
and R the prefill rate:

    load = t0 + n * s / B        recompute = n / R        a hit pays if load < recompute

For t0 = 0 the length cancels and a hit pays if B > B* = s * R. For t0 > 0 there is a shortest hit that pays as well.

A load inside the engine step makes the engine a single-server queue of utilisation rho = arrival rate * service time.
At rho >= 1 it has no steady state, so this module answers with the growth of the backlog and never with a wait.
"""

import math
from dataclasses import dataclass, replace

CHUNK_TOKENS = 256
"""Tokens in one of LMCache's chunks: its default, and the unit of every store, lookup and load here."""

ROW_BYTES_FP8 = 576
"""One token of one layer, latent attention in FP8: 512 latent values and 64 positional ones."""

ROW_BYTES_NVFP4 = 352
"""The same in NVFP4: 512 values of 4 bits (256), 32 FP8 scales, 64 positional values in FP8."""

INDEXER_ROW_BYTES = 132
"""One token of one sparse-attention indexer: 128 FP8 values and a 4-byte scale."""


@dataclass(frozen=True)
class KvFormat:
    """What one token leaves in the cache of a model with latent attention.

    `layers` and `indexers` count the multi-token-prediction layer too where it is loaded. `unchanged_bytes_per_token`
    is state that does not shrink with the row format; it is a calibration input, measured and not derived.
    """

    row_bytes: int
    layers: int
    indexer_row_bytes: int = 0
    indexers: int = 0
    unchanged_bytes_per_token: int = 0

    @property
    def bytes_per_token(self) -> int:
        """layers * row + indexers * indexer row + the unchanged part."""
        return self.layers * self.row_bytes + self.indexers * self.indexer_row_bytes + self.unchanged_bytes_per_token

    @property
    def chunk_bytes(self) -> int:
        return self.bytes_per_token * CHUNK_TOKENS

    def with_unchanged(self, bytes_per_token: int) -> "KvFormat":
        """The same rows beside another unchanged part."""
        return replace(self, unchanged_bytes_per_token=bytes_per_token)


GLM_5_3_FP8 = KvFormat(row_bytes=ROW_BYTES_FP8, layers=79, indexer_row_bytes=INDEXER_ROW_BYTES, indexers=22)
"""GLM-5.3 with its prediction layer: 78 + 1 layers; 21 of the 78 and the prediction layer carry an indexer."""

GLM_5_3_NVFP4 = KvFormat(row_bytes=ROW_BYTES_NVFP4, layers=79, indexer_row_bytes=INDEXER_ROW_BYTES, indexers=22)
"""The same with NVFP4 rows; the indexer keeps its FP8 row."""


def cached_tokens(pool_bytes: int, kv: KvFormat) -> int:
    """Tokens that a pool of this size holds."""
    return pool_bytes // kv.bytes_per_token


def unchanged_bytes_between(one: KvFormat, tokens_of_one: int, other: KvFormat, tokens_of_other: int) -> int:
    """Calibration: the unchanged part u, in bytes a token, with which one pool holds either count of tokens.

    tokens_1 (s_1 + u) = tokens_2 (s_2 + u), s as the formats give it. ValueError where the second format is said to hold
    more tokens than its smaller rows allow.
    """
    if tokens_of_other <= tokens_of_one:
        raise ValueError(f"the other format must hold more tokens than {tokens_of_one}, got {tokens_of_other}")
    unchanged = tokens_of_one * one.bytes_per_token - tokens_of_other * other.bytes_per_token
    if unchanged < 0:
        raise ValueError(f"{tokens_of_other} tokens are more tokens than the rows alone allow beside {tokens_of_one}")
    return round(unchanged / (tokens_of_other - tokens_of_one))


def load_seconds(tokens: int, bytes_per_token: int, bytes_per_s: float, fixed_s: float = 0.0) -> float:
    """t0 + n * s / B. Nothing to load costs nothing; a tier that moves no bytes never finishes (infinity)."""
    if tokens == 0:
        return 0.0
    if bytes_per_s <= 0.0:
        return math.inf
    return fixed_s + tokens * bytes_per_token / bytes_per_s


def recompute_seconds(tokens: int, tokens_per_s: float) -> float:
    """n / R."""
    return 0.0 if tokens == 0 else tokens / tokens_per_s


def break_even_bytes_per_s(bytes_per_token: int, tokens_per_s: float) -> float:
    """B* = s * R: the bandwidth one prompt needs before loading any length beats computing it."""
    return bytes_per_token * tokens_per_s


def shortest_paying_hit_tokens(
    bytes_per_token: int, bytes_per_s: float, tokens_per_s: float, fixed_s: float
) -> int | None:
    """The shortest hit that is loaded sooner than computed; None where the tier is at or below B*.

    From t0 + n s / B < n / R: n > t0 / (1 / R - s / B).
    """
    if bytes_per_s <= break_even_bytes_per_s(bytes_per_token, tokens_per_s):
        return None
    gained_s_per_token = 1.0 / tokens_per_s - bytes_per_token / bytes_per_s
    return math.floor(fixed_s / gained_s_per_token) + 1


def utilisation(arrivals_per_s: float, service_s: float) -> float:
    """rho = lambda * T."""
    return arrivals_per_s * service_s


def mean_wait_seconds(arrivals_per_s: float, service_s: float, service_second_moment_s2: float | None = None) -> float:
    """Mean wait before service of Poisson arrivals at one server: lambda * E[T^2] / (2 (1 - rho)), Pollaczek-Khinchine.

    Without a second moment every service takes `service_s` (M/D/1). Infinity at rho >= 1, where no mean exists.
    """
    rho = utilisation(arrivals_per_s, service_s)
    if rho >= 1.0:
        return math.inf
    second_moment_s2 = service_s**2 if service_second_moment_s2 is None else service_second_moment_s2
    return arrivals_per_s * second_moment_s2 / (2.0 * (1.0 - rho))


def backlog_seconds(arrivals_per_s: float, service_s: float, horizon_s: float) -> float:
    """Work left over after `horizon_s` of arrivals, in seconds of service: (rho - 1) * horizon, never below zero."""
    return max(0.0, utilisation(arrivals_per_s, service_s) - 1.0) * horizon_s
