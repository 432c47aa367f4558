"""Looks at the fleet and keys files and swaps the snapshot when they change. A file that is wrong keeps the old snapshot,
is logged and counted, and raises an alarm gauge until it is right again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path

from gateway.accounts.keys import KeysFileError
from gateway.fleet.registry import FleetFileError
from gateway.fleet.snapshot import Snapshot, SnapshotError, load_snapshot

logger = logging.getLogger("gateway.fleet")

Mark = tuple[int, int, int] | None
"""What tells two versions of a file apart: inode, size, time of change. None: not there."""


class ReloadResult(StrEnum):
    """Closed: used as a metric label."""

    TAKEN = "taken"
    REFUSED = "refused"


class FileWatch:
    """Polls: a mounted ConfigMap is a chain of links that no file notification follows reliably."""

    def __init__(
        self,
        fleet_file: Path,
        keys_file: Path,
        take: Callable[[Snapshot], Awaitable[None]],
        tell: Callable[[ReloadResult], None],
    ) -> None:
        self._files = (fleet_file, keys_file)
        self._take = take
        self._tell = tell
        self._seen = self._marks()

    async def run(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        marks = await asyncio.to_thread(self._marks)
        if marks == self._seen:
            return
        self._seen = marks
        try:
            snapshot = await asyncio.to_thread(load_snapshot, *self._files)
        except (FleetFileError, KeysFileError, SnapshotError) as error:
            logger.error("files refused, the former ones stay", extra={"error": str(error)})
            self._tell(ReloadResult.REFUSED)
            return
        try:
            await self._take(snapshot)
        except Exception:
            # The boundary of a background task: were it to end here, no file would be looked at again, and nobody told.
            logger.exception("files read and not taken, the former ones stay")
            self._tell(ReloadResult.REFUSED)
            return
        logger.info("files taken", extra={"deployments": sorted(snapshot.fleet.deployments)})
        self._tell(ReloadResult.TAKEN)

    def _marks(self) -> tuple[Mark, ...]:
        return tuple(_mark(path) for path in self._files)


def _mark(path: Path) -> Mark:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)
