"""Requests to a running local cluster. What they do is in tests/node/cli/test_cluster_up.py."""

import socket
import threading
from pathlib import Path

import pytest

from odradek.node.cluster_control import (
    SOCKET_NAME,
    ControlAnswer,
    ControlError,
    ControlRequest,
    ControlServer,
    NoClusterError,
    answer,
    ask,
)


def answered(server: ControlServer, result: ControlAnswer) -> list[ControlRequest]:
    """Answer the next request in a thread; the request is in the list afterwards."""
    seen: list[ControlRequest] = []

    def serve() -> None:
        with server.exchange() as (request, connection):
            seen.append(request)
            answer(connection, result)

    threading.Thread(target=serve).start()
    return seen


def test_a_request_gets_its_answer(tmp_path: Path) -> None:
    with ControlServer(tmp_path) as server:
        seen = answered(server, ControlAnswer(pid=42))
        assert ask(tmp_path, ControlRequest("start", 2)) == ControlAnswer(pid=42)
        assert seen == [ControlRequest("start", 2)]
        answered(server, ControlAnswer(error="it is ill"))
        with pytest.raises(ControlError, match="it is ill"):
            ask(tmp_path, ControlRequest("start", 2))
    assert not (tmp_path / SOCKET_NAME).exists()


def test_only_the_owner_may_ask(tmp_path: Path) -> None:
    with ControlServer(tmp_path):
        assert (tmp_path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600


def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET_NAME))
    left.close()
    with pytest.raises(NoClusterError):
        ask(tmp_path, ControlRequest("stop", 0))
    with ControlServer(tmp_path) as server:
        answered(server, ControlAnswer())
        assert ask(tmp_path, ControlRequest("stop", 0)).is_changed


def test_a_client_that_sends_nonsense_is_an_error_of_that_client(tmp_path: Path) -> None:
    with ControlServer(tmp_path) as server, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / SOCKET_NAME))
        client.sendall(b"stop 1")
        client.shutdown(socket.SHUT_WR)
        with pytest.raises(ControlError, match="not a request"), server.exchange():
            pass
