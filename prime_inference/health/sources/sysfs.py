"""Network cards and the boot, from sysfs and procfs under any root."""

from pathlib import Path

from prime_inference.health.readings import Port

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

NO_STATE_DRIVERS = frozenset({"efa"})
"""Report ACTIVE whatever happens: their word about state is worth nothing, their network interface's is."""


class Sysfs:
    def __init__(self, root: Path, boot_id: Path = BOOT_ID) -> None:
        self._root = root
        self._boot_id = boot_id

    def boot_id(self) -> str | None:
        return _text(self._boot_id)

    def ports(self) -> tuple[Port, ...]:
        found = []
        for device in _folders(self._root / "class/infiniband"):
            driver = _driver(device)
            for folder in _folders(device / "ports"):
                if folder.name.isdigit():
                    found.append(_port(device, int(folder.name), folder, driver))
        return tuple(found)


def _port(device: Path, number: int, folder: Path, driver: str | None) -> Port:
    counters: dict[str, int | None] = {}
    for kind in ("counters", "hw_counters"):
        for file in sorted(_files(folder / kind)):
            counters[file.name] = _number(file)
    state = _word(folder / "state")
    if driver in NO_STATE_DRIVERS:
        operstates = [_text(net / "operstate") for net in _folders(device / "device/net")]
        state = None if not operstates else "ACTIVE" if "up" in operstates else "DOWN"
    return Port(
        device=device.name,
        number=number,
        state=state,
        phys_state=_word(folder / "phys_state"),
        link_layer=_text(folder / "link_layer"),
        counters=counters,
    )


def _driver(device: Path) -> str | None:
    link = device / "device/driver"
    return link.resolve().name if link.exists() else None


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def _files(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.is_file()] if path.is_dir() else []


def _text(path: Path) -> str | None:
    """A file's content; None if it is not there or the driver refuses to say (EINVAL on an absent counter)."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _word(path: Path) -> str | None:
    """`4: ACTIVE` -> `ACTIVE`."""
    text = _text(path)
    return None if text is None else text.partition(":")[2].strip() or text


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None
