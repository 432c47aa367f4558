"""Circuit breakers, one a deployment, shared by all replicas through the deployment's site's Valkey.

The request path calls three things, none of which waits:

    permit = breakers.permit(deployment, peers)    may this attempt go there? From the local copy.
    breakers.report(permit, Ending.TRUNCATED_STREAM)   how the attempt ended. Exactly once a permit that was allowed,
                                                   whoever closes the attempt; a second report is ignored.
    breakers.run()                                 background: sends reports, takes pushes and polls, holds probes

Ownership: the state belongs to Valkey; a replica holds a copy and its unsent reports; a permit belongs to the attempt.

    core.py          the law: states, transitions, times; pure
    endings.py       how an attempt can end, and which endings count
    board.py         the local copy, what it permits, what is to be reported; pure
    shared.py        background tasks between board and store
    memory.py        the store in one process (tests, and the fallback while Valkey is away)
    valkey_store.py  the store in Valkey; breaker.lua is core.py's law there
"""

from gateway.breaker.board import Board, Permit, Verdict
from gateway.breaker.core import BreakerSettings, Snapshot, State
from gateway.breaker.endings import COUNTED, Ending, ending_of_status
from gateway.breaker.memory import MemoryBreakerStore
from gateway.breaker.shared import SharedBreakers
from gateway.breaker.store import BreakerStore

__all__ = [
    "COUNTED",
    "Board",
    "BreakerSettings",
    "BreakerStore",
    "Ending",
    "MemoryBreakerStore",
    "Permit",
    "SharedBreakers",
    "Snapshot",
    "State",
    "Verdict",
    "ending_of_status",
]
