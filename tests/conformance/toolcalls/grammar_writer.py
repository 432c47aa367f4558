"""A model with no sense at all: it writes any token that the request's grammar allows, as vLLM would let it.

What it calls is right only because the grammar leaves it no other choice. It prefers short printable tokens and whatever closes
what is open, so that an answer of some hundred tokens ends by itself.
"""

import random
from typing import Any

import numpy as np
import xgrammar
from transformers import AutoTokenizer

ENDS = 0.4
"""How often it closes what is open, where it may."""
LONGEST_TOKEN = 6
CLOSING = ("</arg_value>", "</tool_call>", "</think>", '"', '"}', "}", "]", ",", ":", "<arg_value>", "<arg_key>")


class GrammarWriter:
    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        info = xgrammar.TokenizerInfo.from_huggingface(self._tokenizer)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._size = info.vocab_size
        self._end = int(self._tokenizer.eos_token_id)
        words = self._tokenizer.batch_decode([[token] for token in range(len(self._tokenizer))])
        short = [len(word) <= LONGEST_TOKEN and word.isascii() and word.isprintable() for word in words]
        self._plain = np.zeros(self._size, dtype=bool)
        self._plain[: len(short)] = short
        self._closing = np.zeros(self._size, dtype=bool)
        self._closing[[token for token, word in enumerate(words) if word in CLOSING]] = True

    def write(self, guided: dict[str, Any], seed: int, most_tokens: int) -> tuple[list[int], str]:
        """Tokens, and how they end: `stop`, or `length` after `most_tokens`."""
        chance = random.Random(seed)
        matcher = xgrammar.GrammarMatcher(self._compiled(guided))
        mask = xgrammar.allocate_token_bitmask(1, self._size)
        tokens: list[int] = []
        while len(tokens) < most_tokens:
            matcher.fill_next_token_bitmask(mask)
            allowed = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: self._size].astype(bool)
            token = self._one_of(allowed, chance)
            if token == self._end:
                return tokens, "stop"
            assert matcher.accept_token(token)
            tokens.append(token)
        return tokens, "length"

    def _compiled(self, guided: dict[str, Any]) -> Any:
        if guided.get("structural_tag") is not None:
            return self._compiler.compile_structural_tag(guided["structural_tag"])
        return self._compiler.compile_grammar(guided["grammar"])

    def _one_of(self, allowed: np.ndarray[Any, Any], chance: random.Random) -> int:
        if allowed[self._end] and chance.random() < ENDS:
            return self._end
        allowed[self._end] = False
        closing, plain = allowed & self._closing, allowed & self._plain
        if closing.any() and chance.random() < ENDS:
            allowed = closing
        elif plain.any():
            allowed = plain
        ids = np.flatnonzero(allowed)
        return int(ids[chance.randrange(len(ids))]) if len(ids) else self._end
