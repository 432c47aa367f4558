"""From `--model` to a folder that vLLM loads, and the name clients use."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_inference.local.errors import UpError
from prime_inference.local.options import DEFAULT_MODEL
from prime_inference.local.smollm2 import convert, gguf_folder
from prime_inference.toolcalls.serving import ToolFormat, format_of_template, template_thinks

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a folder must be called: the gateway's fleet file takes no other name of a model."""

CONVERTED_VERSION = 2
"""Part of the cached folder's name: raised when the conversion changes what it writes."""


@dataclass(frozen=True)
class LocalModel:
    path: Path
    name: str
    """What clients ask for."""
    max_context_tokens: int | None
    """What the model's own configuration allows, where it says so."""
    weight_bytes: int
    tool_format: ToolFormat = ToolFormat.ENGINE
    latent_attention: bool = False
    """Every tensor-parallel rank holds the whole KV."""
    thinks: bool = False
    """Its chat template leaves the thinking open, for a model whose tool calls the gateway reads."""


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prime-inference"


def find_model(wanted: str, say: Callable[[str], None]) -> LocalModel:
    """A folder, the default model, or a Hugging Face id. Raises UpError naming what is wrong."""
    if wanted == DEFAULT_MODEL:
        return describe(_smollm2(say), DEFAULT_MODEL)
    folder = Path(wanted).expanduser()
    if folder.is_dir():
        name = folder.resolve().name
        if not NAME.fullmatch(name):
            raise UpError(
                f"a model's name is its folder's, and {name!r} is none that clients can ask for (letters, digits, `.`, `_`, "
                "`-`). Rename the folder."
            )
        return describe(folder.resolve(), name)
    if folder.is_absolute() or wanted.startswith((".", "~")) or wanted.count("/") != 1:
        raise UpError(
            f"unknown model {wanted!r}: neither a folder, nor a Hugging Face id such as Qwen/Qwen3-0.6B, nor {DEFAULT_MODEL}."
        )
    return describe(_from_hub(wanted, say), wanted)


def describe(folder: Path, name: str) -> LocalModel:
    """What the folder holds. Raises UpError when it is not a model that vLLM could load."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise UpError(f"{folder} is not a model folder: it has no config.json.")
    config = _object_in(config_file)
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        raise UpError(f"{folder} has no tokenizer (tokenizer.json): Dynamo's frontend needs one.")
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not weights:
        raise UpError(f"{folder} has no weights (*.safetensors).")
    longest = config.get("max_position_embeddings")
    template = _chat_template(folder)
    tool_format = format_of_template(template)
    return LocalModel(
        path=folder,
        name=name,
        max_context_tokens=longest if isinstance(longest, int) else None,
        weight_bytes=sum(file.stat().st_size for file in weights),
        tool_format=tool_format,
        latent_attention=isinstance(config.get("kv_lora_rank"), int),
        thinks=tool_format is ToolFormat.GLM and template_thinks(template),
    )


def _chat_template(folder: Path) -> str:
    """Its text, where there is one: a file of its own in newer folders, else an entry of the tokenizer's settings, which
    may be a list of named templates. Raises UpError when those settings are not JSON."""
    file, settings_file = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.exists():
        return _text_of(file)
    if not settings_file.exists():
        return ""
    template = _object_in(settings_file).get("chat_template")
    return template if isinstance(template, str) else json.dumps(template)


def _object_in(file: Path) -> dict[str, Any]:
    """Raises UpError for what is no JSON object."""
    try:
        content = json.loads(_text_of(file))
    except ValueError as error:
        raise UpError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UpError(f"{file} is not a JSON object.")
    return content


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UpError(f"cannot read {file}: {error}") from error


def _smollm2(say: Callable[[str], None]) -> Path:
    target = cache_dir() / "models" / f"{DEFAULT_MODEL}-v{CONVERTED_VERSION}"
    if target.is_dir():
        return target
    say(f"converting {DEFAULT_MODEL} once (about half a minute) into {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        convert(gguf_folder(), target)
    except FileNotFoundError as error:
        raise UpError(f"cannot convert {DEFAULT_MODEL}: {error}") from error
    return target


def _from_hub(model_id: str, say: Callable[[str], None]) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - only who asks for a hub model needs it
        from huggingface_hub.errors import (  # noqa: PLC0415
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise UpError("downloading a model needs huggingface-hub: run `make setup`.") from error
    say(f"fetching {model_id} from Hugging Face (or its local cache)")
    try:
        return Path(
            snapshot_download(model_id, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"])
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UpError(f"cannot fetch the model {model_id}: {reason[0]}") from error
