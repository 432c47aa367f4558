"""The process that compiles structural tags with xgrammar's real compiler, so that the gateway needs neither it nor
torch.

One JSON object a line on standard input, one a line on standard output, in the same order:

    {"tag": {..}, "grammar": true, "parts": ["..", ..]}
        ->  {"ok": true, "grammar": "root ::= ..."}  or  {"ok": false, "error": ".."}

`grammar` asks for the tag as EBNF text, for an engine that takes a grammar but no tag. `parts` are the digests of the tag's
tools: a tag whose every tool has been compiled before, in whatever company, is only written out (20 ms for 20 tools), not
compiled again (150 ms): what the compiler dies of lies within a tool. The first line it writes is `{"ready": true}`. It needs
the extra `toolcalls`, and a tokenizer folder as its argument.

What is compiled is what the engine gets: the text, or the tag. `Grammar.from_structural_tag`, which vLLM checks requests with,
passes some schemas that the compiler then dies of ("per_rule_fsm_hashes", seen with 0.2.7).
"""

import json
import sys
from typing import Any

import xgrammar
from transformers import AutoTokenizer

from prime_inference.toolcalls.ebnf import tight

CACHE_BYTES = 256 * 2**20
"""xgrammar's own cache of compiled rules: 128 tools with 12 parameters each take 0.33 MB."""


MOST_PARTS = 65_536
"""Tools remembered as compiled, at 100 bytes each; all are forgotten at once."""


def compile_tag(compiler: Any, tag: dict[str, Any], wanted: bool, known: bool = False) -> dict[str, Any]:
    """`known`: every tool of the tag has been compiled."""
    text = json.dumps(tag)
    try:
        if not wanted:
            compiler.compile_structural_tag(text)
            return {"ok": True, "grammar": None}
        grammar = tight(str(xgrammar.Grammar.from_structural_tag(text)))
        if not known:
            compiler.compile_grammar(grammar)
        return {"ok": True, "grammar": grammar}
    except (RuntimeError, ValueError, TypeError) as error:  # xgrammar's own, and what its bindings turn C++ errors into
        return {"ok": False, "error": str(error).strip()}


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)
    print(json.dumps({"ready": True}), flush=True)
    compiled: set[str] = set()
    for line in sys.stdin:
        request = json.loads(line)
        parts = set(request.get("parts") or ())
        answer = compile_tag(compiler, request["tag"], bool(request.get("grammar")), bool(parts) and parts <= compiled)
        if answer["ok"]:
            compiled = (compiled if len(compiled) < MOST_PARTS else set()) | parts
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
