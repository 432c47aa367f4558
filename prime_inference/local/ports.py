"""Ports: the one the person chose, checked; the rest, free ones on loopback."""

import socket

from prime_inference.local.errors import UpError


def check_free(host: str, port: int) -> None:
    """Raises UpError when somebody listens there, or the address is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UpError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another with --port.") from error


def free_ports(count: int) -> list[int]:
    """Distinct ports that were free a moment ago. All are held while choosing, so none is given twice."""
    held = []
    try:
        for _ in range(count):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.bind(("127.0.0.1", 0))
            held.append(listener)
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()
