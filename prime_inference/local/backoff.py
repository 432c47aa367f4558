"""How long to wait before a process that ended is started again: pure."""

FIRST_PAUSE_S = 0.5
"""A killed process comes back at once as far as a person can tell."""

LONGEST_PAUSE_S = 30.0
"""A process that keeps ending must not keep the machine busy with starting."""

STEADY_AFTER_S = 60.0
"""Having run this long, the next end counts as the first."""


def pause_s(ends_in_a_row: int) -> float:
    """Seconds to wait after the n-th end in a row (n from 1)."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (ends_in_a_row - 1))


def ends_after(ends_in_a_row: int, ran_for_s: float) -> int:
    """The new count when a process that ran for so long has ended."""
    return 1 if ran_for_s >= STEADY_AFTER_S else ends_in_a_row + 1
