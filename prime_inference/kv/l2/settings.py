"""What LMCache hands over as `adapter_params`, checked before any socket is opened."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

SCHEMES = ("resp", "redis", "valkey")
LARGEST_PORT = 65_535


class L2SettingsError(ValueError):
    """A setting that cannot be used; the message names it and the cure."""


@dataclass(frozen=True)
class ShardAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class L2Settings:
    """One client's settings. Times in seconds, each counted from the submit call."""

    shards: tuple[ShardAddress, ...]
    lookup_timeout_s: float = 0.5
    """A lookup stands in the scheduler's way, so it is short; a shard too slow for it is worth no hit."""
    load_timeout_s: float = 2.0
    """Longer than any load worth taking (16k tokens of GLM-5.3 are computed in 0.31 s); the gate's own is shorter."""
    store_timeout_s: float = 5.0
    """Nobody waits for a store, but its buffer is held until it ends."""
    load_connections: int = 4
    """Connections (and threads) a shard for loads: Valkey's I/O threads serve one connection each."""
    store_connections: int = 2
    """The same for stores; apart from loads, so that a burst of stores never delays one."""
    username: str = ""
    password: str = ""


def parse_settings(
    urls: str | Sequence[str],
    shards: int | None = None,
    password_env: str = "",
    environment: Mapping[str, str] = os.environ,
    **numbers: object,
) -> L2Settings:
    """Settings from the JSON object in `--l2-adapter`.

    `urls` is a list with one URL a shard, or one template in which `{shard}` becomes 0 .. shards - 1. The password is
    named by the environment variable that holds it, since LMCache writes its adapter's parameters to the log.

    Raises L2SettingsError: unknown key, unresolved brace, template without `shards`, port missing, number out of range.
    """
    unknown = sorted(set(numbers) - set(_POSITIVE) - {"username"})
    if unknown:
        raise L2SettingsError(
            f"unknown key {unknown[0]!r}; allowed: urls, shards, username, password_env, {', '.join(_POSITIVE)}"
        )
    if password_env and password_env not in environment:
        raise L2SettingsError(f"password_env names {password_env}, which is not set: export it for the LMCache server")
    values: dict[str, float | int] = {}
    for name, kind in _POSITIVE.items():
        if name in numbers:
            values[name] = _positive(name, numbers[name], kind)
    return L2Settings(
        shards=tuple(_address(url) for url in _expand(urls, shards)),
        username=str(numbers.get("username", "")),
        password=environment[password_env] if password_env else "",
        **values,  # type: ignore[arg-type]  # names and kinds come from _POSITIVE
    )


_POSITIVE: dict[str, type[float] | type[int]] = {
    "lookup_timeout_s": float,
    "load_timeout_s": float,
    "store_timeout_s": float,
    "load_connections": int,
    "store_connections": int,
}


def _positive(name: str, value: object, kind: type[float] | type[int]) -> float | int:
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not value > 0:
        raise L2SettingsError(f"{name} must be a positive {'whole number' if kind is int else 'number'}, got {value!r}")
    return kind(value)


def _expand(urls: str | Sequence[str], shards: int | None) -> list[str]:
    if isinstance(urls, str):
        if shards is None:
            if "{shard}" in urls:
                raise L2SettingsError(f"{urls!r} is a template: say how many shards there are with shards=N")
            return [urls]
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise L2SettingsError(f"shards must be a whole number of at least 1, got {shards!r}")
        if shards > 1 and "{shard}" not in urls:
            raise L2SettingsError(f"{urls!r} would be all {shards} shards: put {{shard}} where their names differ")
        return [urls.replace("{shard}", str(shard)) for shard in range(shards)]
    listed = list(urls)
    if not listed:
        raise L2SettingsError("urls is empty: name at least one shard")
    if shards is not None and shards != len(listed):
        raise L2SettingsError(f"shards is {shards} but urls lists {len(listed)}: leave shards out or make them agree")
    if len(set(listed)) != len(listed):
        raise L2SettingsError("urls names one shard twice: each URL must be another Valkey")
    return listed


def _address(url: str) -> ShardAddress:
    brace = re.search(r"\{[^}]*\}", url)
    if brace:
        raise L2SettingsError(
            f"{url!r} still holds {brace.group()}: only {{shard}} is filled in here; with one LMCache server a rank, "
            "give each server the URL of its own shard"
        )
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise L2SettingsError(f"{url!r}: scheme must be one of {', '.join(SCHEMES)}")
    try:
        port = parts.port
    except ValueError as error:
        raise L2SettingsError(f"{url!r}: port must be a number up to {LARGEST_PORT}") from error
    if not parts.hostname or port is None or parts.path not in ("", "/") or parts.query or parts.username:
        raise L2SettingsError(f"{url!r}: write it as resp://host:port, credentials apart (username, password_env)")
    try:
        parts.hostname.encode("idna")
    except UnicodeError as error:
        raise L2SettingsError(f"{url!r}: {parts.hostname!r} cannot be a host name") from error
    return ShardAddress(parts.hostname, port)
