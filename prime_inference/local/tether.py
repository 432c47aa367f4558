"""`python -m prime_inference.local.tether PARENT_PID NICE -- COMMAND...`: become COMMAND, tied to its supervisor's life.

The kernel sends SIGTERM when the supervisor dies in a way it cannot answer for (kill -9, out of memory): no stack is left
running without an owner. Linux only; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Linux, prctl(2)."""


def tie_to(parent: int) -> None:
    """Ask for SIGTERM at the parent's death. Ends this process if the parent is gone already."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the supervisor ended before this process began")


def main(arguments: list[str]) -> None:
    parent, nice, separator, *command = arguments
    if separator != "--" or not command:
        sys.exit(__doc__)
    tie_to(int(parent))
    os.nice(int(nice))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
