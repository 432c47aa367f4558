"""The L2 client's threads in C, raced under the compiler's sanitizers (tests/native/race.c)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from prime_inference.kv.l2.native import OUTCOMES
from prime_inference.kv.l2.outcomes import KeyOutcome
from tests.conftest import needs_on_ci
from tests.support.compiled_native import SOURCES

RACE = Path(__file__).parents[2] / "native" / "race.c"
SECONDS = "3"
SEEN = {KeyOutcome.OK, KeyOutcome.ABSENT, KeyOutcome.SERVER_ERROR, KeyOutcome.DEADLINE, KeyOutcome.CLOSED}
"""At least, however slow the sanitizer makes it; without one every outcome is seen in a second."""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_no_race_no_leak_and_no_foreign_value_under_cuts_deadlines_and_a_close(tmp_path: Path, sanitizer: str) -> None:
    compiler = shutil.which("cc")
    needs_on_ci(compiler is not None, "a C compiler")
    program = tmp_path / "race"
    sources = [str(RACE), *(str(SOURCES / name) for name in ("batch.c", "exchange.c", "pool.c"))]
    flags = ["-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizer}", "-pthread", f"-I{SOURCES}"]
    built = subprocess.run(
        [str(compiler), *flags, *sources, "-lm", "-o", str(program)], capture_output=True, text=True, check=False
    )
    needs_on_ci("cannot find" not in built.stderr, f"the {sanitizer} sanitizer's library")
    assert built.returncode == 0, built.stderr
    # Without random addresses: some kernels place them where the thread sanitizer has its own memory.
    ran = subprocess.run(
        ["setarch", "-R", str(program), SECONDS], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr[-8000:]
    seen = [int(count) for count in ran.stdout.split()]
    assert {outcome for outcome, count in zip(OUTCOMES, seen, strict=True) if count} >= SEEN, seen
