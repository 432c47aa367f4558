"""A run's numbers as a reader wants them, for the table and for the page."""

from collections import Counter

from prime_inference.toolcalls.suite.run import Run


def by_group(run: Run) -> dict[str, tuple[int, int]]:
    """Suite -> answers, and how many of them are as they should be."""
    answers = Counter(result.group for result in run.results)
    passed = Counter(result.group for result in run.results if result.passed)
    return {group: (count, passed[group]) for group, count in answers.items()}


def headline(run: Run) -> str:
    rates = run.rates()
    ended, wrong = rates["ended_in_tool_calls"], rates["wrong_by_openrouters_count"]
    return (
        f"{rates['passed']} of {rates['answers']} answers are as they should be. "
        f"By OpenRouter's count {wrong} of the {ended} that ended in tool_calls are wrong"
        f"{_expected(run)}."
    )


def _expected(run: Run) -> str:
    """The wire suite has cases whose right answer is a wrong call, passed on."""
    meant = sum(result.passed and result.wrong_by_openrouters_count for result in run.results)
    return f", {meant} of them because the case wants it so" if meant else ""


def counted(run: Run, what: str) -> list[tuple[str, int, str]]:
    """`what` is `verdicts` or `outcomes`: name, number and share, the largest first."""
    numbers: dict[str, int] = run.rates()[what]
    total = sum(numbers.values())
    ordered = sorted(numbers.items(), key=lambda one: -one[1])
    return [(name, number, f"{100 * number / total:.1f} %") for name, number in ordered]
