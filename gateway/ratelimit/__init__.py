"""Rate limits of a key: requests and tokens a minute, one budget for all replicas of a site.

    charges = charges_for(key_id, rpm, tpm, tokens)       what a request costs
    ask = Ask(..., charges=charges)                        admission takes them, in the same trip if it needs one
    limits.settle(charges, actual_tokens)                  once, when the usage is known
    headers(limits.views(charges))                         x-ratelimit-* of any answer

Ownership: a bucket belongs to Valkey. A replica owns the slices it borrowed (at most a second's budget a bucket) and
returns them when idle and at shutdown; a killed replica's slices are lost, which errs on the side of the limit. Nothing
stays charged for a request that admission refused.

A bucket holds a minute's budget and refills evenly: any minute sees at most twice the limit (a full bucket, and its
refill), any longer time the limit.

    core.py     the bucket; pure. bucket.lua is the same inside Valkey
    slices.py   what this replica has borrowed; pure
    headers.py  the x-ratelimit-* values
    limits.py   the replica's side: slices, settling, returning, going on alone
"""

from gateway.ratelimit.core import Charge, charges_for
from gateway.ratelimit.headers import headers
from gateway.ratelimit.limits import RateLimits
from gateway.ratelimit.slices import View

__all__ = ["Charge", "RateLimits", "View", "charges_for", "headers"]
