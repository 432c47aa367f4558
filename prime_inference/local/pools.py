"""Which workers come and which go, when a pool is to have another size: pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Target(StrEnum):
    """What `prime-inference restart` takes."""

    GATEWAY = "gateway"
    FRONTEND = "frontend"
    PREFILL = "prefill"
    DECODE = "decode"
    VALKEY = "valkey"
    ALL = "all"


ORDER = (Target.VALKEY, Target.PREFILL, Target.DECODE, Target.FRONTEND, Target.GATEWAY)
"""Of ALL: whatever is behind goes first, so that what is new in front never meets what is old behind for long."""


@dataclass(frozen=True)
class Change:
    come: tuple[str, ...] = ()
    go: tuple[str, ...] = ()


def number_of(name: str) -> int:
    """`decode-3` is 3; a name without a number is 0."""
    found = re.search(r"-(\d+)$", name)
    return int(found[1]) if found else 0


def next_name(stem: str, names: Iterable[str]) -> str:
    """A name that none has now. Numbers are not used again while a higher one lives: logs keep their names."""
    taken = [number_of(name) for name in names if name == stem or name.startswith(f"{stem}-")]
    return f"{stem}-{max(taken, default=-1) + 1}"


def resized(stem: str, names: Iterable[str], size: int) -> Change:
    """From the pool as it is to `size` workers; the newest go first. Raises ValueError for a size below one."""
    if size < 1:
        raise ValueError("a pool keeps one worker at least: without it, nothing of its kind is served")
    pool = sorted((name for name in names if name.startswith(f"{stem}-")), key=number_of)
    come: list[str] = []
    while len(pool) + len(come) < size:
        come.append(next_name(stem, [*pool, *come]))
    return Change(tuple(come), tuple(reversed(pool[size:])))
