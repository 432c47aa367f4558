"""A site's Valkey, as the request path sees it: bounded, never retried in the path, able to be absent.

One `SiteValkey` (valkey_store.py) a site and process. Every trip either answers in time or raises
`SiteUnavailable`; what to do without an answer is the caller's decision (fail-static breakers, local shares).
"""

from gateway.site.errors import SiteUnavailable, Trouble
from gateway.site.link import Link, LinkState
from gateway.site.trip_budget import TRIP_BUDGET_S, Patience, TripBudget

__all__ = ["TRIP_BUDGET_S", "Link", "LinkState", "Patience", "SiteUnavailable", "TripBudget", "Trouble"]
