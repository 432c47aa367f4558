"""The replay behind token buckets: its model has the article's numbers."""

import time

import pytest

from benchmarks.kv_tiers.buckets import ARMS, predicted
from benchmarks.kv_tiers.token_bucket import DEPTH_S, Bucket


def test_scaled_down_the_utilisations_are_the_articles() -> None:
    model = {arm.name: predicted(arm, 100.0) for arm in ARMS}
    assert model["1 store, asynchronous"]["rho"] == pytest.approx(1.06, abs=0.005)
    assert model["8 stores, asynchronous"]["rho"] == pytest.approx(0.089, abs=0.0005)
    assert model["1 store, asynchronous"]["backlog_s"] == pytest.approx(6.0, abs=0.5)
    assert model["1 store, asynchronous, gate"] == model["no tier"]  # it computes, since the tier is below B*


def test_a_bucket_lets_through_its_rate() -> None:
    bucket = Bucket(rate=1e6)
    began = time.monotonic()
    for _ in range(20):
        bucket.take(10_000)
    assert time.monotonic() - began >= 0.2 - DEPTH_S - 0.001
