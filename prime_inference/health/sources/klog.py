"""The kernel's ring buffer by the system call: what a container may do with CAP_SYSLOG alone.

/dev/kmsg would need a privileged container, since the device controller lets no other open it. The call returns the
whole buffer each time, so lines are told apart by the kernel's own times.
"""

import ctypes
import os
import re

from prime_inference.health.readings import KernelLine

READ_ALL = 3
SIZE_BUFFER = 10
"""Actions of syslog(2)."""

LINE = re.compile(r"^<\d+>\[\s*(\d+)\.(\d{6})\] (.*)$")


class Klog:
    def __init__(self) -> None:
        self._last = -1
        self._seen_then: set[str] = set()

    def lines(self) -> tuple[KernelLine, ...]:
        """Lines since the last call. Raises OSError (EPERM without CAP_SYSLOG)."""
        return self.new_in(_read_all())

    def new_in(self, text: str) -> tuple[KernelLine, ...]:
        """Those of the buffer that were not told yet. `sequence` is microseconds since boot; several lines share one."""
        found = []
        for line in text.splitlines():
            parts = LINE.match(line)
            if parts is None:
                continue
            at, message = int(parts[1]) * 1_000_000 + int(parts[2]), parts[3]
            if at < self._last or (at == self._last and message in self._seen_then):
                continue
            if at > self._last:
                self._last, self._seen_then = at, set()
            self._seen_then.add(message)
            found.append(KernelLine(at, message))
        return tuple(found)


def _read_all() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(SIZE_BUFFER, None, 0)
    if size < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    buffer = ctypes.create_string_buffer(size)
    length = libc.klogctl(READ_ALL, buffer, size)
    if length < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return buffer.raw[:length].decode("utf-8", "replace")
