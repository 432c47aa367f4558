"""What vLLM's own structured output manager makes of a thinking answer, token by token, as its scheduler calls it.

Usage: vllm_gate.py MODEL_DIR PARSER < {"grammar": EBNF, "prompt": text, "answers": [text, ..]}
PARSER is vLLM's `--reasoning-parser`, or `none`. Prints, for each answer, how far the engine would have let the model write it:
{"written": the text up to the first token that the mask forbids, "may_end": whether the end of turn was allowed there}
"""

import json
import os
import sys
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")

from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BITS = 32


def allowed(mask: Any, token: int) -> bool:
    return bool((int(mask[0][token // BITS]) >> (token % BITS)) & 1)


def write(manager: StructuredOutputManager, grammar: str, prompt: list[int], answer: list[int], end: int) -> Any:
    params = SamplingParams(max_tokens=999, structured_outputs=StructuredOutputsParams(grammar=grammar))
    params.structured_outputs._backend = "xgrammar"
    request = Request("r", prompt, params, None)
    manager.grammar_init(request)
    request.structured_output_request._grammar.result(
        60
    )  # compiled beside the scheduler, which waits for it the same way
    assert request.structured_output_request.is_grammar_ready
    written: list[int] = []
    for token in answer:
        mask = manager.grammar_bitmask({"r": request}, ["r"], {})
        if not allowed(mask, token):
            break
        request.append_output_token_ids(token)
        if not manager.accept_tokens(request, [token]):
            break
        written.append(token)
    mask = manager.grammar_bitmask({"r": request}, ["r"], {})
    return {"written": manager.tokenizer.decode(written), "may_end": allowed(mask, end)}


def main(model: str, parser: str) -> None:
    asked = json.load(sys.stdin)
    wanted = {} if parser == "none" else {"reasoning_parser": parser}
    config = EngineArgs(model=model, max_model_len=2048, structured_outputs_config=wanted).create_engine_config()
    manager = StructuredOutputManager(config)
    ids = [manager.tokenizer.encode(text, add_special_tokens=False) for text in (asked["prompt"], *asked["answers"])]
    end = manager.tokenizer.eos_token_id
    print(json.dumps([write(manager, asked["grammar"], ids[0], answer, end) for answer in ids[1:]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
