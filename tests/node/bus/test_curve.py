"""Keys of several secrets: which one is used, and listening with another one on the same port."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
import zmq

from odradek.node.bus.curve import (
    HANDSHAKE_FAILURES,
    ConnectingKeys,
    CurveListener,
    KeyPair,
    cluster_keys,
    listen,
)
from odradek.node.bus.endpoint import Context, Socket, set_options
from tests.support.waiting import wait_until

OLD, NEW = cluster_keys(["the secret of yesterday", "the secret of tomorrow"])


def test_each_cluster_secret_has_its_own_keys() -> None:
    (keys,) = cluster_keys(["the secret of yesterday"])
    assert keys == OLD
    assert OLD.secret != NEW.secret
    assert len(keys.public) == 40
    assert cluster_keys([]) == ()


def test_a_fingerprint_tells_secrets_apart_and_is_too_short_to_test_guesses() -> None:
    assert OLD.fingerprint != NEW.fingerprint
    assert [len(keys.fingerprint) for keys in (OLD, NEW)] == [4, 4]


def test_another_key_is_tried_after_a_failed_handshake_but_not_at_once() -> None:
    keys = ConnectingKeys([OLD, NEW])
    assert keys.options == OLD.client_options
    assert keys.handshake_failed(100.0)
    assert keys.options == NEW.client_options
    assert not keys.handshake_failed(100.01), "a peer that has neither is not flooded"
    assert keys.options == NEW.client_options
    assert keys.handshake_failed(100.1)
    assert keys.options == OLD.client_options


def test_there_is_nothing_else_to_try_with_one_key_or_none() -> None:
    assert not ConnectingKeys([OLD]).handshake_failed(100.0)
    keys = ConnectingKeys([])
    assert not keys.handshake_failed(100.0)
    assert keys.options == ()


def test_a_connection_is_kept_while_its_key_is_accepted() -> None:
    keys = ConnectingKeys([OLD])
    assert not keys.change([OLD, NEW])
    assert not keys.change([NEW, OLD])
    assert keys.options == OLD.client_options
    assert keys.change([NEW])
    assert keys.options == NEW.client_options


class Port:
    """A port at which a test listens with one key after the other, and its clients."""

    def __init__(self, host: str) -> None:
        self.context: Context = zmq.Context()
        self.listener = CurveListener(self.context, host, 0, self._make_socket)
        self.socket = self.listener.listen_with(OLD)
        address = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        self.address = f"tcp://127.0.0.1:{address.rstrip(bytes(1)).decode().rpartition(':')[2]}"
        self.clients: list[Socket] = []

    def _make_socket(self) -> Socket:
        made = self.context.socket(zmq.ROUTER)
        made.setsockopt(zmq.LINGER, 0)
        return made

    def replace_key(self, key: KeyPair) -> None:
        former, self.socket = self.socket, self.listener.listen_with(key)
        former.close(0)

    def client(self, server: KeyPair, own: KeyPair) -> tuple[Socket, Socket]:
        """A DEALER and its monitor."""
        client = self.context.socket(zmq.DEALER)
        set_options(client, ((zmq.LINGER, 0), (zmq.IMMEDIATE, 1), (zmq.RECONNECT_IVL, 10)))
        set_options(
            client,
            (
                (zmq.CURVE_SERVERKEY, server.public),
                (zmq.CURVE_PUBLICKEY, own.public),
                (zmq.CURVE_SECRETKEY, own.secret),
            ),
        )
        monitor = client.get_monitor_socket(HANDSHAKE_FAILURES)
        client.connect(self.address)
        self.clients += [client, monitor]
        return client, monitor

    def receives_from(self, client: Socket) -> bool:
        """Whether a message of this client is there; those of others are dropped."""
        self.listener.answer_authentication()
        own = b"%d" % self.clients.index(client)
        with suppress(zmq.Again):
            client.send(own, zmq.NOBLOCK)
        received = set()
        with suppress(zmq.Again):
            while True:
                received.add(self.socket.recv_multipart(zmq.NOBLOCK)[-1])
        return own in received

    def refuses(self, monitor: Socket) -> bool:
        self.listener.answer_authentication()
        return bool(monitor.poll(0))

    def close(self) -> None:
        for client in self.clients:
            client.close(0)
        self.socket.close(0)
        self.listener.close()
        self.context.term()


@pytest.fixture(params=["127.0.0.1", ""], ids=["loopback", "all"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    port = Port(request.param)
    yield port
    port.close()


def test_a_client_that_has_only_the_public_key_is_refused(port: Port) -> None:
    stranger, refused = port.client(OLD, KeyPair(*zmq.curve_keypair()))
    wait_until(lambda: port.refuses(refused), what="the stranger is refused")
    assert not port.receives_from(stranger)
    node, _ = port.client(OLD, OLD)
    wait_until(lambda: port.receives_from(node), what="the node is received")


def test_another_key_ends_the_connections_with_the_former_one(port: Port) -> None:
    old, refused = port.client(OLD, OLD)
    wait_until(lambda: port.receives_from(old), what="the node is received")
    port.replace_key(NEW)
    wait_until(lambda: port.refuses(refused), what="its reconnection is refused")
    new, _ = port.client(NEW, NEW)
    wait_until(lambda: port.receives_from(new), what="the new key is accepted")
    assert not port.receives_from(old)


def test_the_port_is_open_while_the_key_is_replaced(port: Port) -> None:
    """A refused connection would mean to the other nodes that the process has ended."""
    host, _, number = port.address.removeprefix("tcp://").rpartition(":")
    for key in (NEW, OLD) * 10:
        port.replace_key(key)
        socket.create_connection((host, int(number)), timeout=5).close()


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost", "0.0.0.0"])
def test_an_address_may_be_a_name_or_all_of_the_machine(host: str) -> None:
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        socket.create_connection((host or "127.0.0.1", port), timeout=5).close()
        with pytest.raises(OSError, match="in use"):
            listen(host, port)
