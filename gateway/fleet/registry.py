"""What the gateway may send where: models, and the deployments that serve them.

Read from one YAML file. A snapshot is immutable: a request keeps the one it started with.

    models:
      - name: smollm2-135m-instruct      # what clients ask for and Dynamo serves
        context_tokens: 2048
        deployments: [local]
        tools: {format: glm, tokenizer: /models/smollm2}   # left out: the frontend's business
    deployments:
      - name: local
        site: local
        frontends: [http://127.0.0.1:8101]   # Dynamo frontends, without a path
        capacity: {requests: 256, tokens: 4000000}
    sites:                                   # only for sites with a Valkey of their own
      - name: local
        valkey: {address: "127.0.0.1:6379"}
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, ValidationError, model_validator

from gateway.admission.policy import Weight
from gateway.site.valkey_store import SiteAddress
from prime_inference.toolcalls.declared import OnUnsupported
from prime_inference.toolcalls.serving import ToolFormat

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


DEFAULT_REQUESTS = 256
"""One engine's batch in vLLM's own defaults: a fleet file that says nothing of capacity is one engine's."""

DEFAULT_TOKENS = 4_000_000
"""Uncached prompt tokens in flight: four prompts of a million tokens. Whoever has measured a fleet says better."""

DEFAULT_PREFILL_TOKENS_PER_SECOND = 2000
"""The slowest rate at which a prompt under load is still worth waiting for: a million tokens in eight minutes."""

DEFAULT_DECODE_TOKENS_PER_SECOND = 10
"""The slowest one answer may be written and still be of use: slower than people read."""

DEFAULT_LIMIT = Weight(DEFAULT_REQUESTS, DEFAULT_TOKENS)


def _resolvable(host: str) -> str:
    """Raises ValueError for what no resolver takes: found out at the first connection it would be an error there."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host!r} is no host's name") from error
    return host


def _host_and_port(text: str) -> str:
    host, port = _host_port(text)
    _resolvable(host)
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is no port")
    return text


def _without_a_path(url: HttpUrl) -> HttpUrl:
    """Paths are the gateway's to add, and it sends no credentials: either would be dropped, or make a 404 of each request."""
    if url.path not in (None, "/") or url.query or url.fragment or url.username or url.password:
        raise ValueError("a frontend's URL is a scheme, a host and a port, nothing else")
    _resolvable(url.host or "")
    return url


HostPort = Annotated[str, Field(pattern=r"^[^\s:]+:[0-9]{1,5}$"), AfterValidator(_host_and_port)]
FrontendUrl = Annotated[HttpUrl, AfterValidator(_without_a_path)]


class ValkeyEntry(_Closed):
    """A site's Valkey: one server, or Sentinels that know the primary by name. The password is a setting, not here."""

    address: HostPort | None = None
    sentinels: tuple[HostPort, ...] = ()
    primary_name: str = ""
    username: str | None = None
    tls: bool = False

    @model_validator(mode="after")
    def _one_way_to_it(self) -> "ValkeyEntry":
        if bool(self.sentinels) == (self.address is not None):
            raise ValueError("give either an address or sentinels")
        if self.sentinels and not self.primary_name:
            raise ValueError("sentinels need primary_name")
        return self


class SiteEntry(_Closed):
    """A place with a Valkey of its own. A site that is only named by its deployments uses the process's."""

    name: Name
    valkey: ValkeyEntry | None = None
    draining: bool = False
    """All its deployments get no new requests."""


class CapacityEntry(_Closed):
    """What a deployment bears at one time, all replicas of the gateway together."""

    requests: int = Field(default=DEFAULT_REQUESTS, gt=0)
    tokens: int = Field(default=DEFAULT_TOKENS, gt=0)
    """Uncached prompt tokens of the requests in flight."""


class DeploymentEntry(_Closed):
    """A model served at one site."""

    name: Name
    site: Name = "local"
    region: str = ""
    frontends: tuple[FrontendUrl, ...] = Field(min_length=1)
    """Dynamo frontends of this deployment; a session always asks the same one of them while it answers."""
    capacity: CapacityEntry = CapacityEntry()
    priority: int = 0
    """Lower is asked first; deployments of one priority share the sessions."""
    weight: float = Field(default=1.0, ge=0.0, le=1000.0)
    """Share of the sessions within one priority; 0 gets only what the others cannot take."""
    overflow: bool = False
    """Takes only what no other deployment can."""
    draining: bool = False
    """Gets no new requests."""
    prefill_tokens_per_second: int = Field(default=DEFAULT_PREFILL_TOKENS_PER_SECOND, gt=0)
    """By which the wait for the first event grows, and a prefill left behind by its client is reckoned."""
    decode_tokens_per_second: float = Field(default=DEFAULT_DECODE_TOKENS_PER_SECOND, gt=0)
    """The slowest one answer is written: by which the wait for a whole answer grows with its `max_tokens`."""


