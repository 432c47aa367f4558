"""Keeping Dynamo's file discovery true while a process stalls, and forgetting a process as soon as it has died.

Dynamo 1.6's file discovery gives every key ten seconds to live. Its owner touches it, any other process deletes it once
expired, and the owner never writes it again: a worker that stalls for ten seconds (a first request compiling on a starved
CPU, a SIGSTOP) is gone for good. The supervisor knows better who lives: it touches the keys of its living processes and
deletes those of a dead one at once.

Which process owns a key is read from the key itself: the TCP address in it belongs to a process group of ours, or it names
an instance whose address does.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TOUCH_EVERY_S = 2.0
"""Five touches within Dynamo's time to live."""

_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class Key:
    """What a key file says about its owner."""

    ports: frozenset[int]
    instances: frozenset[int]


def read_key(text: str) -> Key:
    """Ports and instance ids named in a key. A file being written is empty or broken: it names nothing yet."""
    ports = frozenset(int(port) for port in _ADDRESS.findall(text))
    try:
        content = json.loads(text)
    except ValueError:
        return Key(frozenset(), frozenset())
    instance = content.get("instance_id") if isinstance(content, dict) else None
    return Key(ports, frozenset([instance]) if isinstance(instance, int) else frozenset())


def owner_of(key: Key, ports: Mapping[int, str], instances: Mapping[int, str]) -> str | None:
    """The name of the process that owns the key, or None while nobody is known to."""
    for port in key.ports:
        if port in ports:
            return ports[port]
    return next((instances[instance] for instance in key.instances if instance in instances), None)


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which the process or a descendant listens. Empty when it is gone."""
    found: set[int] = set()
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in family:
        try:
            connections = process.net_connections("tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended while we looked
        found |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    return found


@dataclass
class DiscoveryKeeper:
    """Call `tend` every TOUCH_EVERY_S with the living processes, name -> pid."""

    folder: Path
    _owners: dict[Path, tuple[str, int]] = field(default_factory=dict)
    """Key file -> (name, pid) of the process that wrote it."""
    _instances: dict[int, tuple[str, int]] = field(default_factory=dict)

    def tend(self, living: Mapping[str, int]) -> None:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        self._owners = {path: owner for path, owner in self._owners.items() if path in set(files)}
        strangers = [path for path in files if path not in self._owners]
        if strangers:
            self._learn(strangers, living)
        for path, (name, pid) in self._owners.items():
            if living.get(name) == pid:
                _touch(path)
            else:
                path.unlink(missing_ok=True)

    def _learn(self, strangers: list[Path], living: Mapping[str, int]) -> None:
        ports = {port: name for name, pid in living.items() for port in listening_ports(pid)}
        keys = {path: read_key(_text(path)) for path in strangers}
        # Keys with an address first: they teach which process an instance id belongs to.
        for path, key in sorted(keys.items(), key=lambda item: not item[1].ports):
            instances = {instance: name for instance, (name, pid) in self._instances.items() if living.get(name) == pid}
            name = owner_of(key, ports, instances)
            if name is None:
                continue
            self._owners[path] = (name, living[name])
            for instance in key.instances:
                self._instances[instance] = (name, living[name])


def _touch(path: Path) -> None:
    try:
        os.utime(path)  # unlike `touch`, never brings back a key that its owner withdrew
    except FileNotFoundError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
