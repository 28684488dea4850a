"""Links over real ipc sockets: each connection is reported, a send to a missing peer fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from odradek.node.bus.endpoint import (
    DealerLink,
    bind_endpoint,
    drain,
    drain_with_identity,
    ipc_address,
)

DEADLINE_MS = 5_000


@pytest.fixture
def context() -> "Iterator[zmq.Context[zmq.Socket[bytes]]]":
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.term()


def _await_connected(link: DealerLink) -> bool:
    return bool(link.monitor.poll(DEADLINE_MS)) and link.take_connected()


def test_each_connection_is_reported_once(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    address = ipc_address(tmp_path, "a")
    link = DealerLink(context, address, b"worker-0")
    assert not link.take_connected()
    with bind_endpoint(context, address):
        assert _await_connected(link)
        assert not link.take_connected()
    with bind_endpoint(context, address):
        assert _await_connected(link)
    link.close()


def test_messages_carry_the_identity_of_their_sender(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    address = ipc_address(tmp_path, "b")
    bound = bind_endpoint(context, address)
    link = DealerLink(context, address, b"worker-7")
    assert _await_connected(link)
    link.socket.send(b"one")
    assert bound.poll(DEADLINE_MS)
    assert list(drain_with_identity(bound)) == [(b"worker-7", b"one")]
    bound.send_multipart((b"worker-7", b"two"))
    assert link.socket.poll(DEADLINE_MS)
    assert list(drain(link.socket)) == [b"two"]
    link.close()
    bound.close(0)


def test_a_send_to_a_peer_that_is_not_connected_fails(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    bound = bind_endpoint(context, ipc_address(tmp_path, "c"))
    with pytest.raises(zmq.ZMQError) as caught:
        bound.send_multipart((b"worker-1", b"x"), zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH
    bound.close(0)


def test_a_link_without_a_connection_queues_nothing(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    link = DealerLink(context, ipc_address(tmp_path, "d"), b"worker-0")
    with pytest.raises(zmq.Again):
        link.socket.send(b"lost", zmq.NOBLOCK)
    link.close()


def test_a_new_connection_takes_over_the_identity(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    address = ipc_address(tmp_path, "e")
    bound = bind_endpoint(context, address)
    old = DealerLink(context, address, b"worker-0")
    assert _await_connected(old)
    new = DealerLink(context, address, b"worker-0")
    assert _await_connected(new)
    new.socket.send(b"here")
    assert bound.poll(DEADLINE_MS)
    assert list(drain_with_identity(bound)) == [(b"worker-0", b"here")]
    bound.send_multipart((b"worker-0", b"for the new one"))
    assert new.socket.poll(DEADLINE_MS)
    old.close()
    new.close()
    bound.close(0)


def test_a_run_folder_whose_path_is_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too long for a Unix socket"):
        ipc_address(tmp_path / ("x" * 120), "router-0")
