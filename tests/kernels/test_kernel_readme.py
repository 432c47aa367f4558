"""The README's numbers are those of the committed results."""

import json
import re
import statistics

import pytest
from prime_kernels.build import PACKAGE

README = (PACKAGE / "nvfp4_sparse_mla" / "README.md").read_text()
RESULTS = PACKAGE.parent / "benchmarks" / "results" / "2026-11-30c-kernel-nvfp4-sparse-mla"
EARLIER = RESULTS.with_name("2026-11-30b-kernel-nvfp4-sparse-mla")
"""Counters, profile and retrieval, of the same kernel."""
BENCHMARK = json.loads((RESULTS / "benchmark.json").read_text())
MEASUREMENTS = BENCHMARK["measurements"]


def median(path: str, tokens: int, state: str, **others: object) -> float:
    """The first measurement of that kind; a later one of the same kind shows the spread."""
    wanted = {"path": path, "tokens": tokens, "state": state, "heads": 16, "topk": 2048, "indices": "request"}
    wanted |= {"early_launch": False, **others}
    found = [m for m in MEASUREMENTS if all(m[key] == value for key, value in wanted.items())]
    return float(found[0]["median_us"])


def public(tokens: int, state: str, heads: int = 16) -> float:
    """FlashMLA in the better of its arrangements."""
    paths = [path for path in ("flashmla", "flashmla5") if path == "flashmla" or tokens % 5 == 0]
    return min(median(path, tokens, state, heads=heads) for path in paths)


