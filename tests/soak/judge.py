"""What a soak's samples say: pure, so that a committed result can be judged again."""

from statistics import median
from typing import Any

MOST_GROWTH_MIB = 8.0
"""Median of the last quarter against that of the second: the first quarter fills pools, caches and arenas."""

IDLE_FILES = 64
"""Listeners, Valkey connections and a few kept upstream ones."""

IDLE_TASKS = 40
"""Background tasks of one site, two listeners, and the scrape itself."""


def judge(result: dict[str, Any]) -> dict[str, Any]:
    growth = {}
    for number in sorted({each["replica"] for each in result["samples"]}):
        mine = [each["rss_mib"] for each in result["samples"] if each["replica"] == number]
        quarter = max(1, len(mine) // 4)
        growth[str(number)] = round(median(mine[-quarter:]) - median(mine[quarter : 2 * quarter]), 2)
    last = result["last"]
    held = sum(each["admitted"] + each["in_flight"] for each in last)
    files, tasks = max(each["files"] for each in last), max(each["tasks"] for each in last)
    flat = max(growth.values()) <= MOST_GROWTH_MIB
    clean = held == 0 and files <= IDLE_FILES and tasks <= IDLE_TASKS
    return {
        "rss_growth_mib": growth,
        "held_at_end": held,
        "files_at_end": files,
        "tasks_at_end": tasks,
        "passed": flat and clean and "broken" not in result["ended"],
    }
