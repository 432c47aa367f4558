"""A node's readings in a JSON file: written by `prime-inference health capture` on a real node, read by tests."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prime_inference.health.readings import Fabric, Gpu, KernelLine, Port, Snapshot

SCHEMA = 1


class FixtureError(Exception):
    """The file is not a capture of this schema."""


def to_json(snapshot: Snapshot, provenance: dict[str, Any]) -> str:
    """`provenance`: who captured it, where, when; for a derived one, from which and what was changed."""
    return json.dumps({"schema": SCHEMA, "provenance": provenance, "snapshot": asdict(snapshot)}, indent=1) + "\n"


def load(path: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Raises FixtureError."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise FixtureError(f"{path} has schema {content.get('schema')}, not {SCHEMA}")
    given = content["snapshot"]
    gpus = given["gpus"]
    ports = given["ports"]
    kernel = given["kernel"]
    return (
        Snapshot(
            at=given["at"],
            boot_id=given["boot_id"],
            gpus=None if gpus is None else tuple(_gpu(gpu) for gpu in gpus),
            ports=None if ports is None else tuple(Port(**port) for port in ports),
            kernel=None if kernel is None else tuple(KernelLine(**line) for line in kernel),
            imex=given["imex"],
        ),
        content["provenance"],
    )


def _gpu(given: dict[str, Any]) -> Gpu:
    fabric = given.pop("fabric")
    links = tuple(given.pop("links_active"))
    return Gpu(**given, links_active=links, fabric=None if fabric is None else Fabric(**fabric))
