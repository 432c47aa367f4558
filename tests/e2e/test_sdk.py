"""The real `openai` client against the real stack: its current major and the previous one."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import needs_on_ci
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).with_name("sdk_cases.py")
NAMES = re.findall(r"^@case\ndef (\w+)", SCRIPT.read_text(), re.MULTILINE)
PREVIOUS = Path(sys.prefix) / "openai-previous"
"""Where `make test` installs the previous major."""


@cache
def run_cases(url: str, key: str, model: str, path: str) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, str(SCRIPT), url, key, model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    results: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("major", "path"), [("3", ""), ("2", str(PREVIOUS))], ids=["openai-3", "openai-2"])
def test_openai_sdk(real_stack: Stack, major: str, path: str, name: str) -> None:
    needs_on_ci(not path or Path(path).is_dir(), "the previous major of the OpenAI SDK")
    results = run_cases(real_stack.url, real_stack.key, real_stack.model, path)
    assert str(results["version"]).split(".")[0] == major
    assert results["cases"][name] == "ok", results["cases"][name]  # type: ignore[index]
