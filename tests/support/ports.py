"""TCP ports on loopback for processes that tests start.

They are below the range of ephemeral ports: an outgoing connection could take one of those before
the process listens. TEST_PORTS=FIRST-END leaves others to a run of tests at the same time.
"""

import os
import random
import socket

_PORTS = range(*map(int, os.environ.get("TEST_PORTS", "10000-32000").split("-")))
_random = random.SystemRandom()
_given: set[int] = set()
"""Ports that were returned before: their users may not listen yet, or not at the moment."""


def free_port() -> int:
    """A port that is free and that was not returned before. Use it soon: other processes do not
    know of it."""
    return _free(1)


def free_pair() -> int:
    """A port that is free, together with the next one."""
    return _free(2)


def free_row(count: int) -> int:
    """The first of so many free ports in a row."""
    return _free(count)


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
