"""The verification suite itself: it must find what is wrong, and pass what is right, over real HTTP."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from prime_inference.toolcalls.command import FAILED, NOTHING_ASKED, Suite, suite_cases, toolcheck
from prime_inference.toolcalls.suite.client import events
from prime_inference.toolcalls.suite.run import same_json
from prime_inference.toolcalls.suite.wire import wire_cases

Answerer = Callable[[dict[str, Any]], dict[str, Any]]
"""A request's body to the message that answers it."""


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


def obedient(body: dict[str, Any]) -> dict[str, Any]:
    """Keeps the contract for the `choice` suite's tools."""
    choice = body.get("tool_choice", "auto")
    tools = [tool["function"] for tool in body.get("tools", ())]
    if choice == "none" or not tools:
        return {"role": "assistant", "content": "hello"}
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    arguments = '{"city": "Bern"}' if tools[0]["name"] == "weather" else "{}"
    return {"role": "assistant", "content": None, "tool_calls": [call(tools[0]["name"], arguments)]}


def careless(body: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"town": 5}')]}


@pytest.fixture
def endpoint() -> Iterator[Callable[[Answerer], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answerer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                message = answer(body)
                finish = "tool_calls" if message.get("tool_calls") else "stop"
                if body.get("stream"):
                    delta = {**message}
                    if "tool_calls" in delta:
                        delta["tool_calls"] = [{**one, "index": index} for index, one in enumerate(delta["tool_calls"])]
                    chunks = [{"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": finish}]
                    lines = [f"data: {json.dumps({'choices': [{'index': 0, **one}]})}\n\n" for one in chunks]
                    payload = (": keep-alive\n\n" + "".join(lines) + "data: [DONE]\n\n").encode()
                else:
                    payload = json.dumps(
                        {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
                    ).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(toolcheck)
    result = CliRunner().invoke(app, ["--model", "m", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_an_endpoint_that_keeps_the_contract_passes(endpoint: Callable[[Answerer], str], tmp_path: Path) -> None:
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    url = endpoint(obedient)
    code, output = run("--base-url", url, "--suite", "choice", "--json", str(report), "--html", str(page))
    assert code == 0, output
    rates = json.loads(report.read_text())["rates"]
    assert rates["answers"] == rates["passed"] == 2 * len(list(suite_cases(Suite.CHOICE, 1)))
    assert rates["verdicts"] == {"Ok": rates["ended_in_tool_calls"]}
    assert "<h1>Tool calls</h1>" in page.read_text()
    assert f"{rates['answers']} of {rates['answers']} answers are as they should be" in page.read_text()
    assert "Not as they should be" not in page.read_text()


def test_an_endpoint_that_breaks_it_fails_and_the_report_says_where(
    endpoint: Callable[[Answerer], str], tmp_path: Path
) -> None:
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    url = endpoint(careless)
    code, output = run("--base-url", url, "--suite", "choice", "--json", str(report), "--html", str(page))
    assert code == FAILED
    results = {(one["id"], one["way"]): one for one in json.loads(report.read_text())["results"]}
    assert all(not one["passed"] for one in results.values())
    assert results["choice.named", "whole"]["verdicts"] == ["SchemaMismatch"]
    assert "fault: choice_ignored" in results["choice.named", "streamed"]["problems"]
    assert results["choice.strict", "whole"]["verdicts"] == ["SchemaMismatch"]
    assert "choice.strict" in output
    rates = json.loads(report.read_text())["rates"]
    before_the_rest = page.read_text().partition("<details>")[0]
    assert f"Not as they should be: {rates['answers']}" in before_the_rest
    assert "<code>choice.strict</code>" in before_the_rest
    number, of = rates["verdicts"]["SchemaMismatch"], sum(rates["verdicts"].values())
    assert f"SchemaMismatch {number} ({100 * number / of:.1f} %)" in output


def test_the_wire_suite_is_not_run_against_a_model(endpoint: Callable[[Answerer], str]) -> None:
    code, output = run("--base-url", endpoint(obedient), "--suite", "wire")
    assert code == NOTHING_ASKED
    assert "canned text" in output


def test_an_endpoint_that_is_not_there_is_its_own_exit_code(endpoint: Callable[[Answerer], str]) -> None:
    code, output = run("--base-url", "http://127.0.0.1:9/v1", "--suite", "wire")
    assert code == NOTHING_ASKED
    assert "ConnectError" in output
    assert run("--base-url", "http://127.0.0.1:9/v1", "--suite", "choice")[0] == NOTHING_ASKED


def test_a_report_that_cannot_be_written_and_a_folder_that_is_none_are_told_before_anything_is_asked(
    endpoint: Callable[[Answerer], str], tmp_path: Path
) -> None:
    def never(body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("asked")

    url = endpoint(never)
    for option, path in (("--json", "none/r.json"), ("--html", "none/r.html"), ("--public", "none")):
        code, output = run("--base-url", url, "--suite", "choice", option, str(tmp_path / path))
        assert code == NOTHING_ASKED
        assert option in output


async def test_only_a_newline_ends_a_line_of_a_stream() -> None:
    async def texts() -> AsyncIterator[str]:
        for text in ('data: {"a": "x\u2028y"}\n\nda', 'ta: {"b"', ": 1}\r\n\n: comment\nevent: x\ndata: [DONE]\n"):
            yield text

    assert [event async for event in events(texts())] == [{"a": "x\u2028y"}, {"b": 1}]


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        ('{"a":1}', '{"a": 1}', True),
        ('{"a": 1.0}', '{"a": 1}', False),
        ('{"b": 1, "a": 2}', '{"a": 2, "b": 1}', False),
        ("{", "{", True),
        ("{", "{}", False),
    ],
)
def test_arguments_are_compared_as_values_written_the_same_way(got: str, wanted: str, same: bool) -> None:
    assert same_json(got, wanted) is same


def test_all_suites_have_unique_ids_and_sources() -> None:
    cases = list(suite_cases(Suite.ALL, 50))
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.source for case in cases)
    assert {case.group for case in cases} == {str(suite) for suite in Suite} - {"all"}


def test_the_wire_suite_holds_every_maker_in_both_forms() -> None:
    forms = [case.id.rsplit(".", 2)[1] for case in wire_cases() if case.id.count(".") == 3]
    assert {form: forms.count(form) > 50 for form in ("compact", "lines")} == {"compact": True, "lines": True}
