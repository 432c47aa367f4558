"""API keys and tenants: who is calling, and what they may. The file holds only hashes, so reading it gives nobody a key.

keys:
  - name: laptop
    tenant: local
    sha256: 9f86d081884c7d65...       # of the whole key, sk- included
    requests_per_minute: 600          # optional, like all that follow
    tokens_per_minute: 2000000        # prompt and answer
    priority: interactive             # or routed (an aggregator's: refused rather than made to wait), or batch
    models: [glm-5.3]                 # without it: every model
    scopes: [inference]               # the default; admin opens the internal listener's admin API and console
tenants:                              # only those with something promised
  - name: local
    reserved:
      - {deployment: east, requests: 8, tokens: 400000}
"""

import hmac
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.admission.policy import Weight
from prime_inference.keys import hash_of

MAX_KEY_CHARACTERS = 256
"""A longer bearer value is refused unread."""

KEY_ID_DIGITS = 24
"""Of the hash; names a key's rate limits. 96 bits: no two keys share a bucket."""

TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class KeyPriority(StrEnum):
    INTERACTIVE = "interactive"
    ROUTED = "routed"
    BATCH = "batch"


class Scope(StrEnum):
    INFERENCE = "inference"
    ADMIN = "admin"


INFERENCE_ONLY = frozenset({Scope.INFERENCE})


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeyEntry(_Closed):
    name: str = Field(min_length=1, max_length=128)
    tenant: TenantName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    requests_per_minute: int | None = Field(default=None, gt=0)
    tokens_per_minute: int | None = Field(default=None, gt=0)
    priority: KeyPriority = KeyPriority.INTERACTIVE
    models: tuple[str, ...] | None = None
    scopes: frozenset[Scope] = Field(default=INFERENCE_ONLY, min_length=1)


class ReservedEntry(_Closed):
    deployment: str
    requests: int = Field(gt=0)
    tokens: int = Field(gt=0)


class TenantEntry(_Closed):
    name: TenantName
    reserved: tuple[ReservedEntry, ...] = ()


class KeysFile(_Closed):
    keys: tuple[KeyEntry, ...]
    tenants: tuple[TenantEntry, ...] = ()

    @model_validator(mode="after")
    def _named_once(self) -> "KeysFile":
        promised = [(tenant.name, each.deployment) for tenant in self.tenants for each in tenant.reserved]
        for kind, names in (
            ("key hash", [key.sha256 for key in self.keys]),
            ("tenant", [tenant.name for tenant in self.tenants]),
            ("reservation", [f"{tenant} at {deployment}" for tenant, deployment in promised]),
        ):
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise ValueError(f"{kind} given twice: {', '.join(doubled)}")
        return self


@dataclass(frozen=True)
class Caller:
    """Whose request this is, and what the key allows."""

    tenant: str
    key_name: str
    key_id: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    priority: KeyPriority = KeyPriority.INTERACTIVE
    models: frozenset[str] | None = None
    scopes: frozenset[Scope] = INFERENCE_ONLY

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class KeysFileError(Exception):
    """The keys file cannot be used; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class KeyRing:
    """The keys and promises of one snapshot of the file."""

    _callers: dict[str, tuple[str, Caller]] = field(default_factory=dict, repr=False)
    """By the key's hash, which stands beside the caller once more, to be compared in constant time."""
    floors: dict[str, dict[str, Weight]] = field(default_factory=dict)
    """What is reserved: deployment -> tenant -> weight."""

    def caller_of(self, bearer: str) -> Caller | None:
        if len(bearer) > MAX_KEY_CHARACTERS:
            return None
        digest = hash_of(bearer)
        known, caller = self._callers.get(digest, ("", None))
        return caller if hmac.compare_digest(known, digest) else None


def load_keys(path: Path) -> KeyRing:
    try:
        parsed = KeysFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise KeysFileError(f"cannot read the keys file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KeysFileError(f"the keys file {path} is not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise KeysFileError(f"the keys file {path} is wrong at {where}: {first['msg']}") from error
    return key_ring_of(parsed)


def key_ring_of(parsed: KeysFile) -> KeyRing:
    floors: dict[str, dict[str, Weight]] = {}
    for tenant in parsed.tenants:
        for each in tenant.reserved:
            floors.setdefault(each.deployment, {})[tenant.name] = Weight(each.requests, each.tokens)
    callers = {entry.sha256: (entry.sha256, _caller_of(entry)) for entry in parsed.keys}
    return KeyRing(callers, floors)


def _caller_of(entry: KeyEntry) -> Caller:
    return Caller(
        tenant=entry.tenant,
        key_name=entry.name,
        key_id=entry.sha256[:KEY_ID_DIGITS],
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        priority=entry.priority,
        models=None if entry.models is None else frozenset(entry.models),
        scopes=entry.scopes,
    )
