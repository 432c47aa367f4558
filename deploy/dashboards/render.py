"""Writes Grafana's JSON from panels.yaml into the chart: two panels a row, one data source that the viewer chooses."""

import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TARGET = HERE.parent / "helm/prime-inference/files/dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, COLUMNS = 12, 8, 2


def panel(number: int, given: dict[str, Any]) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": given["title"],
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": given["unit"], "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
            for index, (legend, expression) in enumerate(given["queries"].items())
        ],
    }


def dashboard(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "uid": given["uid"],
        "title": given["title"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [panel(number, each) for number, each in enumerate(given["panels"])],
    }


def rendered() -> dict[str, str]:
    """File name -> content."""
    given = yaml.safe_load((HERE / "panels.yaml").read_text())
    return {f"{each['uid']}.json": json.dumps(dashboard(each), indent=1) + "\n" for each in given}


if __name__ == "__main__":
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, content in rendered().items():
        (TARGET / name).write_text(content)
