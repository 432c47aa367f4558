"""Ports: the one the person chose, checked; the rest, free ones on loopback."""

import random
import socket

from prime_inference.local.errors import UpError

LOWEST, HIGHEST = 20_000, 32_767
"""Below the kernel's range for outgoing connections, so that none of those takes a port before its process binds it; and
Dynamo reads DYN_SYSTEM_PORT as a signed 16-bit number."""


BACKLOG_CONNECTIONS = 2048


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UpError when somebody else does, or the address is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise UpError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another with --port.") from error
    return listener


def free_ports(count: int) -> list[int]:
    """Distinct ports that were free a moment ago, from LOWEST to HIGHEST. All are held while choosing, so none is given
    twice. Raises UpError when there are not enough."""
    held: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(range(LOWEST, HIGHEST + 1), HIGHEST + 1 - LOWEST):
            if len(held) == count:
                break
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                listener.close()
                continue
            held.append(listener)
        if len(held) < count:
            raise UpError(f"fewer than {count} ports are free between {LOWEST} and {HIGHEST}.")
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()
