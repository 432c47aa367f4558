"""The x-ratelimit-* headers, in the spelling OpenAI clients read (`6m0s`, `1.5s`, `12ms`)."""

from collections.abc import Iterable

from gateway.ratelimit.slices import View


def headers(views: Iterable[View]) -> dict[str, str]:
    values = {}
    for view in views:
        what = view.bucket.rsplit(":", 1)[1]
        values[f"x-ratelimit-limit-{what}"] = str(view.limit)
        values[f"x-ratelimit-remaining-{what}"] = str(view.remaining)
        values[f"x-ratelimit-reset-{what}"] = span(view.full_in_ms)
    return values


def span(ms: int) -> str:
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{seconds}" if minutes else seconds
