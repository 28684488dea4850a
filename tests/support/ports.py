"""TCP ports on loopback for processes that tests start.

From below the range out of which the system takes ports for outgoing connections: one of those may
be gone again before the process that it was meant for listens, as soon as others connect.
"""

import random
import socket

_PORTS = range(10_000, 32_000)
_random = random.SystemRandom()
_given: set[int] = set()
"""What has been handed out: whoever got it may not listen yet, or not at the moment."""


def free_port() -> int:
    """A port that nobody listens on now and that nobody else here gets. Take it soon: other
    processes do not know of it."""
    return _free(1)


def free_pair() -> int:
    """A port that is free, and the next one too."""
    return _free(2)


def _free(count: int) -> int:
    while True:
        first = _random.choice(_PORTS)
        ports = range(first, first + count)
        if not _given.intersection(ports) and all(map(_can_be_bound, ports)):
            _given.update(ports)
            return first


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
