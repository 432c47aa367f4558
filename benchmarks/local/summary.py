"""From raw samples to the numbers that documents quote: pure, so that a test can do it again."""

from statistics import median
from typing import Any

MIB = 2**20


def summarise(samples: dict[str, Any]) -> dict[str, float]:
    """`ready_s`; `idle_cpu_percent` of each worker and of the rest; `stream_tokens_per_s` over the runs; `memory_mib`.

    One percent of CPU is one hundredth of one core. A stream's rate counts its tokens after the first over the time
    between first and last. Memory is proportional set size, so that shared pages count once.
    """
    idle = samples["idle_cpu_s"]
    rates = [(len(times) - 1) / (times[-1] - times[0]) for times in samples["stream_token_times_s"] if len(times) > 1]
    summary = {
        "ready_s": round(samples["ready_s"], 1),
        "stream_tokens_per_s_median": round(median(rates), 1),
        "stream_tokens_per_s_min": round(min(rates), 1),
        "first_token_s_median": round(median(samples["first_token_s"]), 3),
        "memory_mib": round(sum(samples["memory_pss_bytes"].values()) / MIB),
    }
    for name, seconds in idle["processes"].items():
        summary[f"idle_cpu_percent_{name}"] = round(100 * seconds / idle["over_s"], 1)
    return summary
