"""What one rank's LMCache server knows of a prompt: a prompt of its own, made of the chunks that the rank owns. Pure.

LMCache's server finds the longest prefix of what it is asked for. A rank that stores only every W-th chunk of a prompt has
no prefix of it. So its server is told another prompt: chunk i of it stands for the rank's i-th owned chunk, and its
tokens are a digest of all real tokens up to that chunk's end. A prefix of this prompt is exactly what the rank holds in a
row; what is stored and loaded under its keys are the KV bytes of the real chunk; and nothing in the server changes.

Two prompts share such a chunk if their digests agree: BLAKE2b with 256 bits, as collision-resistant as LMCache's own keys.
"""

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache

from prime_inference.kv.sharding.ownership import owned_chunks

_TOKEN_BITS = 31
"""LMCache packs tokens as 32-bit or wider; 31 bits fit a signed one too."""

_DIGEST_TOKENS = 8
"""Eight tokens of 31 bits carry 248 bits of the digest."""

_PROMPTS_REMEMBERED = 8
"""One prompt is asked for W times in a row, once a rank; a long one is a few megabytes of tokens."""


@lru_cache(maxsize=_PROMPTS_REMEMBERED)
def chunk_digests(tokens: tuple[int, ...], chunk_tokens: int) -> tuple[bytes, ...]:
    """For each whole chunk, a digest of all tokens up to its end."""
    running = hashlib.blake2b(digest_size=32)
    digests = []
    for start in range(0, len(tokens) - chunk_tokens + 1, chunk_tokens):
        running.update(struct.pack(f"<{chunk_tokens}q", *tokens[start : start + chunk_tokens]))
        digests.append(running.digest())
    return tuple(digests)


def shard_prompt(tokens: Sequence[int], chunk_tokens: int, rank: int, world: int) -> list[int]:
    """The rank's own prompt, as long as its owned whole chunks."""
    digests = chunk_digests(tuple(tokens), chunk_tokens)
    prompt: list[int] = []
    for chunk in owned_chunks(rank, world, len(digests)):
        words = struct.unpack(f"<{_DIGEST_TOKENS}I", digests[chunk])
        prompt += [word & ((1 << _TOKEN_BITS) - 1) for word in words]
        prompt += [0] * (chunk_tokens - _DIGEST_TOKENS)
    return prompt


def owned_below(chunk: int, rank: int, world: int) -> int:
    """How many owned chunks begin before `chunk`: where that chunk's place is in the rank's own prompt."""
    return len(owned_chunks(rank, world, chunk))
