"""xgrammar's real compiler and matcher, in this process: does a tag compile, and does its grammar take a text?"""

import json
from pathlib import Path
from typing import Any

import xgrammar
from transformers import AutoTokenizer

from prime_inference.toolcalls.compile_process import CACHE_BYTES
from prime_inference.toolcalls.ebnf import tight


class Grammars:
    def __init__(self, tokenizer: Path) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(AutoTokenizer.from_pretrained(str(tokenizer)))
        self._matcher = xgrammar.GrammarMatcher
        # With its cache, as in an engine: one of its failures ("per_rule_fsm_hashes") is only there.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)

    def compile(self, tag: dict[str, Any]) -> tuple[Any, str]:
        """The compiled grammar and "", or None and what the compiler said."""
        try:
            return self._compiler.compile_structural_tag(json.dumps(tag)), ""
        except (RuntimeError, ValueError, TypeError) as error:
            return None, str(error).strip()

    def compile_text(self, tag: dict[str, Any]) -> Any:
        """The same by way of EBNF text, which is how it reaches an engine that takes a grammar and no tag.
        None when it does not compile."""
        text = tight(str(xgrammar.Grammar.from_structural_tag(json.dumps(tag))))
        try:
            return self._compiler.compile_grammar(text)
        except RuntimeError:
            return None

    def takes(self, compiled: Any, text: str) -> bool:
        """Whether the engine could write exactly this text and stop."""
        if compiled is None:
            return False
        matcher = self._matcher(compiled)
        return bool(matcher.accept_string(text)) and bool(matcher.is_completed())
