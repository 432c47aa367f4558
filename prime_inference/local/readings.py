"""One number out of a page in Prometheus's text format."""

import re


def sum_of(page: bytes, name: str, **labels: str) -> float:
    """Over all samples of that name that carry these labels; 0 when there is none."""
    total = 0.0
    for line in page.decode(errors="replace").splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(\{{.*\}})? (\S+)(?: \d+)?", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            total += float(found[2])
    return total
