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
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError, model_validator

from prime_inference.toolcalls.declared import OnUnsupported
from prime_inference.toolcalls.serving import ToolFormat

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeploymentEntry(_Closed):
    """A model served at one site."""

    name: Name
    site: Name = "local"
    frontends: tuple[HttpUrl, ...] = Field(min_length=1)
    """Dynamo frontends of this deployment; a session always asks the same one of them while it answers."""
    priority: int = 0
    """Lower is asked first; deployments of one priority share the sessions."""


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
    def _glm_has_a_tokenizer(self) -> "ToolsEntry":
        if self.format is ToolFormat.GLM and self.tokenizer is None:
            raise ValueError("format glm needs a tokenizer")
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

    @model_validator(mode="after")
    def _names_are_known_and_unique(self) -> "FleetFile":
        deployments = [deployment.name for deployment in self.deployments]
        models = [model.name for model in self.models]
        for kind, names in (("deployment", deployments), ("model", models)):
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
    priority: int


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


class FleetFileError(Exception):
    """The fleet file cannot be used; the message names the file and what is wrong with it."""


def load_fleet(path: Path) -> Fleet:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        parsed = FleetFile.model_validate(content)
    except OSError as error:
        raise FleetFileError(f"cannot read the fleet file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise FleetFileError(f"the fleet file {path} is not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise FleetFileError(f"the fleet file {path} is wrong at {where}: {first['msg']}") from error
    return fleet_of(parsed)


def fleet_of(parsed: FleetFile) -> Fleet:
    deployments = {
        entry.name: Deployment(
            name=entry.name,
            site=entry.site,
            frontends=tuple(str(url).rstrip("/") for url in entry.frontends),
            priority=entry.priority,
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
        }
    )
