"""The committed Alertmanager configuration, in a running Alertmanager: what reaches whom, with which words. The paging service
and the dead man's switch are a listener here."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from prime_inference.local.ports import free_ports
from tests.conftest import needs_on_ci
from tests.deploy.test_alerts import ALERTS
from tests.support.listening import listening

WITHIN_S = 60.0
QUICK = {"group_wait": "0s", "group_interval": "1s"}
ALWAYS = [{"name": "working-hours", "time_intervals": [{"times": [{"start_time": "00:00", "end_time": "24:00"}]}]}]
NEVER = [{"name": "working-hours", "time_intervals": [{"years": ["1999"]}]}]


@contextmanager
def listener() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    heard: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as url:
        yield url, heard


def moved(config: dict[str, Any], url: str, folder: Path, hours: list[dict[str, Any]]) -> dict[str, Any]:
    """The committed one, with our addresses and key files, without its pauses, and with other working hours."""
    for receiver in config["receivers"]:
        for number, to in enumerate(receiver.get("pagerduty_configs", [])):
            key = folder / f"{receiver['name']}-{number}"
            key.write_text("k" * 32)
            to |= {"routing_key_file": str(key), "url": f"{url}/{receiver['name']}"}
        for to in receiver.get("webhook_configs", []):
            to["url"] = f"{url}/{receiver['name']}"
    for route in [config["route"], *config["route"]["routes"]]:
        route.update(QUICK)
    return config | {"time_intervals": hours}


@contextmanager
def alertmanager(
    folder: Path, url: str, hours: list[dict[str, Any]]
) -> Iterator[Callable[[list[dict[str, str]]], None]]:
    """Yields a way to fire alerts."""
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    needs_on_ci(binary is not None, "alertmanager (requirements/system.txt)")
    assert binary is not None
    config = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text())
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(moved(config, url, folder, hours)))
    (port,) = free_ports(1)
    command = [binary, f"--config.file={folder / 'alertmanager.yaml'}", f"--storage.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    api = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)

    def fire(alerts: list[dict[str, str]]) -> None:
        started = datetime.now(UTC) - timedelta(seconds=5)
        body = [
            {
                "labels": labels,
                "annotations": {"summary": f"s of {labels['alertname']}", "runbook_url": "https://runbooks.example/#x"},
                "startsAt": started.isoformat(),
            }
            for labels in alerts
        ]
        api.post("/api/v2/alerts", json=body).raise_for_status()

    try:
        deadline = time.monotonic() + WITHIN_S
        while not ready(api):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield fire
    finally:
        api.close()
        process.terminate()
        process.wait(15)
        log.close()


def ready(api: httpx.Client) -> bool:
    try:
        return api.get("/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def words(heard: list[tuple[str, dict[str, Any]]], receiver: str) -> set[str]:
    return {body["payload"]["summary"] for path, body in heard if path == f"/{receiver}"}


PAGE = {"severity": "page"}


@pytest.mark.slow
def test_a_failed_node_is_one_page_with_its_runbook_and_the_watchdog_goes_on(tmp_path: Path) -> None:
    with listener() as (url, heard), alertmanager(tmp_path, url, ALWAYS) as fire:
        fire([{"alertname": "PrimeNodeFailed", "node": "a", "state": "failed", **PAGE}])
        until(lambda: bool(words(heard, "on-call")))
        fire(
            [
                {"alertname": "PrimeLinkDown", "node": "a", "check": "ib_port", "entity": "mlx5_0/1", **PAGE},
                {"alertname": "PrimeGpuFault", "node": "b", "check": "xid", "entity": "xid79/gpu2", **PAGE},
                {"alertname": "PrimeErrorBudgetBurnsFast", "model": "m", **PAGE},
                {"alertname": "PrimeKvHoldsExpire", "namespace": "n", "pod": "p0", "severity": "ticket"},
                {"alertname": "PrimeWatchdog", "severity": "none"},
            ]
        )
        expected = {"PrimeNodeFailed", "PrimeGpuFault", "PrimeErrorBudgetBurnsFast"}
        until(lambda: words(heard, "on-call") >= {f"s of {name}" for name in expected})
        until(lambda: bool(words(heard, "tickets")) and any(path == "/deadman" for path, _ in heard))
        assert words(heard, "on-call") == {f"s of {name}" for name in expected}, "the link is the node's page already"
        assert words(heard, "tickets") == {"s of PrimeKvHoldsExpire"}
        pages = [body for path, body in heard if path == "/on-call"]
        assert {page["payload"]["severity"] for page in pages} == {"critical"}
        assert all(page["links"] == [{"href": "https://runbooks.example/#x", "text": "runbook"}] for page in pages)


@pytest.mark.slow
def test_at_night_pages_come_and_tickets_wait(tmp_path: Path) -> None:
    with listener() as (url, heard), alertmanager(tmp_path, url, NEVER) as fire:
        fire([{"alertname": "PrimeSettleRecordsLost", "severity": "ticket"}])
        time.sleep(2)
        fire([{"alertname": "PrimeGatewayAbsent", **PAGE}])
        until(lambda: bool(words(heard, "on-call")))
        assert words(heard, "on-call") == {"s of PrimeGatewayAbsent"}
        assert words(heard, "tickets") == set()
