"""Between nodes: how a follower's worker reaches a leader's worker. ZeroMQ over tcp with CURVE.

The leader's worker listens (`bind_replica_listener`), the follower's connects (`ReplicaLink`). A
message is one frame of msgpack (cluster/replication/messages.py) or two: an answer with records has
their batches in the second, as they stand in the logs. Both ends have the same key pair, made from
the cluster's secret: the listener's public key is never sent, so that whoever has not got the
secret does not get past the handshake, in which we allocate nothing.

Routers of other nodes come in by the same door: what they ask stands behind an empty frame, is
passed on unread, and so is the answer (`RelayLink`).

Nothing is queued without bound: a conversation has at most two requests under way.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import zmq

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.replication.messages import ReplicaFetchRequest, ReplicaFetchResponse
from odradek.node.bus.endpoint import DealerLink
from odradek.node.bus.peers import KeyPair
from odradek.node.config import WORKER_LISTENER_PREFIX

_HEARTBEAT_MS = 1_000
_HEARTBEAT_TIMEOUT_MS = 3_000
_COPY_BYTES_MAX = 64 << 10

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(ReplicaFetchRequest).decode
_decode_answer = msgspec.msgpack.Decoder(ReplicaFetchResponse).decode


class ReplicaLinkError(Exception):
    """A worker's address for other nodes cannot be listened on."""


class FollowerFetch(NamedTuple):
    """What a follower asked; `identity` is where the answer goes."""

    identity: bytes
    fetch: ReplicaFetchRequest


class LeaderResponse(NamedTuple):
    """What a leader answered. `payload` is writable and nobody else's."""

    fetched: ReplicaFetchResponse
    payload: memoryview


def tcp_address(host: str, port: int) -> str:
    """ZeroMQ's form of an address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def worker_address(image: MetadataImage, node_id: int, store: int = 0) -> str | None:
    """The registered address of the worker that owns a store of another node; None if there is
    none. Any of its workers relays requests to its router."""
    broker = image.brokers.get(node_id)
    workers = [
        listener
        for listener in (broker.listeners if broker is not None else ())
        if listener.name.startswith(WORKER_LISTENER_PREFIX)
    ]
    if not workers:
        return None
    worker = workers[store % len(workers)]
    return tcp_address(worker.host, worker.port)


def bind_replica_listener(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, keys: KeyPair | None
) -> "zmq.Socket[bytes]":
    """The listening socket. Raises ReplicaLinkError if the address cannot be had."""
    socket = context.socket(zmq.ROUTER)
    _prepare(socket)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ReplicaLinkError(
            f"{address}: {error}. Each worker listens on a port of its own after that of"
            " peer.listen. Choose another port in `peers`, or stop the process that uses this one."
        ) from error
    return socket


class ReplicaLink(DealerLink):
    """The connecting side, to one worker of a leader's node. `take_connected` says when to begin
    anew."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        identity: bytes,
        keys: KeyPair | None,
    ) -> None:
        super().__init__(context, address, identity, prepare=lambda socket: _prepare(socket, keys))

    def send(self, fetch: ReplicaFetchRequest) -> bool:
        """Ask; False if nobody is connected."""
        try:
            self.socket.send(_encode(fetch), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def responses(self, at_most: int = 100) -> Iterator[LeaderResponse]:
        """The answers that have come. What makes no sense is dropped; the request that it answers
        is repeated when its time is over."""
        for _ in range(at_most):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                fetched = _decode_answer(frames[0].buffer)
            except msgspec.MsgspecError:
                continue
            payload = frames[1].buffer if len(frames) > 1 else memoryview(b"")
            if sum(part.byte_count for part in fetched.partitions) <= len(payload):
                yield LeaderResponse(fetched, payload)


class RelayLink(DealerLink):
    """The connecting side of a router, to a worker of another node. Messages are an empty frame and
    one that the worker passes on."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        identity: bytes,
        keys: KeyPair | None,
    ) -> None:
        super().__init__(context, address, identity, prepare=lambda socket: _prepare(socket, keys))


def requests(
    socket: "zmq.Socket[bytes]",
    at_most: int = 1_000,
    on_relay: Callable[[bytes, bytes], None] = lambda _identity, _payload: None,
) -> Iterator[FollowerFetch]:
    """The requests that have come to a listening socket. `on_relay(identity, payload)` gets those
    that are meant for a router."""
    for _ in range(at_most):
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(frames) == 3 and not frames[1]:
            on_relay(frames[0], frames[2])
        if len(frames) != 2:
            continue
        try:
            yield FollowerFetch(frames[0], _decode_request(frames[1]))
        except msgspec.MsgspecError:
            continue


def send_response(
    socket: "zmq.Socket[bytes]",
    identity: bytes,
    fetched: ReplicaFetchResponse,
    batches: Sequence["bytes | memoryview"],
) -> bool:
    """Answer, with these batches behind the head (`PAYLOAD_HEAD`) if there are any. False if the
    follower is gone.

    They are joined: one copy of what is to be encrypted or copied into the kernel anyway costs less
    than a frame for each of them, and nobody has to hold a segment until ZeroMQ has let it go.
    """
    frames: list[bytes] = [identity, _encode(fetched)]
    if batches:
        frames.append(b"".join(batches))
    is_copied = not batches or len(frames[-1]) <= _COPY_BYTES_MAX
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=is_copied)
    except zmq.ZMQError:
        return False
    return True


def send_relayed(socket: "zmq.Socket[bytes]", identity: bytes, payload: bytes) -> None:
    """Bring a router's answer to the router that asked, if it is still there."""
    with suppress(zmq.ZMQError):
        socket.send_multipart((identity, b"", payload), zmq.NOBLOCK)


def _prepare(socket: "zmq.Socket[bytes]", keys: KeyPair | None = None) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    # A peer whose machine is gone says nothing; without it followers would wait for the kernel.
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
