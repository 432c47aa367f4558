"""SmolLM2 with two more tokens, `<think>` and `</think>`, and a chat template that leaves the thinking open as GLM's do.

Nobody taught it to think: what is tested is who holds the grammar back until `</think>`, and a test can make it write that.

Usage: thinking_model.py SOURCE TARGET     prints the id of `</think>`
"""

import sys
from pathlib import Path

from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

OPENS_A_TURN = "{{- '<|im_start|>assistant\\n' -}}"
OPENS_THE_THINKING = (
    "{{- '<|im_start|>assistant\\n<think>' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '</think>' -}}{%- endif -%}"
)


def main(source: str, target: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="bfloat16")
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    template = (Path(source) / "chat_template.jinja").read_text(encoding="utf-8")
    assert template.count(OPENS_A_TURN) == 1
    tokenizer.chat_template = template.replace(OPENS_A_TURN, OPENS_THE_THINKING)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    print(tokenizer.convert_tokens_to_ids("</think>"))


if __name__ == "__main__":
    main(*sys.argv[1:])
