"""`python -m tests.health.record_link_down OUT.json`: twelve runs of link_down, with raw samples."""

import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks.provenance import provenance, write
from tests.health.link_down import OUT_WITHIN_S, ROOT, ROUND_S, record

RUNS = 12
SEED = 7


def summarise(samples: list[dict[str, float]]) -> dict[str, float]:
    """Of the first request elsewhere, in seconds."""
    taken = sorted(sample["to_first_request_elsewhere"] for sample in samples)
    return {"runs": len(taken), "least_s": round(taken[0], 1), "most_s": round(taken[-1], 1)}


def main() -> None:
    sources = [*(ROOT / "prime_inference/health").rglob("*.py"), ROOT / "tests/health/link_down.py"]
    about = provenance(["aiohttp", "httpx"], sources)
    with tempfile.TemporaryDirectory() as folder:
        samples = asyncio.run(record(Path(folder), RUNS, SEED))
    settings = {"agent_interval_s": ROUND_S, "aim_s": OUT_WITHIN_S, "seed": SEED}
    write(Path(sys.argv[1]), {"about": about, "settings": settings, "samples": samples, "summary": summarise(samples)})


if __name__ == "__main__":
    main()
