"""The kernel's ring buffer: /dev/kmsg, read without waiting, each record once."""

import errno
import os
from pathlib import Path

from prime_inference.health.readings import KernelLine

RECORD_BYTES = 8192
"""The kernel refuses a smaller buffer for its longest record."""

MAX_RECORDS = 20_000
"""A round's worth: a GPU in trouble writes faster than anyone reads; the rest comes with the next round."""


class Kmsg:
    """Opens at the first call, so that a missing or forbidden device is that probe's failure and not the start's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._rest = b""

    def lines(self) -> tuple[KernelLine, ...]:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        found: list[KernelLine] = []
        while len(found) < MAX_RECORDS:
            try:
                chunk = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                # Records were overwritten before they were read: the next read continues behind the gap.
                if error.errno == errno.EPIPE:
                    continue
                raise
            if not chunk:
                break
            *records, self._rest = (self._rest + chunk).split(b"\n")
            found += [line for record in records if (line := record_of(record.decode("utf-8", "replace")))]
        return tuple(found)


def record_of(text: str) -> KernelLine | None:
    """`6,1234,98765,-;message` -> its sequence and message; continuation lines begin with a space."""
    head, mark, message = text.partition(";")
    fields = head.split(",")
    if not mark or len(fields) < 3 or not fields[1].isdigit():
        return None
    return KernelLine(int(fields[1]), message)
