"""A regular expression whose searches end. The pattern is a client's and the text a model's, and both can be chosen so that a
backtracking search takes longer than the world lasts: on an event loop, for everybody.

The `regex` package has a limit in its matching loop, in processor time; `re` has none.
"""

import re
import time

import regex

SEARCH_S = 0.02
"""Processor seconds of one search. A usual one takes microseconds."""
SLOW_S = 0.001
ALL_SLOW_SEARCHES_S = 0.1
"""What a pattern's slow searches may take together: an argument can hold thousands of strings."""


class Unsearchable(ValueError):
    """Not a pattern that the engine reads."""


class TooSlow(Exception):
    """Whether the pattern matches was not found out in time."""

    def __init__(self, pattern: str) -> None:
        super().__init__(f"the pattern {pattern!r} takes too long to check")


class BoundedPattern:
    def __init__(self, pattern: str) -> None:
        """Raises Unsearchable."""
        try:
            re.compile(
                pattern
            )  # refuses what `regex` takes and ECMA-262 does not: a name given twice, a group not yet there
            self._compiled = regex.compile(pattern)
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise Unsearchable(str(error)) from error
        self.pattern = pattern
        self._slow_s = 0.0

    def search(self, text: str) -> bool:
        """Raises TooSlow."""
        if self._slow_s > ALL_SLOW_SEARCHES_S:
            raise TooSlow(self.pattern)
        begun = time.thread_time()
        try:
            return self._compiled.search(text, timeout=SEARCH_S) is not None
        except TimeoutError as error:
            raise TooSlow(self.pattern) from error
        finally:
            took = time.thread_time() - begun
            if took > SLOW_S:
                self._slow_s += took
