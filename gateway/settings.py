"""Everything the gateway process can be told, read once from environment variables `PRIME_GATEWAY_*`.

An unknown variable with that prefix stops the start: a typo must not silently become a default.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "PRIME_GATEWAY_"

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class GatewaySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Address of the public API."""
    port: Port = 8000
    """Port of the public API."""
    listen_fd: int | None = Field(default=None, ge=3)
    """An open listening socket to serve the public API on, instead of binding one: whoever holds it can start a second
    process on it, and tell the first to hand over (SIGUSR1)."""
    internal_host: str = "127.0.0.1"
    """Address of the internal listener: metrics and health, never reachable from outside."""
    internal_port: Port = 8001
    """Port of the internal listener."""
    fleet_file: Path
    """YAML file of models and deployments (gateway/fleet/registry.py)."""
    keys_file: Path
    """YAML file of API keys (gateway/accounts/keys.py)."""
    valkey_url: str | None = None
    """Valkey for settle records and for every site that the fleet file gives none of its own: `redis://...`, or
    `redis+sentinel://host:26379,host:26379/PRIMARY` where Sentinels know the primary. Without one, records are
    only logged, and breakers, leases and limits are this process's alone: right for one replica only."""
    valkey_password: SecretStr | None = None
    """For the sites' Valkeys of the fleet file (`valkey_url` carries its own)."""
    headroom: bool = True
    """Hold a little leased capacity ahead, so that most requests need no trip to Valkey. Off: every request takes the
    trip."""
    reload_seconds: Seconds = 1.0
    """How often the fleet and keys files are looked at for a change."""
    secret: SecretStr = Field(min_length=1)
    """Keys the hashes of tenants and sessions that leave for the engines. The same on every replica."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, gt=0)
    """Largest request body. A million tokens of text are about 5 MB; images in base64 are larger."""
    max_event_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    """Largest single event relayed from a deployment."""
    header_timeout_seconds: Seconds = 10.0
    """From a connection, or a request's first byte, to its last header; whoever is slower is cut off."""
    connect_timeout_seconds: Seconds = 2.0
    """To a Dynamo frontend. Same site, so 2 s means it is not there."""
    queue_seconds: float = Field(default=2.0, ge=0.0)
    """How long an interactive request may wait for capacity when no deployment has any; a routed key's waits a tenth of
    it, batch not at all. An early 429 is worth more to a client than a long wait."""
    first_event_timeout_seconds: Seconds = 60.0
    """From sending the request to the first event, for a prompt of no length: covers the deployment's queue. Grows with
    the uncached tokens, at the deployment's `prefill_tokens_per_second`."""
    keepalive_seconds: Seconds = 5.0
    """Without an event for this long, a client that asked for a stream gets its first comment line, and then one each
    time again: proxies cut silent connections at 60 s. From the first on, a failure is an event in the stream."""
    idle_timeout_seconds: Seconds = 60.0
    """Between two events of a running stream; comments are none. Dynamo itself lets a silent stream hang
    (ai-dynamo/dynamo issue 13088)."""
    total_timeout_seconds: Seconds = 3600.0
    """A whole request."""
    drain_seconds: Seconds = 30.0
    """After SIGTERM, running requests may finish for this long."""
    otlp_endpoint: str | None = None
    """Where spans go, the whole URL (`http://collector:4318/v1/traces`). Needs the extra `otel`. Without it there are none."""
    trace_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """The share of requests with a span; one whose client sent a `traceparent` follows that."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _spans_can_be_made(self) -> Self:
        names = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        if self.otlp_endpoint is not None and not all(_importable(name) for name in names):
            raise ValueError("otlp_endpoint needs a gateway that was installed with the extra `otel`")
        return self


def _importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class SettingsError(Exception):
    """The environment does not describe a gateway; the message names the variable."""


def load_settings(environment: Mapping[str, str] | None = None) -> GatewaySettings:
    """Read the settings from the environment. Raises SettingsError naming what is unknown, missing or wrong."""
    environment = os.environ if environment is None else environment
    known = {PREFIX + name.upper() for name in GatewaySettings.model_fields}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise SettingsError(f"unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    given = {name[len(PREFIX) :].lower(): value for name, value in environment.items() if name in known}
    try:
        return GatewaySettings.model_validate(given)
    except ValidationError as error:
        lines = [
            f"{PREFIX}{str(item['loc'][0] if item['loc'] else '').upper()}: {item['msg']}" for item in error.errors()
        ]
        raise SettingsError("; ".join(lines)) from error
