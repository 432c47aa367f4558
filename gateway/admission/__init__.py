"""Who gets in: leases on a deployment's capacity, shared by all replicas through its site's Valkey.

    answer = await admission.acquire(Ask(...))     Grant, or Refused (raise it, or try another deployment first)
    admission.correct(grant, tokens)               at the first token: the true uncached tokens
    admission.release(grant, prefill_left_s=0.0)   exactly once counts, never waits: put it into the outermost `finally`
    admission.limits.settle(ask.charges, tokens)   once, when the usage is known (0 for a request that failed)
    admission.run() / stop_admitting() / leave()   background; drain; after the drain

Ownership: capacity belongs to the site's registry. A replica owns a lease (random epoch, heartbeat each second, four
seconds to live) and with it what its gauges say; a grant is one request's part of it and belongs to the request from
the moment `acquire` returns it. Cancelled inside `acquire`, a request owns nothing: what was on its way goes back.

Slack, in requests: none while Valkey answers. A replica paused beyond its lease comes back on top of what others were
given meanwhile, at most with what it still has in use. With Valkey away, each of R replicas admits up to
max(1, floor(limit / R)), so at most max(limit, R) on top of no more than what was in use before: with traffic spread
evenly that is the limit again. In tokens, also what usage exceeds its estimate by.

    policy.py        floors, borrowing, batch, headroom; pure
    registry.py      the law of the shared registry; pure. admission.lua is the same inside Valkey
    ledger.py        what this process holds; pure
    line.py          who waits; pure
    outcomes.py      how asking can end, and the 429
    desk.py          a deployment's door in this process
    admission.py     the shell
    memory.py, valkey_store.py    the stores
"""

from gateway.admission.admission import Admission
from gateway.admission.desk import Ask
from gateway.admission.ledger import Grant
from gateway.admission.line import Priority
from gateway.admission.memory import MemoryAdmissionStore
from gateway.admission.outcomes import Outcome, Refused
from gateway.admission.policy import Capacity, Kind, Weight
from gateway.admission.store import AdmissionStore, LeaseSettings

__all__ = [
    "Admission",
    "AdmissionStore",
    "Ask",
    "Capacity",
    "Grant",
    "Kind",
    "LeaseSettings",
    "MemoryAdmissionStore",
    "Outcome",
    "Priority",
    "Refused",
    "Weight",
]
