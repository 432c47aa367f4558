"""`prime-inference toolcheck` in every suite, as a user calls it, against a model with no sense (`grammar_writer`) behind the
real Dynamo frontend and the gateway: what holds of its calls is the grammar's and the parser's doing alone."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.findings import Effect
from prime_inference.toolcalls.suite.live import schema_cases
from tests.conformance.toolcalls.conftest import Door
from tests.support.gateway import KEY

pytestmark = pytest.mark.slow

SCHEMAS = 40


def not_held(count: int) -> set[str]:
    """Cases with a tool of which the grammar holds only a part: a model with no sense gets those wrong."""
    found = set()
    for case in schema_cases(count):
        tools = declare(case.tools).tools.values()
        if any(finding.effect is Effect.LOOSER for tool in tools for finding in tool.findings):
            found.add(case.id)
    return found


@pytest.mark.asyncio(loop_scope="session")
async def test_every_suite_passes_for_a_model_that_writes_whatever_the_grammar_allows(
    door: Door, tmp_path: Path
) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "prime_inference", "toolcheck", "--base-url", door.url, "--model", "glm"),
        *("--schemas", str(SCHEMAS), "--json", str(report), "--html", str(page)),
        env={**os.environ, "PRIME_API_KEY": KEY},
        stdout=asyncio.subprocess.PIPE,
    )
    output = (await process.communicate())[0].decode()
    read = json.loads(report.read_text())
    assert read["not_run"] == {}
    assert {row["group"] for row in read["results"]} == {"wire", "schemas", "choice", "streaming", "multi-turn"}
    wrong = [row for row in read["results"] if not row["passed"]]
    loose = not_held(SCHEMAS)
    assert [row for row in wrong if row["id"] not in loose] == []
    assert all(row["verdicts"] == ["SchemaMismatch"] for row in wrong if row["outcome"] == "calls_wrong")
    made = [row for row in read["results"] if row["group"] == "schemas" and row["outcome"] == "calls_ok"]
    assert len(made) >= SCHEMAS
    assert process.returncode == (1 if wrong else 0), output
    assert "tool calls" in output
    assert page.read_text().startswith("<!doctype html>")