def table_rows() -> list[list[str]]:
    lines = README.split("| tokens | cluster |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_covers_1_to_128_tokens() -> None:
    assert [int(row[0]) for row in table_rows()][::16] == [1, 128]


@pytest.mark.parametrize("row", table_rows(), ids=lambda row: f"{row[0]} tokens")
def test_each_line_of_the_table_is_what_was_measured(row: list[str]) -> None:
    tokens = int(row[0])
    warm = [*(median(path, tokens, "warm") for path in ("native", "fp8", "staged")), public(tokens, "warm")]
    cold = [*(median(path, tokens, "cold") for path in ("native", "fp8", "staged")), public(tokens, "cold")]
    ratios = [warm[0] / other for other in warm[1:]]
    assert row[2:] == [f"{value:.2f}" for value in (*warm, *ratios, *cold)]


def test_every_median_is_that_of_its_samples() -> None:
    for measurement in MEASUREMENTS:
        assert measurement["median_us"] == pytest.approx(statistics.median(measurement["samples_us"]), abs=0.001)


def test_the_bars_that_the_readme_says_are_met_are_met() -> None:
    native, ours = median("native", 15, "warm"), median("fp8", 15, "warm")
    assert native <= 12.0
    assert native <= 0.68 * median("staged", 15, "warm")
    assert native <= 0.88 * public(15, "warm")
    assert ours <= public(15, "warm")  # our baseline is no straw man
    assert native > 0.88 * ours  # said to be missed
    assert BENCHMARK["flashmla_relative_l2"] < 0.01  # and it was called rightly


def test_the_floor_at_64_tokens_is_what_was_copied() -> None:
    floor = 64 * 2048 * 352 / BENCHMARK["copy_bytes_per_second"] * 1e6
    assert f"{floor:.1f} us that reading" in README
    assert f"{median('native', 64, 'cold') / floor:.1f} times" in README


def test_the_steps_are_what_was_measured() -> None:
    for step in json.loads((EARLIER / "steps.json").read_text()):
        found = next(
            m
            for m in step["measurements"]
            if m["path"] == "native" and m["tokens"] == 15 and m["topk"] == 2048 and m["state"] == "warm"
        )
        assert re.search(rf"\| {found['median_us']:.2f}\b", README), step["step"]


def of_step(measurements: list[dict[str, object]], **others: object) -> float:
    wanted = {
        "path": "native",
        "tokens": 15,
        "topk": 2048,
        "state": "warm",
        "cluster": 8,
        "early_launch": False,
        **others,
    }
    return float(next(m for m in measurements if all(m[key] == value for key, value in wanted.items()))["median_us"])


def test_the_steps_not_kept_stand_beside_the_kernel_of_their_process() -> None:
    steps = json.loads((RESULTS / "steps.json").read_text())
    assert len(steps) == 4
    for step in steps:
        pair = of_step(step["measurements"]), of_step(step["kept_measurements"])
        assert f"| {pair[0]:.2f} beside {pair[1]:.2f}" in README, step["step"]
        assert (RESULTS / step["patch"].split(",")[0]).is_file()
    for step in steps[:2]:
        alone = of_step(step["measurements"], cluster=1), of_step(step["kept_measurements"], cluster=1)
        assert f"{alone[0]:.1f} beside {alone[1]:.1f} in one block" in README


def part(path: str, name: str, topk: int) -> float:
    return median(f"{path}-{name}" if name else path, 15, "warm", topk=topk, cluster=8)


def test_where_the_time_goes_is_what_was_measured() -> None:
    lines = README.split("| the launch ends after |")[1].split("\n\n")[0].splitlines()[2:]
    for line, name in zip(lines, ("launch", "gather", "scores", ""), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert cells == [f"{part(path, name, topk):.2f}" for topk in (2048, 512) for path in ("native", "fp8")]


def test_the_arithmetic_of_the_missed_bar_follows_from_the_parts() -> None:
    saved = part("fp8", "gather", 2048) - part("native", "gather", 2048)
    fp8, native = part("fp8", "", 2048), part("native", "", 2048)
    assert f"gathers in {saved:.2f} us less" in README
    assert f"12 % of {fp8:.2f} us, which is\n  {0.12 * fp8:.2f} us" in README
    assert f"the ratio would be {(fp8 - saved) / fp8:.2f}" in README
    assert f"in at most {saved / 0.12:.1f} us" in README
    assert f"is at {part('fp8', 'scores', 2048):.2f} us before" in README
    assert saved / 0.12 < part("fp8", "scores", 2048)  # so the bar is out of this kernel's reach
    tails = [part("native", "", topk) - part("native", "scores", topk) for topk in (2048, 512)]
    assert f"{tails[0]:.2f} us with eight stages, {tails[1]:.2f} with two" in README
    assert f"Of {native:.2f} us, {part('native', '', 512):.2f} are there" in README


def again(measurement: dict[str, object]) -> bool:
    """15 tokens, native, clusters of 8, warm: all runs of it."""
    wanted = {"path": "native", "tokens": 15, "heads": 16, "topk": 2048, "state": "warm", "indices": "request"}
    wanted |= {"cluster": 8, "early_launch": False}
    return all(measurement[key] == value for key, value in wanted.items())


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
        public(15, "warm", heads=64),
        public(15, "warm", heads=128),
        *(m["median_us"] for m in MEASUREMENTS if again(m)),
    ):
        assert re.search(rf"\b{value:.2f}\b", README), value
    assert f"{BENCHMARK['copy_bytes_per_second'] / 1e12:.2f} TB/s" in README


def test_every_result_names_device_driver_versions_and_source() -> None:
    for folder, name in ((RESULTS, "benchmark"), (EARLIER, "retrieval")):
        result = json.loads((folder / f"{name}.json").read_text())
        for key in ("command", "device", "gpu_uuid", "driver", "torch", "nvcc", "commit", "source_sha256"):
            assert result[key], (name, key)


def test_what_bounds_the_kernel_is_what_was_profiled() -> None:
    runs = json.loads((EARLIER / "counters.json").read_text())["runs"]
    steady = {run["path"]: run for run in runs if run["tokens"] == 15 and run["cluster"] == 1}
    pipe = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active [%]"
    assert f"shared-memory pipe {steady['native'][pipe]:.0f} % (FP8 {steady['fp8'][pipe]:.0f} %)" in README
    instructions = "sm__inst_executed.sum [inst]"
    assert f"{steady['native'][instructions] / steady['fp8'][instructions] - 1:.0%}".replace("%", " % more") in README
    profile = json.loads((EARLIER / "profile.json").read_text())
    roles = profile["stall_samples"]["roles"]
    waits = {name: role["stall_long_sb"] / role["samples"] for name, role in roles.items()}
    assert f"at work {1 - waits['value']:.0%}".replace("%", " %") in README
    assert f"warps waited {waits['key']:.0%}".replace("%", " %") in README
    clock = profile["clock_readings"]
    stages = clock["cluster_barrier_passed"] - clock["first_product"]
    merge = clock["merged"] - clock["cluster_barrier_passed"]
    for cycles in (clock["first_product"], stages, merge, clock["merged"]):
        assert f"{cycles:,}" in README
