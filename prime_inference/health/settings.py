"""Everything the health agent can be told, read once from `PRIME_HEALTH_*`; an unknown one stops the start."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationError, model_validator

PREFIX = "PRIME_HEALTH_"

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class HealthSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    node: str = Field(min_length=1)
    """This node's name, as Kubernetes has it."""
    host: str = "127.0.0.1"
    """Address of the page: /metrics, /healthz, /v1/node."""
    port: Port = 9464
    """Its port; 0 takes a free one."""
    interval_seconds: Seconds = 5.0
    """From round to round. Link down to event is at most this and a probe's deadline."""
    probe_deadline_seconds: Seconds = 3.0
    """What a source may take for one answer; past it, "hung" is the finding."""
    clear_after_seconds: Seconds = 300.0
    """A fault ends when its check has been good for this long without a break."""
    sysfs_root: Path = Path("/sys")
    kernel_log: Literal["kmsg", "syscall"] = "kmsg"
    """The device needs a privileged container, the system call CAP_SYSLOG only."""
    kmsg_path: Path = Path("/dev/kmsg")
    state_file: Path | None = None
    """Baselines and open faults, kept over restarts of the agent."""
    nvml: bool = True
    imex_command: str = "nvidia-imex-ctl"
    """Looked up on the PATH; without it the IMEX check is unknown."""
    cordon: bool = False
    """Write a condition and a taint to this node's object."""
    cordon_max_nodes: int = Field(default=2, ge=0)
    """No cordon while this many nodes carry our taint already."""
    cordon_max_share: float = Field(default=0.1, ge=0, le=1)
    """Nor while this share of the nodes with GPUs does."""
    canary_frontend: HttpUrl | None = None
    """A Dynamo frontend whose workers are asked for the canary's answer, as far as they run on this node."""
    canary_model: str = ""
    """The model it serves."""
    canary_namespace: str = ""
    """Where the workers' pods are: by it their addresses on this node are found."""
    canary_interval_seconds: Seconds = 300.0
    """From asking to asking: a few short answers each."""
    api_server: HttpUrl | None = None
    """Kubernetes; in a pod it is found without."""

    @model_validator(mode="after")
    def _canary_is_whole(self) -> "HealthSettings":
        if self.canary_frontend is not None and not (self.canary_model and self.canary_namespace):
            raise ValueError("canary_frontend needs canary_model and canary_namespace")
        return self


class HealthSettingsError(Exception):
    """The environment does not describe an agent; the message names the variable."""


def load_health_settings(environment: Mapping[str, str] | None = None) -> HealthSettings:
    """Raises HealthSettingsError naming what is unknown, missing or wrong."""
    environment = os.environ if environment is None else environment
    known = {PREFIX + name.upper() for name in HealthSettings.model_fields}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise HealthSettingsError(f"unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    given = {name[len(PREFIX) :].lower(): value for name, value in environment.items() if name in known}
    try:
        return HealthSettings.model_validate(given)
    except ValidationError as error:
        lines = [
            f"{PREFIX}{str(item['loc'][0]).upper() if item['loc'] else '*'}: {item['msg']}" for item in error.errors()
        ]
        raise HealthSettingsError("; ".join(lines)) from error
