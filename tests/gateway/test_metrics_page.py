"""docs/metrics.md against the page that a gateway serves: every metric, its labels, its meaning, and what to do about it."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.test_relay import CHAT, STREAM, UNARY, WHOLE
from tests.support.gateway import gateway
from tests.support.upstream import answers, sends, upstream

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(
    r"^\| (?P<names>`prime_gateway_[^|]*) \| (?P<labels>[^|]*)\| (?P<meaning>[^|]*) \| (?P<todo>[^|]*) \|$", re.M
)


def documented() -> dict[str, set[str]]:
    rows: dict[str, set[str]] = {}
    for row in ROW.finditer(PAGE.read_text()):
        assert row["meaning"].strip(), row[0]
        assert row["todo"].strip(), row[0]
        for name in re.findall(r"`([a-z_]+)`", row["names"]):
            rows[name] = set(re.findall(r"`([a-z_]+)`", row["labels"]))
    return rows


async def test_the_page_of_metrics_names_every_metric_with_its_labels_and_nothing_else(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as whole, upstream(sends(*WHOLE)) as streamed:
        served: dict[str, set[str]] = {}
        for number, (up, body) in enumerate(((whole, CHAT), (streamed, STREAM))):
            (tmp_path / str(number)).mkdir()
            async with gateway(tmp_path / str(number), [up.url]) as gw:
                async with gw.session.post(f"{gw.url}/chat/completions", json=body) as response:
                    await response.read()
                async with gw.session.get(f"{gw.internal_url}/metrics") as response:
                    page = await response.text()
            for family in text_string_to_metric_families(page):
                if family.name.startswith("prime_gateway_"):
                    name = family.name + ("_total" if family.type == "counter" else "")
                    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                    served[name] = served.get(name, set()) | labels
    rows = documented()
    assert set(rows) == set(served)
    wrong = {name: (labels, rows[name]) for name, labels in served.items() if labels and labels != rows[name]}
    assert not wrong
