"""The README's numbers are those of the committed results."""

import json
import re

import pytest
from prime_kernels.build import PACKAGE

README = (PACKAGE / "nvfp4_sparse_mla" / "README.md").read_text()
RESULTS = PACKAGE.parent / "benchmarks" / "results" / "2026-11-30-kernel-nvfp4-sparse-mla"
MEASUREMENTS = json.loads((RESULTS / "benchmark.json").read_text())["measurements"]


def median(path: str, tokens: int, state: str, **others: object) -> float:
    """The first measurement of that kind; a later one of the same kind shows the spread."""
    wanted = {"path": path, "tokens": tokens, "state": state, "heads": 16, "topk": 2048, "indices": "request"}
    wanted |= {"early_launch": False, **others}
    found = [m for m in MEASUREMENTS if all(m[key] == value for key, value in wanted.items())]
    return float(found[0]["median_us"])


def table_rows() -> list[list[str]]:
    lines = README.split("| tokens | cluster |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_covers_1_to_128_tokens() -> None:
    assert [int(row[0]) for row in table_rows()][::16] == [1, 128]


@pytest.mark.parametrize("row", table_rows(), ids=lambda row: f"{row[0]} tokens")
def test_each_line_of_the_table_is_what_was_measured(row: list[str]) -> None:
    tokens = int(row[0])
    warm = [median(path, tokens, "warm") for path in ("native", "fp8", "staged")]
    cold = [median(path, tokens, "cold") for path in ("native", "fp8", "staged")]
    ratios = [warm[0] / warm[1], warm[0] / warm[2]]
    assert row[2:] == [f"{value:.2f}" for value in (*warm, *ratios, *cold)]


def test_the_numbers_in_the_text_are_what_was_measured() -> None:
    for value in (
        median("native", 15, "warm", early_launch=True),
        median("native", 15, "cold", indices="uniform"),
        median("fp8", 15, "cold", indices="uniform"),
        median("native", 64, "warm", indices="uniform"),
        median("fp8", 64, "warm", indices="uniform"),
        median("native", 64, "cold", indices="uniform"),
        median("fp8", 64, "cold", indices="uniform"),
        *(median("native", 15, "warm", heads=heads) for heads in (8, 32, 64, 128)),
    ):
        assert re.search(rf"\b{value:.2f}\b", README), value


def test_every_result_names_device_driver_versions_and_source() -> None:
    for name in ("benchmark", "retrieval"):
        result = json.loads((RESULTS / f"{name}.json").read_text())
        for key in ("command", "device", "gpu_uuid", "driver", "torch", "nvcc", "commit", "source_sha256"):
            assert result[key], (name, key)
