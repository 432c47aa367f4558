"""`prime-inference toolcheck`: does an endpoint keep the tool-call contract? Exit code 0 yes, 1 no, 2 nothing could
be asked."""

import asyncio
import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prime_inference.toolcalls.suite.cases import Case
from prime_inference.toolcalls.suite.client import EndpointError
from prime_inference.toolcalls.suite.live import choice_cases, multi_turn_cases, schema_cases, streaming_cases
from prime_inference.toolcalls.suite.page import as_html
from prime_inference.toolcalls.suite.public import public_cases
from prime_inference.toolcalls.suite.report import as_json, print_table
from prime_inference.toolcalls.suite.run import Run, run_cases
from prime_inference.toolcalls.suite.wire import wire_cases

FAILED, NOTHING_ASKED = 1, 2


class Suite(StrEnum):
    ALL = "all"
    WIRE = "wire"
    SCHEMAS = "schemas"
    CHOICE = "choice"
    STREAMING = "streaming"
    MULTI_TURN = "multi-turn"


def suite_cases(suite: Suite, schemas: int) -> Iterable[Case]:
    makers = {
        Suite.WIRE: wire_cases,
        Suite.SCHEMAS: lambda: schema_cases(schemas),
        Suite.CHOICE: choice_cases,
        Suite.STREAMING: streaming_cases,
        Suite.MULTI_TURN: multi_turn_cases,
    }
    for name, make in makers.items():
        if suite in (Suite.ALL, name):
            yield from make()


def toolcheck(
    base_url: Annotated[str, typer.Option(help="Up to and with the version: http://host:port/api/v1")],
    model: Annotated[str, typer.Option(help="The model's public name")],
    suite: Annotated[Suite, typer.Option(help="Which cases to run")] = Suite.ALL,
    api_key: Annotated[str, typer.Option(envvar="PRIME_API_KEY", help="Sent as a bearer token")] = "",
    schemas: Annotated[int, typer.Option(min=1, help="Generated tools in the schemas suite")] = 100,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at the same time")] = 4,
    public: Annotated[Path | None, typer.Option(help="Folder with downloaded public suites")] = None,
    json_report: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON")] = None,
    html_report: Annotated[Path | None, typer.Option("--html", help="Write the report as a page")] = None,
) -> None:
    """Check the tool calls of any OpenAI-compatible endpoint."""
    for option, folder in (
        ("--json", json_report and json_report.parent),
        ("--html", html_report and html_report.parent),
        ("--public", public),
    ):
        if folder is not None and not folder.is_dir():
            raise typer.BadParameter(f"{folder} is no folder", param_hint=option)
    console = Console()
    cases = list(suite_cases(suite, schemas))
    absent: dict[str, str] = {}
    if public is not None:
        found, absent = public_cases(public)
        cases += found
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with Console(stderr=True).status("asking") as status:  # silent where standard error is no terminal
            run = asyncio.run(
                run_cases(
                    *(base_url, model, cases, headers, concurrency),
                    done=lambda over, of: status.update(f"{over} of {of} cases"),
                )
            )
    except EndpointError as error:
        console.print(f"{base_url}: {error}", markup=False)
        raise typer.Exit(NOTHING_ASKED) from error
    run.not_run.update(absent)
    about = {"base_url": base_url, "model": model, "suite": str(suite)}
    if json_report is not None:
        json_report.write_text(json.dumps(as_json(run, about), indent=1, ensure_ascii=False) + "\n")
    if html_report is not None:
        html_report.write_text(as_html(run, about))
    print_table(run, console)
    raise typer.Exit(exit_code(run))


def exit_code(run: Run) -> int:
    if not any(result.outcome is not None for result in run.results):
        return NOTHING_ASKED
    return 0 if all(result.passed for result in run.results) else FAILED
