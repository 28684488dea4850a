"""Whether an address can be bound, before the processes of a node are started."""

import errno
import socket
import time

from odradek.node.config import ListenerConfig
from odradek.node.config_sources import ConfigurationError

ADDRESS_WAIT_S = 2.0
_ADDRESS_POLL_S = 0.05


def check_address(
    listener: ListenerConfig, key: str = "listeners", *, wait_s: float = ADDRESS_WAIT_S
) -> None:
    """Raise ConfigurationError if the listener's address cannot be bound. Waits `wait_s` for
    an address in use: the processes of a node that was killed end a moment after it."""
    host = listener.host or "0.0.0.0"
    deadline = time.monotonic() + wait_s
    try:
        found = socket.getaddrinfo(host, listener.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        while True:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(address)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                        raise
                else:
                    return
            time.sleep(_ADDRESS_POLL_S)
    except OSError as error:
        raise ConfigurationError(
            f"{key}={listener.name}://{listener.host}:{listener.port}: {error.strerror};"
            " choose another address or stop the process that uses it."
        ) from error
