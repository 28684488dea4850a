"""Connections between workers of different nodes, and from routers to workers of other nodes.

ZeroMQ over TCP with CURVE (curve.py). The leader's worker listens (`ReplicaListener`), the
follower's worker connects (`ReplicaLink`). A message is one frame of msgpack
(cluster/replication/messages.py) or two: the second frame of a response has the batches, as they
are in the logs. A client without the secret fails in the handshake, in which nothing is allocated.

Routers of other nodes connect to the same listener (`WorkerLink`). Their requests follow an empty
frame. The worker forwards requests and responses without decoding them.

Queues are bounded: a fetch session has at most two requests in flight.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.replication.messages import ReplicaFetchRequest, ReplicaFetchResponse
from odradek.node.bus.curve import HANDSHAKE_FAILURES, ConnectingKeys, CurveListener, KeyPair
from odradek.node.bus.endpoint import (
    LISTENING,
    Context,
    DealerLink,
    Socket,
    SocketOptions,
    bind_endpoint,
    drain_frames,
    encode,
    set_options,
)
from odradek.node.config import WORKER_LISTENER_PREFIX
from odradek.storage.layout import index_of

HANDSHAKE_MS = 3_000
"""How long a handshake may take. A listener that is replaced may leave one without an answer."""

# A peer whose machine is gone sends nothing. Without heartbeats the connection would stay open
# until the kernel gives up.
_LIVENESS: SocketOptions = (
    (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
    (zmq.HEARTBEAT_IVL, 1_000),
    (zmq.HEARTBEAT_TIMEOUT, 3_000),
)
_COPY_BYTES_MAX = 64 << 10
_RESPONSES_MAX = 100

_decode_request = msgspec.msgpack.Decoder(ReplicaFetchRequest).decode
_decode_response = msgspec.msgpack.Decoder(ReplicaFetchResponse).decode


class ReplicaLinkError(Exception):
    """A worker's address for other nodes cannot be bound."""


class FollowerFetch(NamedTuple):
    """A follower's request. `identity` is the address of the response."""

    identity: bytes
    fetch: ReplicaFetchRequest


class LeaderResponse(NamedTuple):
    """A leader's response. `payload` is writable and not shared."""

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
    worker = workers[index_of(store) % len(workers)]
    return tcp_address(worker.host, worker.port)


class ReplicaListener:
    """Where a worker listens for other nodes. Without keys nothing is encrypted."""

    def __init__(self, context: Context, address: str, keys: Sequence[KeyPair]) -> None:
        """Raises ReplicaLinkError if the address cannot be bound."""
        self._context = context
        self._keys = tuple(keys)
        self._curve: CurveListener | None = None
        self._monitor: Socket | None = None
        self.refused_count = 0
        """Handshakes of clients without the key."""
        try:
            if not self._keys:
                self.socket = bind_endpoint(context, address, _LIVENESS)
                return
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            self._curve = CurveListener(
                context, host.strip("[]"), int(port.replace("*", "0")), self._make_socket
            )
        except (zmq.ZMQError, OSError) as error:
            raise ReplicaLinkError(
                f"{address}: {error}. Each worker listens on a port of its own after that of"
                " peer.listen. Choose another port in `peers`, or stop the process that uses this"
                " one."
            ) from error
        self._listen(self._curve)

    def _make_socket(self) -> Socket:
        socket = self._context.socket(zmq.ROUTER)
        set_options(socket, (*LISTENING, *_LIVENESS))
        return socket

    def _listen(self, curve: CurveListener) -> None:
        self.socket = curve.listen_with(self._keys[0])
        self._monitor = self.socket.get_monitor_socket(HANDSHAKE_FAILURES)

    @property
    def authenticator(self) -> "Socket | None":
        """A socket to poll; then call `tick`. None without keys."""
        return None if self._curve is None else self._curve.authenticator

    def tick(self) -> None:
        """Authenticate clients, and count those that were refused."""
        if self._curve is None:
            return
        self._curve.answer_authentication()
        assert self._monitor is not None
        self.refused_count += sum(1 for _ in drain_frames(self._monitor))

    def change_keys(self, keys: Sequence[KeyPair]) -> "Socket | None":
        """Listen with the first of these keys. Returns the socket that has been replaced and is
        closed; None if it is the same as before."""
        if self._curve is None or not keys or keys[0] == self._keys[0]:
            return None
        self._keys = tuple(keys)
        former, monitor = self.socket, self._monitor
        self._listen(self._curve)
        former.disable_monitor()
        if monitor is not None:
            monitor.close(0)
        former.close(0)
        return former

    def close(self) -> None:
        """Close all sockets."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
        self.socket.close(0)
        if self._curve is not None:
            self._curve.close()


class WorkerLink(DealerLink):
    """A connection to a worker of another node. A router sends an empty frame and a payload that
    the worker forwards."""

    __slots__ = ("_address", "_keys")

    def __init__(
        self, context: Context, address: str, identity: bytes, keys: Sequence[KeyPair]
    ) -> None:
        self._address = address
        self._keys = ConnectingKeys(keys)
        options = (*_LIVENESS, *self._keys.options)
        events = zmq.Event.HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILURES
        super().__init__(context, address, identity, options, events)

    def take_connected(self) -> bool:
        """See DealerLink. Connects again with another key if a handshake has failed."""
        connected = False
        while True:
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return connected
            if not self._keys.count or not is_failure(frames):
                connected = True
            elif self._keys.handshake_failed(time.monotonic()):
                self._connect_again()

    def change_keys(self, keys: Sequence[KeyPair]) -> None:
        """Use these keys; a connection with another one ends."""
        if self._keys.change(keys):
            self._connect_again()

    def _connect_again(self) -> None:
        with suppress(zmq.ZMQError):
            self.socket.disconnect(self._address)
        set_options(self.socket, self._keys.options)
        self.socket.connect(self._address)


def is_failure(frames: Sequence[bytes]) -> bool:
    """Whether a monitor's message reports that a handshake has failed."""
    return bool(parse_monitor_message(list(frames))["event"] & HANDSHAKE_FAILURES)


