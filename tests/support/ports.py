"""TCP ports on loopback for processes that tests start.

From below the range out of which the system takes ports for outgoing connections: one of those may
be gone again before the process that it was meant for listens, as soon as others connect.
"""

import random
import socket

_PORTS = range(10_000, 32_000)
_random = random.SystemRandom()


def free_port() -> int:
    """A port that nobody listens on now. Take it at once: it is not reserved."""
    while True:
        port = _random.choice(_PORTS)
        if _can_be_bound(port):
            return port


def free_pair() -> int:
    """A port that is free, and the next one too."""
    while True:
        port = free_port()
        if _can_be_bound(port + 1):
            return port


def is_listening(port: int) -> bool:
    """Whether something accepts connections at 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
