"""Nothing resolves dependencies at installation (ADR 0002): the pins must be complete for every Python they are for."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PATCHES = ["3.11.0", "3.11.2", "3.11.14"]
"""Debian 12 has 3.11.2, and some packages need a backport before 3.11.3."""
LEFT_OUT = {
    "aisimulate", "cufile-python", "cupy-cuda13x", "llama-cpp-python", "llm", "pytest", "torchaudio", "torchcodec",
    "torchvision",
}  # fmt: skip
"""ADR 0002 and the comments in the files say why."""


def pins_of(name: str, environment: dict[str, str]) -> set[str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return {canonicalize_name(each.name) for each in wanted if each.marker is None or each.marker.evaluate(environment)}


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("name", ["gateway", "local"])
def test_what_a_pinned_package_needs_on_any_python_3_11_is_pinned_too(name: str, patch: str) -> None:
    environment = {"python_version": "3.11", "python_full_version": patch, "extra": ""}
    pins = pins_of(name, environment)
    missing = set()
    for pin in pins:
        try:
            needs = distribution(pin).requires or []
        except PackageNotFoundError:
            # Pinned for another Python than this one.
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate(environment):
                missing.add((canonicalize_name(need.name), pin))
    missing = {(need, by) for need, by in missing if need not in pins | LEFT_OUT}
    assert not missing, "(needed, by)"
