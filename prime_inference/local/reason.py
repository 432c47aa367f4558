"""Why a process ended, read from the end of its log: pure."""

import re
import signal

_ERROR_LINE = re.compile(
    r"(?:^|[\s.])([A-Z]\w*(?:Error|Exception|Exit|Interrupt)): (.+)|^(?:prime-inference \w+): (.+)|: error: (.+)"
)
_PREFIX = re.compile(r"^\(\w+ pid=\d+\)\s*(?:(?:ERROR|WARNING|INFO)\s[\d-]+ [\d:.]+ \[[^\]]+\]\s*)?")
GENERIC = ("Engine core initialization failed", "Worker failed with error", "See root cause above")
"""vLLM repeats a worker's error in these; the first cause stands above them."""

MAX_CHARACTERS = 500
"""One sentence, not a traceback."""

MAX_LINES = 400
"""An engine's traceback through three processes fits."""


def ended_because(code: int, log: str) -> str:
    """What to tell of a process that ended with `code` (negative: the signal that killed it) and wrote `log`."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"it was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return reason_in(log)


def reason_in(log: str) -> str:
    """One sentence: the last specific error in the log, else its last line."""
    lines = [_PREFIX.sub("", line).strip() for line in log.splitlines()[-MAX_LINES:]]
    found = [number for number, line in enumerate(lines) if _ERROR_LINE.search(line)]
    specific = [number for number in found if not any(words in lines[number] for words in GENERIC)]
    if not found:
        return ([line for line in lines if line] or ["it wrote nothing"])[-1][:MAX_CHARACTERS]
    last = (specific or found)[-1]
    # pydantic names the field and what is wrong with it on the two lines below its first.
    told = lines[last : last + 3] if "validation error" in lines[last] else lines[last : last + 1]
    return " ".join(told)[:MAX_CHARACTERS]