class ReplicaLink(WorkerLink):
    """A follower's connection to a worker of the leader's node. After `take_connected` the fetch
    sessions start over."""

    def send(self, fetch: ReplicaFetchRequest) -> bool:
        """Send a request. False if there is no connection."""
        try:
            self.socket.send(encode(fetch), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def responses(self) -> Iterator[LeaderResponse]:
        """The received responses. Malformed ones are dropped: their requests time out and are
        repeated."""
        for _ in range(_RESPONSES_MAX):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                fetched = _decode_response(frames[0].buffer)
            except msgspec.MsgspecError:
                continue
            payload = frames[1].buffer if len(frames) > 1 else memoryview(b"")
            if sum(part.byte_count for part in fetched.partitions) <= len(payload):
                yield LeaderResponse(fetched, payload)


def requests(
    socket: Socket,
    on_relay: Callable[[bytes, bytes], None] = lambda _identity, _payload: None,
) -> Iterator[FollowerFetch]:
    """The received requests of followers. `on_relay(identity, payload)` is called with those of
    routers."""
    for frames in drain_frames(socket):
        if len(frames) == 3 and not frames[1]:
            on_relay(frames[0], frames[2])
        if len(frames) != 2:
            continue
        try:
            yield FollowerFetch(frames[0], _decode_request(frames[1]))
        except msgspec.MsgspecError:
            continue


def send_response(
    socket: Socket,
    identity: bytes,
    fetched: ReplicaFetchResponse,
    batches: Sequence["bytes | memoryview"],
) -> bool:
    """Send a response, with `batches`, the first of which is the headroom (`PAYLOAD_HEAD`). False
    if the follower is not connected.

    The batches are joined: this copy costs less than a frame for each batch, because the payload is
    encrypted or copied into the kernel anyway. And no segment must be held until ZeroMQ has sent
    its data.
    """
    frames: list[bytes] = [identity, encode(fetched)]
    if batches:
        frames.append(b"".join(batches))
    is_copied = not batches or len(frames[-1]) <= _COPY_BYTES_MAX
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=is_copied)
    except zmq.ZMQError:
        return False
    return True


def send_relayed(socket: Socket, identity: bytes, payload: bytes) -> None:
    """Forward a router's response to the router of another node, if it is still connected."""
    with suppress(zmq.ZMQError):
        socket.send_multipart((identity, b"", payload), zmq.NOBLOCK)
