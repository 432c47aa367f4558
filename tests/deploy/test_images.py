"""Dockerfiles: linted, pinned, not root; and their install lines, run in clean environments. No image is built here."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import needs_on_ci
from tests.deploy.rendered import ROOT

pytestmark = pytest.mark.slow

IMAGES = ROOT / "deploy/images"
FILES = sorted(path.name for path in IMAGES.glob("*.Dockerfile"))
INSTALLS_WITHIN_S = 300


def hadolint() -> str:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    needs_on_ci(found is not None, "hadolint")
    assert found is not None
    return found


def test_there_is_a_file_an_image() -> None:
    assert FILES == ["agent.Dockerfile", "engine.Dockerfile", "gateway.Dockerfile"]


@pytest.mark.parametrize("file", FILES)
def test_hadolint_has_nothing_to_say(file: str) -> None:
    run = subprocess.run([hadolint(), IMAGES / file], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES)
def test_an_image_ends_as_an_ordinary_user_and_pins_what_it_takes(file: str) -> None:
    text = (IMAGES / file).read_text()
    assert re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)[-1] not in ("0", "")
    for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        assert ":" in base or base == "${RUNTIME}"
        assert not base.endswith(":latest")
    lines = re.findall(r"pip install (.*)$", text, re.MULTILINE)
    assert lines
    assert all("-c requirements/gateway.txt" in line or "--no-deps" in line for line in lines)


def test_the_engine_takes_the_pins_of_the_gpu_stack() -> None:
    pins = (ROOT / "requirements/gpu.txt").read_text().split()
    text = (IMAGES / "engine.Dockerfile").read_text()
    found = re.findall(r"[\w-]+==[\w.]+", text)
    assert found
    assert set(found) <= set(pins)
    dynamo = next(pin.partition("==")[2] for pin in pins if pin.startswith("ai-dynamo=="))
    assert f"vllm-runtime:{dynamo}" in text


def clean_copy(to: Path) -> Path:
    """What .dockerignore lets into the build: the packages, and what their build reads."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in allowed:
        source, target = ROOT / name, to / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return to


@pytest.mark.parametrize(
    ("file", "command", "says"),
    [
        ("gateway.Dockerfile", ["gateway"], "PRIME_GATEWAY_FLEET_FILE"),
        ("agent.Dockerfile", ["health", "agent"], "PRIME_HEALTH_NODE"),
    ],
)
def test_the_install_lines_run_in_a_clean_environment(file: str, command: list[str], says: str, tmp_path: Path) -> None:
    text = (IMAGES / file).read_text()
    (line,) = re.findall(r"^RUN (python -m venv /opt/prime && .*)$", text, re.MULTILINE)
    line = line.replace("/opt/prime", str(tmp_path / "prime")).replace("python -m", f"{sys.executable} -m", 1)
    source = clean_copy(tmp_path / "src")
    run = subprocess.run(
        ["sh", "-c", line], cwd=source, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    program = tmp_path / "prime/bin/prime-inference"
    started = subprocess.run(
        [program, *command], env={"PATH": "/usr/bin"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert started.returncode == 2, started.stderr
    assert says in started.stderr
    installed = sum(path.stat().st_size for path in (tmp_path / "prime").rglob("*") if path.is_file())
    print(f"{file}: {installed / 1e6:.0f} MB installed")
    assert installed < 250e6, "small"
    if file == "gateway.Dockerfile":
        # What `--build-arg EXTRAS=gateway,otel` adds, under the same constraints.
        extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["otel"]
        pip = [tmp_path / "prime/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = re.findall(r"-c \S+", line)
        assert len(constraints) == 3
        added = subprocess.run(
            [*pip, *" ".join(constraints).split(), *extra],
            cwd=source,
            capture_output=True,
            text=True,
            timeout=INSTALLS_WITHIN_S,
            check=False,
        )
        assert added.returncode == 0, added.stderr[-2000:]
        sends = "import opentelemetry.sdk, opentelemetry.exporter.otlp.proto.http"
        subprocess.run([tmp_path / "prime/bin/python", "-c", sends], check=True, timeout=60)


def test_all_that_the_image_with_tool_calls_takes_is_pinned(tmp_path: Path) -> None:
    """`--build-arg EXTRAS=gateway,toolcalls`, which the GLM presets need: resolved by pip, and not installed, since torch
    alone is a gigabyte."""
    text = (IMAGES / "gateway.Dockerfile").read_text()
    (line,) = re.findall(r"^RUN python -m venv /opt/prime && \S+/pip install (.*)$", text, re.MULTILINE)
    source, report = clean_copy(tmp_path / "src"), tmp_path / "report.json"
    line = line.replace("${EXTRAS:-gateway}", "gateway,toolcalls")
    dry = f"'{sys.executable}' -m pip install --dry-run --ignore-installed --quiet --report '{report}' {line}"
    run = subprocess.run(
        ["sh", "-c", dry], cwd=source, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    pins = {
        re.sub(r"[._]", "-", name.lower())
        for file in re.findall(r"-c (\S+)", line)
        for name in re.findall(r"^([\w.-]+)==", (ROOT / file).read_text(), re.MULTILINE)
    }
    taken = {
        re.sub(r"[._]", "-", each["metadata"]["name"].lower()) for each in json.loads(report.read_text())["install"]
    }
    assert {"torch", "xgrammar", "transformers"} <= taken
    # Where pip knows of no CPU build, torch brings CUDA's libraries, and pins them itself.
    assert {name for name in taken - pins if not name.startswith(("nvidia-", "cuda-"))} == {"prime-inference"}


def test_the_engines_install_line_runs_in_a_clean_environment(tmp_path: Path) -> None:
    """Beside its runtime, which is not here: that the pins exist for this Python, and that ours lie beside them."""
    text = (IMAGES / "engine.Dockerfile").read_text()
    (line,) = re.findall(r"^RUN (python3 -m pip install .*)$", text, re.MULTILINE)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    line = line.replace("python3", str(tmp_path / "venv/bin/python"), 1)
    source = clean_copy(tmp_path / "src")
    run = subprocess.run(
        ["sh", "-c", line], cwd=source, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    site = next((tmp_path / "venv/lib").glob("python3*/site-packages"))
    assert (site / "prime_inference/kv/connector.py").is_file()
    assert (site / "mooncake/mooncake_master").is_file()
    assert (tmp_path / "venv/bin/lmcache").is_file()
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert "prime_inference" in points["vllm.general_plugins"]
