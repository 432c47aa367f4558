"""The metrics page in pieces is the page, and lets others run."""

from prometheus_client.exposition import generate_latest

from gateway.telemetry.exposition import SAMPLES_A_TURN, exposition
from gateway.telemetry.metrics import Metrics
from tests.support.turns import turns_counted


def of_many_models(count: int) -> Metrics:
    metrics = Metrics()
    for number in range(count):
        for endpoint in ("chat/completions", "messages"):
            metrics.requests.labels(endpoint, f"model-{number}", "ok").inc(number)
            metrics.duration.labels(endpoint, f"model-{number}").observe(0.01 * number)
    return metrics


async def test_the_pieces_together_are_what_the_library_writes() -> None:
    for count in (0, 1, 20):
        registry = of_many_models(count).registry
        assert await exposition(registry) == generate_latest(registry)


async def test_others_have_their_turn_between_the_pieces() -> None:
    registry = of_many_models(20).registry
    lines = generate_latest(registry).count(b"\n")
    async with turns_counted() as turns:
        await exposition(registry)
    assert turns.count > 0.8 * lines / SAMPLES_A_TURN
