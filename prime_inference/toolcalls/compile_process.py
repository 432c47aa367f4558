"""The process that compiles structural tags with xgrammar's real compiler, so that the gateway needs neither it nor
torch.

One JSON object a line on standard input, one a line on standard output, in the same order:

    {"tag": {..}, "grammar": true}  ->  {"ok": true, "grammar": "root ::= ..."}  or  {"ok": false, "error": ".."}

`grammar` asks for the tag as EBNF text, for an engine that takes a grammar but no tag. The first line it writes is
`{"ready": true}`. It needs the extra `toolcalls`, and a tokenizer folder as its argument.

`GrammarCompiler.compile_structural_tag` is what the engine runs. `Grammar.from_structural_tag`, which vLLM checks
requests with, passes some schemas that the compiler then dies of ("per_rule_fsm_hashes", seen with 0.2.7).
"""

import json
import sys
from typing import Any

import xgrammar
from transformers import AutoTokenizer

from prime_inference.toolcalls.ebnf import tight

CACHE_BYTES = 256 * 2**20
"""xgrammar's own cache of compiled rules: 128 tools with 12 parameters each take 0.33 MB."""


def compile_tag(compiler: Any, tag: dict[str, Any], wanted: bool) -> dict[str, Any]:
    text = json.dumps(tag)
    try:
        compiler.compile_structural_tag(text)
        if not wanted:
            return {"ok": True, "grammar": None}
        grammar = tight(str(xgrammar.Grammar.from_structural_tag(text)))
        compiler.compile_grammar(grammar)  # as the engine will, from this very text
        return {"ok": True, "grammar": grammar}
    except (RuntimeError, ValueError, TypeError) as error:  # xgrammar's own, and what its bindings turn C++ errors into
        return {"ok": False, "error": str(error).strip()}


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = compile_tag(compiler, request["tag"], bool(request.get("grammar")))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
