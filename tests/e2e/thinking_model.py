"""SmolLM2 with two more tokens, `<think>` and `</think>`, and a chat template that leaves the thinking open as GLM's do.

Nobody taught it to think. Its `</think>` gets the weights of a full stop, so that it closes its thinking of its own accord
where a sentence might end. (Dynamo 1.6.1 takes a `logit_bias` and drops it, so that a request cannot.)

Usage: thinking_model.py SOURCE TARGET
"""

import sys
from pathlib import Path

import torch
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
    (full_stop,) = tokenizer.encode(".", add_special_tokens=False)
    with torch.no_grad():
        weights = model.get_input_embeddings().weight  # the output's, too: they are tied
        weights[tokenizer.convert_tokens_to_ids("</think>")] = weights[full_stop]
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
