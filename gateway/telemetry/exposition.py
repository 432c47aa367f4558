"""The metrics page, written a piece a turn of the event loop.

A line takes prometheus_client some ten microseconds, and a replica of ten models has over a thousand: written in one go
they would hold up every stream for longer than an event may be late.
"""

import asyncio
from collections.abc import Iterator
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest

SAMPLES_A_TURN = 32
"""Half a millisecond at most."""

HEAD_LINES = 2
"""HELP and TYPE open a family, and stand once."""


class _Only:
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def exposition(registry: CollectorRegistry) -> bytes:
    """What `generate_latest` gives. Counts go on meanwhile, so that two families may be some requests apart."""
    parts = []
    for family in registry.collect():
        for number, piece in enumerate(_pieces(family)):
            text = generate_latest(cast(CollectorRegistry, _Only(piece)))
            parts.append(text if number == 0 else text.split(b"\n", HEAD_LINES)[HEAD_LINES])
            await asyncio.sleep(0)
    return b"".join(parts)


def _pieces(family: Metric) -> Iterator[Metric]:
    if len(family.samples) <= SAMPLES_A_TURN:
        yield family
        return
    for start in range(0, len(family.samples), SAMPLES_A_TURN):
        piece = Metric(family.name, family.documentation, family.type)
        piece.samples = family.samples[start : start + SAMPLES_A_TURN]
        yield piece
