"""The runbooks' commands, run against a running stack."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.conftest import needs_on_ci
from tests.deploy.runbook import blocks
from tests.support.stack import ROOT, Stack

LOOKS = [line for line in blocks("sh") if line.startswith("admin overview")]


def admin(stack: Stack, line: str) -> subprocess.CompletedProcess[str]:
    """A line of the runbooks in a shell where `admin` is what they define, with this stack's address."""
    (function,) = [line for line in blocks("sh") if line.startswith("admin()")]
    assert "http://127.0.0.1:8001" in function
    function = function.replace("http://127.0.0.1:8001", stack.running["internal_url"])
    key = (stack.state / "admin-key").read_text().strip()
    script = f"ADMIN_KEY={key}\n{function}\n{line.replace('gb200', 'local')}"
    return subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("line", sorted(set(LOOKS)))
def test_a_look_shows_what_it_names(mocker_stack: Stack, line: str) -> None:
    needs_on_ci(shutil.which("jq") is not None, "jq")
    assert mocker_stack.answers()
    said = admin(mocker_stack, line)
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    assert re.findall(r'^  "(\w+)": null', said.stdout, re.MULTILINE) == [], "keys that are not there"


@pytest.mark.parametrize("line", sorted({line for line in blocks("sh") if line.startswith("admin actions")}))
def test_an_order_is_obeyed_or_refused_as_the_runbooks_say(mocker_stack: Stack, line: str) -> None:
    said = admin(mocker_stack, line).stdout
    if '"action": "drain"' in line:
        assert "last_deployment" in said
    elif "probe" in line:
        assert "probe: succeeded" in said
    else:
        assert '"result":"done"' in said


def test_the_canary_asks_every_pair(mocker_stack: Stack) -> None:
    """The mocker's text is made up of the request, so pairs are right; that it ends with 0 is what operators go by."""
    line = next(line for line in blocks("sh") if "health canary" in line)
    words = shlex.split(line.partition(" -- prime-inference ")[2])
    words[words.index("--frontend") + 1] = mocker_stack.running["frontend_url"]
    words[words.index("--model") + 1] = mocker_stack.model
    said = subprocess.run(
        [sys.executable, "-m", "prime_inference", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count('"right"') == 2
