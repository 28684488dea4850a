"""TCP ports on loopback for processes that tests start."""

import socket


def free_port() -> int:
    """A port that nobody listens on now. Take it at once: it is not reserved."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether something accepts connections at 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_pair() -> int:
    """A port that is free, and the next one too."""
    while True:
        port = free_port()
        if port < 65_535 and not is_listening(port + 1):
            return port