class ToolsEntry(_Closed):
    """How a model's tool calls are served (docs/toolcalls.md)."""

    format: ToolFormat = ToolFormat.ENGINE
    """`glm`: its workers name no parser to Dynamo, and the gateway enforces and reads the calls. `engine`: they do."""
    tokenizer: Path | None = None
    """For `glm`: the folder of the tokenizer that grammars are compiled for."""
    thinking: bool = False
    """For `glm`: its chat template leaves the thinking open, unless the request says `enable_thinking: false`."""
    unsupported: OnUnsupported = OnUnsupported.REFUSE
    """For `glm`: a schema that no grammar can stand for is a 400, or keeps its name enforced and its arguments free."""

    @model_validator(mode="after")
    def _glm_can_be_enforced_here(self) -> "ToolsEntry":
        if self.format is ToolFormat.GLM:
            if self.tokenizer is None or not self.tokenizer.is_dir():
                raise ValueError(f"format glm needs a tokenizer's folder, and {self.tokenizer} is none")
            if find_spec("xgrammar") is None:
                raise ValueError("format glm needs a gateway that was installed with the extra `toolcalls`")
        return self


class ModelEntry(_Closed):
    """A public model name."""

    name: Name
    deployments: tuple[Name, ...] = Field(min_length=1)
    context_tokens: int | None = Field(default=None, gt=0)
    created: int = 0
    """Unix seconds, shown by /models."""
    owned_by: str = "prime-inference"
    tools: ToolsEntry = ToolsEntry()


class FleetFile(_Closed):
    models: tuple[ModelEntry, ...] = Field(min_length=1)
    deployments: tuple[DeploymentEntry, ...] = Field(min_length=1)
    sites: tuple[SiteEntry, ...] = ()

    @model_validator(mode="after")
    def _names_are_known_and_unique(self) -> "FleetFile":
        deployments = [deployment.name for deployment in self.deployments]
        models = [model.name for model in self.models]
        sites = [site.name for site in self.sites]
        for kind, names in (("deployment", deployments), ("model", models), ("site", sites)):
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise ValueError(f"{kind} named twice: {', '.join(doubled)}")
        for model in self.models:
            unknown = sorted(set(model.deployments) - set(deployments))
            if unknown:
                raise ValueError(f"model {model.name} names unknown deployments: {', '.join(unknown)}")
        return self


@dataclass(frozen=True)
class Deployment:
    name: str
    site: str
    frontends: tuple[str, ...]
    priority: int = 0
    region: str = ""
    limit: Weight = DEFAULT_LIMIT
    weight: float = 1.0
    overflow: bool = False
    draining: bool = False
    """Itself or its site."""
    prefill_tokens_per_second: int = DEFAULT_PREFILL_TOKENS_PER_SECOND
    decode_tokens_per_second: float = DEFAULT_DECODE_TOKENS_PER_SECOND


@dataclass(frozen=True)
class Model:
    name: str
    deployments: tuple[Deployment, ...]
    context_tokens: int | None
    created: int
    owned_by: str
    tools: ToolsEntry


@dataclass(frozen=True)
class Fleet:
    """One snapshot of the registry."""

    models: dict[str, Model]
    deployments: dict[str, Deployment] = field(default_factory=dict)
    valkeys: dict[str, SiteAddress] = field(default_factory=dict)
    """By site; a site that is not here uses the process's own."""


class FleetFileError(Exception):
    """The fleet file cannot be used; the message names the file and what is wrong with it."""


def load_fleet(path: Path) -> Fleet:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        parsed = FleetFile.model_validate(content)
    except OSError as error:
        raise FleetFileError(f"cannot read the fleet file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FleetFileError(f"the fleet file {path} is not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise FleetFileError(f"the fleet file {path} is wrong at {where}: {first['msg']}") from error
    return fleet_of(parsed)


def fleet_of(parsed: FleetFile) -> Fleet:
    draining = {site.name for site in parsed.sites if site.draining}
    deployments = {
        entry.name: Deployment(
            name=entry.name,
            site=entry.site,
            frontends=tuple(str(url).rstrip("/") for url in entry.frontends),
            priority=entry.priority,
            region=entry.region,
            limit=Weight(entry.capacity.requests, entry.capacity.tokens),
            weight=entry.weight,
            overflow=entry.overflow,
            draining=entry.draining or entry.site in draining,
            prefill_tokens_per_second=entry.prefill_tokens_per_second,
            decode_tokens_per_second=entry.decode_tokens_per_second,
        )
        for entry in parsed.deployments
    }
    return Fleet(
        models={
            entry.name: Model(
                name=entry.name,
                deployments=tuple(deployments[name] for name in entry.deployments),
                context_tokens=entry.context_tokens,
                created=entry.created,
                owned_by=entry.owned_by,
                tools=entry.tools,
            )
            for entry in parsed.models
        },
        deployments=deployments,
        valkeys={site.name: _address(site.valkey) for site in parsed.sites if site.valkey is not None},
    )


def _address(entry: ValkeyEntry) -> SiteAddress:
    host, port = _host_port(entry.address) if entry.address is not None else ("", 0)
    return SiteAddress(
        host=host,
        port=port,
        sentinels=tuple(_host_port(each) for each in entry.sentinels),
        primary_name=entry.primary_name,
        username=entry.username,
        tls=entry.tls,
    )


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
