"""Times that only hold together: each of these was a promise somewhere."""

from gateway.admission.admission import AWAY_RETRY_S, CERTAIN_MARGIN_MS
from gateway.admission.store import LeaseSettings
from gateway.site.link import JITTER, LONGEST_RETRY_S
from gateway.site.trip_budget import BACKGROUND_TRIP_TIMEOUT_S, TRIP_BUDGET_S, TRIP_TIMEOUT_S

SETTINGS = LeaseSettings()


def test_every_replica_is_back_and_registered_before_sums_are_trusted() -> None:
    back_s = LONGEST_RETRY_S * (1 + JITTER) + AWAY_RETRY_S + BACKGROUND_TRIP_TIMEOUT_S
    assert back_s < SETTINGS.settle_ms / 1000


def test_a_killed_replicas_capacity_is_back_within_five_seconds() -> None:
    assert SETTINGS.ttl_ms <= 4_000, "its last heartbeat, the TTL, and an acquire to prune it"


def test_a_lease_survives_three_lost_heartbeats() -> None:
    assert SETTINGS.ttl_ms - CERTAIN_MARGIN_MS >= 3 * SETTINGS.heartbeat_ms


def test_a_gap_is_noticed_before_a_lease_ends_and_not_between_two_heartbeats() -> None:
    assert 2 * SETTINGS.heartbeat_ms < SETTINGS.gap_ms < SETTINGS.ttl_ms


def test_two_trips_fit_into_a_requests_budget() -> None:
    assert 2 * TRIP_TIMEOUT_S < TRIP_BUDGET_S
