"""What the local gateway reads: its fleet, its keys, its secret. The key and the secret are made once and kept."""

import json
import secrets
from pathlib import Path

import yaml

from prime_inference.keys import hash_of, new_key
from prime_inference.local.model import LocalModel
from prime_inference.local.state_dir import StateDir
from prime_inference.toolcalls.serving import ToolFormat

LOCAL_TENANT = "local"
DEPLOYMENT = "local"


def write_gateway_files(state: StateDir, model: LocalModel, context_tokens: int | None, frontend_port: int) -> str:
    """Write fleet and keys files; the answer is the key for the person on this machine."""
    key = _kept(state.key_file, new_key())
    fleet = {
        "models": [
            {
                "name": model.name,
                "deployments": [DEPLOYMENT],
                **({"context_tokens": context_tokens} if context_tokens is not None else {}),
                "created": int(model.path.stat().st_mtime),
                **({"tools": _tools(model)} if model.tool_format is ToolFormat.GLM else {}),
            }
        ],
        "deployments": [
            {"name": DEPLOYMENT, "site": "local", "frontends": [f"http://127.0.0.1:{frontend_port}"]},
        ],
    }
    state.fleet_file.write_text(yaml.safe_dump(fleet, sort_keys=False), encoding="utf-8")
    admin = _kept(state.admin_key_file, new_key())
    keys = {
        "keys": [
            {"name": "local", "tenant": LOCAL_TENANT, "sha256": hash_of(key)},
            {"name": "operator", "tenant": LOCAL_TENANT, "sha256": hash_of(admin), "scopes": ["admin"]},
        ]
    }
    state.keys_file.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
    return key


def write_frontend(state: StateDir, frontend_port: int) -> None:
    """Our deployment's frontend is there now; what somebody else has written into the fleet file stays."""
    fleet = yaml.safe_load(state.fleet_file.read_text(encoding="utf-8"))
    for deployment in fleet["deployments"]:
        if deployment["name"] == DEPLOYMENT:
            deployment["frontends"] = [f"http://127.0.0.1:{frontend_port}"]
    partial = state.fleet_file.with_name(state.fleet_file.name + ".partial")
    partial.write_text(yaml.safe_dump(fleet, sort_keys=False), encoding="utf-8")
    partial.replace(state.fleet_file)


def _tools(model: LocalModel) -> dict[str, object]:
    return {"format": model.tool_format.value, "tokenizer": str(model.path), "thinking": model.thinks}


def gateway_secret(state: StateDir) -> str:
    return _kept(state.secret_file, secrets.token_urlsafe(32))


def write_running(state: StateDir, **facts: object) -> None:
    """Ports and process ids, for whoever wants to look at the running stack."""
    _write(state.running_file, json.dumps(facts, indent=2))


def _kept(path: Path, fresh: str) -> str:
    """The file's content, made with `fresh` and for its owner's eyes only if it is not there."""
    kept = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not kept:
        _write(path, fresh)
    return kept or fresh


def _write(path: Path, text: str) -> None:
    """The file appears whole or not at all, for its owner's eyes only."""
    partial = path.with_name(path.name + ".partial")
    partial.touch(mode=0o600)
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
