"""The runbooks as text: sections, shell lines, queries."""

import re
from dataclasses import dataclass

from gateway.metering.settle_store import STREAM
from tests.deploy.rendered import ROOT

RUNBOOKS = ROOT / "docs/runbooks.md"
OPERATIONS = ROOT / "docs/operations.md"


@dataclass(frozen=True)
class Section:
    heading: str
    text: str

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9 -]", "", self.heading.lower()).replace(" ", "-")

    @property
    def alerts(self) -> set[str]:
        (line,) = re.findall(r"^Alerts?: ([^.]+)\.", self.text, re.MULTILINE)
        return set(re.findall(r"Prime\w+", line))


def sections() -> list[Section]:
    """Those of alerts: the third level."""
    parts = re.split(r"^(#{2,3}) (.+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    levels = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return [Section(heading, text) for level, heading, text in levels if level == "###"]


def blocks(language: str) -> list[str]:
    """The lines of every fenced block."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines() if line.strip()]


def orders() -> list[str]:
    """Every order to a gateway in the runbooks and on the page of operations."""
    inline = re.findall(r"`(admin actions [^`]+)`", OPERATIONS.read_text())
    return [line for line in blocks("sh") if line.startswith("admin actions")] + inline


def orders_of(heading: str) -> list[str]:
    """Those of one section of the page of operations, in its order."""
    (text,) = re.findall(rf"^### {re.escape(heading)}\n(.*?)^##", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"`(admin actions [^`]+)`", text)


def queries() -> list[str]:
    """Fenced queries, and what stands in the text as code and begins like a metric of ours or an engine's."""
    inline = re.findall(r"`((?:prime_|prime:|vllm:|dynamo_|kube_)[^`]+)`", RUNBOOKS.read_text())
    inline = [query for query in inline if query != STREAM]
    return [*blocks("promql"), *inline]
