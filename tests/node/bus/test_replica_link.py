"""Requests and responses between the workers of two nodes, with and without CURVE keys."""

import socket
from collections.abc import Iterator
from typing import TypeAlias

import msgspec
import pytest
import zmq

from odradek.cluster.metadata.image import BrokerImage, BrokerListener, MetadataImage
from odradek.cluster.replication.messages import (
    PAYLOAD_HEAD,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.node.bus.curve import KeyPair
from odradek.node.bus.replica_link import (
    HANDSHAKE_MS,
    FollowerFetch,
    LeaderResponse,
    ReplicaLink,
    ReplicaLinkError,
    ReplicaListener,
    requests,
    send_response,
    worker_address,
)
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
FETCH = ReplicaFetchRequest(1, "c", 2, -1, 0, True)


class Sockets:
    """The sockets of a test, closed after it."""

    def __init__(self) -> None:
        self.context: Context = zmq.Context()
        self._listeners: list[ReplicaListener] = []
        self._links: list[ReplicaLink] = []

    def bind(self, *keys: KeyPair) -> tuple["zmq.Socket[bytes]", str]:
        listener, address = self.listen(*keys)
        return listener.socket, address

    def listen(
        self, *keys: KeyPair, address: str = "tcp://127.0.0.1:*"
    ) -> tuple[ReplicaListener, str]:
        listener = ReplicaListener(self.context, address, keys)
        self._listeners.append(listener)
        endpoint = listener.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return listener, endpoint.rstrip(b"\0").decode()

    def link(self, address: str, identity: bytes, *keys: KeyPair) -> ReplicaLink:
        link = ReplicaLink(self.context, address, identity, keys)
        self._links.append(link)
        return link

    def close(self) -> None:
        for link in self._links:
            link.close()
        for listener in self._listeners:
            listener.close()
        self.context.term()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    sockets.close()


def make_keys() -> KeyPair:
    return KeyPair(*zmq.curve_keypair())


def wait_until_connected(
    link: ReplicaLink, listener: ReplicaListener, timeout_s: float = LIVENESS_S
) -> None:
    def is_connected() -> bool:
        listener.tick()
        return link.take_connected()

    wait_until(is_connected, what="the connection", timeout_s=timeout_s)


def receive(socket: "zmq.Socket[bytes]") -> FollowerFetch:
    return wait_until(lambda: next(requests(socket), None), what="a request")  # type: ignore[return-value]


def receive_answer(link: ReplicaLink) -> LeaderResponse:
    return wait_until(lambda: next(link.responses(), None), what="an answer")  # type: ignore[return-value]


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_response_has_its_batches_in_a_writable_payload(
    sockets: Sockets, is_encrypted: bool
) -> None:
    keys = (make_keys(),) if is_encrypted else ()
    listener, address = sockets.listen(*keys)
    socket = listener.socket
    link = sockets.link(address, b"2-0-1", *keys)
    wait_until_connected(link, listener)
    assert link.send(FETCH)
    identity, fetch = receive(socket)
    assert (identity, fetch) == (b"2-0-1", FETCH)
    part = ReplicaPartitionData(1, 0, 5, 0, 9, 300_000)
    fetched = ReplicaFetchResponse(1, 0, 0, (part,))
    batches: list[bytes | memoryview] = [
        bytes(PAYLOAD_HEAD),
        b"a" * 100_000,
        memoryview(b"b" * 200_000),
    ]
    assert send_response(socket, identity, fetched, batches)
    answer = receive_answer(link)
    assert answer.fetched == fetched
    assert not answer.payload.readonly
    assert bytes(answer.payload) == b"".join(batches)
    assert send_response(socket, identity, ReplicaFetchResponse(2, 0, 0), ())
    assert len(receive_answer(link).payload) == 0


def test_a_client_without_the_keys_is_not_connected(sockets: Sockets) -> None:
    keys = make_keys()
    listener, address = sockets.listen(keys)
    socket = listener.socket
    strangers = [
        sockets.link(address, b"plain"),
        sockets.link(address, b"other", make_keys()),
    ]
    friend = sockets.link(address, b"friend", keys)
    wait_until_connected(friend, listener)
    for stranger in strangers:
        assert not stranger.send(FETCH), "it is not connected"
    friend.send(FETCH)
    assert receive(socket).identity == b"friend"
    assert next(requests(socket), None) is None


def test_followers_connect_again_when_the_key_is_replaced(sockets: Sockets) -> None:
    old, new = make_keys(), make_keys()
    listener, address = sockets.listen(old)
    link, late = sockets.link(address, b"link", old), sockets.link(address, b"late", old)
    for each in (link, late):
        wait_until_connected(each, listener)
    assert listener.change_keys([old, new]) is None
    link.change_keys([old, new])
    assert link.send(FETCH), "still connected"
    assert receive(listener.socket).identity == b"link"
    former = listener.socket
    assert listener.change_keys([new, old]) is former
    assert former.closed
    wait_until_connected(link, listener)
    assert link.send(FETCH)
    assert receive(listener.socket).identity == b"link"
    assert listener.change_keys([new]) is None
    link.change_keys([new])
    assert link.send(FETCH), "still connected"
    assert receive(listener.socket).identity == b"link"

    def is_refused() -> bool:
        listener.tick()
        return listener.refused_count > 5

    wait_until(is_refused, what="the late one is refused")
    assert not late.take_connected()
    assert not late.send(FETCH)


def test_a_peer_that_accepts_and_says_nothing_is_left_for_one_that_answers(
    sockets: Sockets,
) -> None:
    """As a listener that is replaced between the connection and its handshake. ZeroMQ would wait
    for 30 s, in which the follower leaves the ISR."""
    keys = make_keys()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        link = sockets.link(f"tcp://127.0.0.1:{port}", b"follower", keys)
        accepted, _address = silent.accept()
    with accepted:
        listener, _ = sockets.listen(keys, address=f"tcp://127.0.0.1:{port}")
        wait_until_connected(link, listener, timeout_s=3 * HANDSHAKE_MS / 1000)


def test_a_listener_without_keys_gets_none_later(sockets: Sockets) -> None:
    listener, _ = sockets.listen()
    assert listener.authenticator is None
    assert listener.change_keys([make_keys()]) is None
    listener.tick()


def test_an_address_in_use_is_an_error(sockets: Sockets) -> None:
    for keys in [(), (make_keys(),)]:
        _, address = sockets.listen(*keys)
        with pytest.raises(ReplicaLinkError, match=r"(?s)in use.*Each worker listens on a port"):
            ReplicaListener(sockets.context, address, ())


def test_a_send_without_a_connection_returns_false(sockets: Sockets) -> None:
    socket, _ = sockets.bind()
    assert not send_response(socket, b"nobody", ReplicaFetchResponse(1, 0, 0), ())
    link = sockets.link(f"tcp://127.0.0.1:{free_port()}", b"alone")
    assert not link.send(FETCH)


def test_malformed_messages_are_dropped(sockets: Sockets) -> None:
    socket, address = sockets.bind()
    link = sockets.link(address, b"odd")
    wait_until(link.take_connected, what="the connection")
    link.socket.send(b"\xc1nonsense")
    link.socket.send_multipart([b"two", b"frames"])
    link.send(FETCH)
    assert receive(socket).fetch == FETCH
    # The batches of this response are incomplete.
    truncated = ReplicaFetchResponse(1, 0, 0, (ReplicaPartitionData(1, 0, 5, 0, 9, 1_000),))
    send_response(socket, b"odd", truncated, [b"short"])
    send_response(socket, b"odd", ReplicaFetchResponse(2, 0, 0), ())
    assert receive_answer(link).fetched.request_id == 2


def test_a_store_is_served_by_one_of_the_workers_that_a_broker_has_registered() -> None:
    listeners = (
        BrokerListener("PLAINTEXT", "h", 9092),
        BrokerListener("worker-0", "h", 1),
        BrokerListener("worker-1", "::1", 2),
    )
    brokers = {1: BrokerImage(1, 10, listeners=listeners), 2: BrokerImage(2, 11)}
    image = msgspec.structs.replace(MetadataImage.empty(), brokers=brokers)
    assert worker_address(image, 1, 2) == "tcp://h:1"
    assert worker_address(image, 1, 3) == "tcp://[::1]:2"
    assert [worker_address(image, node_id) for node_id in (1, 2, 3)] == ["tcp://h:1", None, None]
