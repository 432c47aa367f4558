"""How many thread blocks share a token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prime_kernels.nvfp4_sparse_mla.plan import CLUSTER_SIZES, choose_cluster, stages_per_block

H200_CAPACITY = (0, 132, 66, 39, 30, 22, 17, 15, 15)
"""Clusters of 0, 1, ... 8 thread blocks that an H200 runs at once, read off one."""


@pytest.mark.parametrize(
    ("tokens", "cluster"), [(1, 8), (15, 8), (16, 6), (20, 5), (30, 4), (39, 3), (64, 2), (128, 1)]
)
def test_the_largest_cluster_that_runs_in_one_wave_wins_on_an_h200(tokens: int, cluster: int) -> None:
    assert choose_cluster(tokens, 16, 2048, H200_CAPACITY) == cluster


def test_more_heads_are_more_clusters() -> None:
    assert choose_cluster(15, 32, 2048, H200_CAPACITY) == choose_cluster(30, 16, 2048, H200_CAPACITY)


def test_few_rows_are_not_spread_thin() -> None:
    assert choose_cluster(1, 16, 32, H200_CAPACITY) == 1
    assert choose_cluster(1, 16, 64, H200_CAPACITY) == 2


def test_a_cluster_size_that_the_device_cannot_run_is_never_chosen() -> None:
    assert choose_cluster(1, 16, 2048, (0, 100, 50, 0, 20, 0, 0, 0, 0)) == 4


@given(st.integers(1, 4096), st.integers(1, 128), st.integers(1, 4096))
def test_the_choice_exists_covers_the_rows_and_is_the_smallest_as_good(tokens: int, heads: int, topk: int) -> None:
    cluster = choose_cluster(tokens, heads, topk, H200_CAPACITY)
    assert cluster in CLUSTER_SIZES
    assert stages_per_block(topk, cluster) * cluster * 32 >= topk
    clusters = tokens * -(-heads // 16)
    for smaller in (size for size in CLUSTER_SIZES if size < cluster):
        no_more_waves = -(-clusters // H200_CAPACITY[smaller]) <= -(-clusters // H200_CAPACITY[cluster])
        assert not no_more_waves or stages_per_block(topk, smaller) > stages_per_block(topk, cluster)
