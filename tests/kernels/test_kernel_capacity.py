"""What the row format gains in cached tokens, by the project's own arithmetic. Only this test joins the two packages:
the kernels import neither prime_inference nor the gateway."""

import pytest
from prime_kernels.nvfp4_sparse_mla.rows import FP8_ROW_BYTES, NVFP4_ROW_BYTES

from prime_inference.kv.capacity import (
    GLM_5_3_FP8,
    GLM_5_3_NVFP4,
    ROW_BYTES_FP8,
    ROW_BYTES_NVFP4,
    cached_tokens,
    unchanged_bytes_between,
)

ARTICLE_FP8_TOKENS = 1_090_000
ARTICLE_NVFP4_TOKENS = 1_630_000


def test_the_kernels_rows_are_those_that_capacity_is_planned_with() -> None:
    assert (NVFP4_ROW_BYTES, FP8_ROW_BYTES) == (ROW_BYTES_NVFP4, ROW_BYTES_FP8)


def test_rows_and_indexers_alone_would_give_58_percent_more_tokens() -> None:
    pool = ARTICLE_FP8_TOKENS * GLM_5_3_FP8.bytes_per_token
    assert cached_tokens(pool, GLM_5_3_NVFP4) / ARTICLE_FP8_TOKENS == pytest.approx(1.576, abs=0.001)


def test_the_share_that_does_not_shrink_is_what_the_articles_two_figures_leave() -> None:
    unchanged = unchanged_bytes_between(GLM_5_3_FP8, ARTICLE_FP8_TOKENS, GLM_5_3_NVFP4, ARTICLE_NVFP4_TOKENS)
    assert unchanged == 5_008  # bytes a token, a tenth of what an FP8 token takes
    fp8, nvfp4 = GLM_5_3_FP8.with_unchanged(unchanged), GLM_5_3_NVFP4.with_unchanged(unchanged)
    pool = ARTICLE_FP8_TOKENS * fp8.bytes_per_token
    assert cached_tokens(pool, nvfp4) == pytest.approx(ARTICLE_NVFP4_TOKENS, rel=1e-4)
    assert cached_tokens(pool, nvfp4) / ARTICLE_FP8_TOKENS == pytest.approx(1.495, abs=0.001)


def test_a_share_that_would_be_negative_is_refused() -> None:
    with pytest.raises(ValueError, match="more tokens than the rows alone"):
        unchanged_bytes_between(GLM_5_3_FP8, ARTICLE_FP8_TOKENS, GLM_5_3_NVFP4, 2_000_000)
