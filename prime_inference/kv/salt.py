"""Whose prefix is it: the salt of a request as the tier's keys carry it. Pure.

LMCache 0.5.5 puts the salt into every key, but raises in its server for one it does not like, which there means no
answer at all (server_health.py). So a salt is made lawful before it leaves the engine.
"""

import hashlib
from enum import StrEnum

SETTING = "prime.salt"

LONGEST = 128
"""LMCache's limit; it makes file names of keys."""

FORBIDDEN = frozenset("@/\\\0")
"""LMCache's separators. All else of a salt is kept, so that keys can be told apart by eye."""

DIGEST_BYTES = 32


class SaltRule(StrEnum):
    REQUIRED = "required"
    """A request without a salt neither loads nor stores: nobody says whose prefix it would be."""
    SHARED = "shared"
    """Requests without a salt share their prefixes: one tenant, or all of them trust each other."""


def parse_rule(value: object) -> SaltRule:
    """Raises ValueError when the operator has not said which: a tier shared by mistake leaks who asked what."""
    try:
        return SaltRule(str(value))
    except ValueError:
        raise ValueError(
            f"{SETTING} must be {SaltRule.REQUIRED} (a request without a cache salt is kept out of the tier) or "
            f"{SaltRule.SHARED} (requests without one share prefixes), got {value!r}"
        ) from None


def lawful(salt: str) -> str:
    """`salt`, or its digest where LMCache would refuse it. Different salts stay different (BLAKE2b, 256 bits; a digest
    begins with `b2:` and so would a salt taken for one)."""
    if len(salt) <= LONGEST and not FORBIDDEN & set(salt) and not salt.startswith("b2:"):
        return salt
    return "b2:" + hashlib.blake2b(salt.encode(), digest_size=DIGEST_BYTES).hexdigest()
