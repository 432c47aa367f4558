"""API keys as text: how one is made and what is stored of it.

A key is 256 random bits, so one round of SHA-256 is enough to store: there is nothing to guess from a dictionary.
"""

import secrets
from hashlib import sha256

KEY_PREFIX = "sk-"
KEY_BYTES = 32
"""Random bytes in a key; 256 bits leave nothing to search."""


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: str) -> str:
    """64 hexadecimal digits."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
