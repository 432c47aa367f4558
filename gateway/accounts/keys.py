"""API keys: who is calling. The file holds only hashes, so reading it gives nobody a key.

keys:
  - name: laptop
    tenant: local
    sha256: 9f86d081884c7d65...       # of the whole key, sk- included
"""

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prime_inference.keys import hash_of

MAX_KEY_CHARACTERS = 256
"""A longer bearer value is refused unread."""


class KeyEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=128)
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class KeysFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[KeyEntry, ...]


@dataclass(frozen=True)
class Caller:
    """Whose request this is."""

    tenant: str
    key_name: str


class KeysFileError(Exception):
    """The keys file cannot be used; the message names the file and what is wrong with it."""


class KeyRing:
    """The keys of one snapshot of the file."""

    def __init__(self, entries: tuple[KeyEntry, ...]) -> None:
        self._by_hash = {entry.sha256: entry for entry in entries}

    def caller_of(self, bearer: str) -> Caller | None:
        if len(bearer) > MAX_KEY_CHARACTERS:
            return None
        digest = hash_of(bearer)
        entry = self._by_hash.get(digest)
        if entry is None or not hmac.compare_digest(entry.sha256, digest):
            return None
        return Caller(tenant=entry.tenant, key_name=entry.name)


def load_keys(path: Path) -> KeyRing:
    try:
        parsed = KeysFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise KeysFileError(f"cannot read the keys file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise KeysFileError(f"the keys file {path} is not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise KeysFileError(f"the keys file {path} is wrong at {where}: {first['msg']}") from error
    return KeyRing(parsed.keys)
