"""An address in use is waited for, and then refused."""

import socket
import threading

import pytest

from odradek.node.address_check import ADDRESS_WAIT_S, check_address
from odradek.node.config import ListenerConfig
from odradek.node.config_sources import ConfigurationError


def _listener(server: socket.socket) -> ListenerConfig:
    host, port = server.getsockname()
    return ListenerConfig(name="PLAINTEXT", host=host, port=port)


def test_an_address_that_a_killed_node_has_not_left_yet_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = _listener(server)
        closing = threading.Timer(ADDRESS_WAIT_S / 4, server.close)
        closing.start()
        check_address(listener)
        closing.join()


def test_an_address_that_stays_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = _listener(server)
        with pytest.raises(ConfigurationError, match="Address already in use; choose another"):
            check_address(listener)
