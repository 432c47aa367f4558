"""What can keep a site's Valkey from answering.

SiteUnavailable   503 (never reaches a client as such: callers fall back to what they know locally)
"""

from enum import StrEnum


class Trouble(StrEnum):
    """Why a trip brought no answer. Closed set, used as a metric label."""

    LINK_DOWN = "link_down"
    """Not sent: earlier trips failed and the background probe has not come back yet."""
    BUDGET_SPENT = "budget_spent"
    """Not sent: the request has used its time for trips."""
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    REFUSING = "refusing"
    """Valkey answered that it cannot serve: full, read-only after a failover, loading, busy."""


class SiteUnavailable(Exception):
    """The site's Valkey gave no usable answer. Whether it executed the trip is unknown."""

    status = 503

    def __init__(self, trouble: Trouble, detail: str = "") -> None:
        super().__init__(f"{trouble}: {detail}" if detail else str(trouble))
        self.trouble = trouble
        self.link_is_down = trouble is Trouble.LINK_DOWN
        """Not one lost trip but the site's Valkey given up for now: time to go on alone."""
