"""Node to node: ZeroMQ over TCP between the controllers of one cluster.

Each node binds one ROUTER socket, which only receives, and connects one DEALER socket to every
other known member, which only sends. A DEALER receives only rejections. The owner decides on the
members (`connect`, `disconnect`). Every frame has its sender's address. Queues are short, and
messages that do not fit are dropped: Raft and callers with a deadline send them again.

With a cluster secret the traffic is encrypted by CURVE (curvezmq.org, RFC 26). All nodes have the
same key pair, which is derived from the secret. A client without the secret cannot begin a
handshake, and one with another key is rejected (ZAP, RFC 27).

Every frame has a header of its sender. A node of another cluster, with an incompatible version, or
rejected by the owner gets a reason, which both sides log.
"""

import contextlib
import errno
import hashlib
import logging
import socket as sockets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from odradek.cluster.raft.configuration import node_id_of
from odradek.node.bus.peer_messages import PEER_VERSION, PeerHeader, PeerMessage, PeerRejected

log = logging.getLogger(__name__)

Socket: TypeAlias = "zmq.Socket[bytes]"

_QUEUE_FRAMES = 1_000
_FRAME_BYTES_MAX = 64 << 20
_RECONNECT_MS = 20
_RECONNECT_MS_MAX = 200
_CONNECT_TIMEOUT_MS = 1_000
_HANDSHAKE_MS = 3_000
_PING_MS = 500
"""Detects a peer whose machine is gone."""
_PING_TIMEOUT_MS = 2_000
_LINGER_MS = 100
"""At close, for the leader's last message, which asks a successor to take over."""
_FRAMES_PER_TURN = 1_000
_HEADERS_MAX = 256
_REFUSAL_S = 1.0
_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_HANDSHAKE_FAILURES = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_UNAUTHENTICATED = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
_TIMEOUT_ERRORS = frozenset({errno.EAGAIN, errno.ETIMEDOUT})
"""What a handshake fails with to which nothing was said in its time; who is refused is cut off."""
_FAILURES_PER_LOG_LINE = 3
"""Handshakes that fail in a row before that is worth a line: a peer may be killed in one. One that
takes all of its time is worth a line at once, and as many are before the next."""
_RECONNECT_S = 0.5
_CONNECTIONS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CLOSED
_RECONNECT_REFUSED_S = 0.3
"""A connection that broke and cannot be made again so soon: nobody listens there any more. Another
machine that cannot be reached does not say so, neither that it is gone nor that nobody listens."""

_encode = msgspec.msgpack.Encoder().encode


class PeerBusError(Exception):
    """The peer address cannot be bound."""


class PeerAddress(NamedTuple):
    """Where a node listens for the others."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class KeyPair(NamedTuple):
    """A CURVE key pair, each in ZeroMQ's text form of 40 characters (Z85)."""

    public: bytes
    secret: bytes


def cluster_keys(secret: str) -> KeyPair:
    """The pair of keys that all nodes with this secret have."""
    made = hashlib.blake2b(secret.encode(), digest_size=32, person=b"odradek-peers-1").digest()
    text = z85.encode(made)
    return KeyPair(zmq.curve_public(text), text)


class PeerBus:
    """See the module's docstring. One owner, one thread."""

    def __init__(
        self,
        *,
        header: PeerHeader,
        listen: PeerAddress,
        others: Mapping[int, PeerAddress],
        secret: str = "",
        refuses: Callable[[PeerHeader], PeerRejected | None] = lambda _header: None,
        watch: Callable[[Socket, bool], None] = lambda _socket, _is_new: None,
    ) -> None:
        """`others` are members that are known from the start; a negative number is an address
        whose member is not known. `refuses` may say why a peer is not listened to; it is asked for
        every frame. `watch` hears of sockets that have come (true) or are about to go. Raises
        PeerBusError if `listen` cannot be bound.
        """
        self._own = header
        self._header = _encode(header)
        self._others: dict[int, PeerAddress] = {}
        self._refuses = refuses
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._decode_header = msgspec.msgpack.Decoder(PeerHeader).decode
        self._decode = msgspec.msgpack.Decoder(list[PeerMessage]).decode
        self._decode_refusal = msgspec.msgpack.Decoder(PeerRejected).decode
        self._watch = watch
        self._headers: dict[bytes, PeerHeader | str] = {}
        self._refused_at: dict[str, float] = {}
        self._outgoing: dict[int, list[PeerMessage]] = {}
        self._disconnected_at: dict[int, float] = {}
        self.disconnected_since: dict[int, float] = {}
        """Peers that were connected and are no more: when that was noticed, as time.monotonic."""
        self._failures: dict[int, int] = {}
        self._handshake_timeouts: dict[int, int] = {}
        self._connect_at: dict[int, float] = {}
        self.failed_count = 0
        """Handshakes with peers that came to nothing."""
        self._stopped: list[int] = []
        self.replaced_by: set[int] = set()
        """The members that have said that the quorum has another replica for the one we are."""
        self.dropped_count = 0
        """Messages that found a queue full or nobody connected."""
        self.refused_count = 0
        """Frames and handshakes of those who are not listened to."""
        self._keys = cluster_keys(secret) if secret else None
        self._zap = self._authenticate() if self._keys is not None else None
        self._router = self._bind(listen)
        self._router_monitor = self._router.get_monitor_socket(_HANDSHAKE_FAILURES)
        self._dealers: dict[int, Socket] = {}
        self._monitors: dict[int, Socket] = {}
        for member, address in others.items():
            self.connect(member, address)

    @property
    def others(self) -> Mapping[int, PeerAddress]:
        """The members to connect to, and their addresses."""
        return self._others

    @property
    def sockets(self) -> Sequence[Socket]:
        """The sockets to poll. Then call `receive` and `poll_events`."""
        found = [self._router, self._router_monitor, *self._monitors.values()]
        found += self._dealers.values()
        return found if self._zap is None else [*found, self._zap]

    # -- who is spoken to --------------------------------------------------------------------------

    def connect(self, member: int, address: PeerAddress) -> None:
        """Connect to this member, at this address from now on."""
        if self._others.get(member) == address:
            return
        self.disconnect(member)
        self._others[member] = address
        dealer = self._make_dealer()
        monitor = dealer.get_monitor_socket(_HANDSHAKE_FAILURES | _CONNECTIONS)
        self._dealers[member], self._monitors[member] = dealer, monitor
        dealer.connect(f"tcp://{address}")
        self._watch(dealer, True)
        self._watch(monitor, True)

    def disconnect(self, member: int) -> None:
        """Disconnect from this member."""
        if self._others.pop(member, None) is None:
            return
        dealer, monitor = self._dealers.pop(member), self._monitors.pop(member)
        self._watch(dealer, False)
        self._watch(monitor, False)
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(_LINGER_MS)
        counts = (self._failures, self._handshake_timeouts)
        for notes in (self._disconnected_at, self.disconnected_since, self._connect_at, *counts):
            notes.pop(member, None)
        self._outgoing.pop(member, None)

    # -- speaking ----------------------------------------------------------------------------------

    def send(self, member: int, message: PeerMessage) -> None:
        """Send a message with the next `flush`. Dropped if the member is not known."""
        if member in self._dealers:
            self._outgoing.setdefault(member, []).append(message)

    def flush(self) -> None:
        """Send one frame to each peer. Frames that do not fit into the queue are dropped."""
        if not self._outgoing:
            return
        outgoing, self._outgoing = self._outgoing, {}
        for member, messages in outgoing.items():
            frame = (self._header, _encode(messages))
            try:
                self._dealers[member].send_multipart(frame, zmq.NOBLOCK)
            except zmq.ZMQError:
                self.dropped_count += len(messages)

    # -- listening ---------------------------------------------------------------------------------

    def receive(self) -> Iterator[tuple[PeerHeader, list[PeerMessage]]]:
        """The received messages, of each peer in the order of sending."""
        for _ in range(_FRAMES_PER_TURN):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) != 3:
                self.refused_count += 1
                continue
            connection, head, body = parts
            header = self._headers.get(head)
            if header is None:
                header = self._validated_header(head)
            refused = PeerRejected(header) if isinstance(header, str) else self._refuses(header)
            if refused is not None:
                self._refuse(connection, refused)
                continue
            assert isinstance(header, PeerHeader)
            try:
                messages = self._decode(body)
            except msgspec.DecodeError as error:
                self._refuse(connection, PeerRejected(f"its messages cannot be decoded: {error}"))
                continue
            yield header, messages

    def poll_events(self) -> list[int]:
        """Process connection events and rejections. Returns the newly connected peers."""
        if self._zap is not None:
            self._answer_zap(self._zap)
        for event, _, address in _events(self._router_monitor):
            self.refused_count += bool(event & _HANDSHAKE_FAILURES)
            if not event & _UNAUTHENTICATED:
                continue  # whoever it was has gone in the middle of it
            log.error(
                "rejected a connection to the peer address %s: wrong or missing cluster secret."
                " If it is a node of this cluster, set the same `cluster.secret` on it.",
                address,
            )
        connected = []
        for member, monitor in self._monitors.items():
            for event, value, _ in _events(monitor):
                if event & zmq.Event.HANDSHAKE_SUCCEEDED:
                    connected.append(member)
                    self._disconnected_at.pop(member, None)
                    self.disconnected_since.pop(member, None)
                    self._failures[member] = self._handshake_timeouts[member] = 0
                    self._connect_at.pop(member, None)
                elif event & zmq.Event.DISCONNECTED:
                    self._disconnected_at[member] = time.monotonic()
                    self.disconnected_since.setdefault(member, time.monotonic())
                elif event & zmq.Event.CLOSED:
                    broken_at = self._disconnected_at.pop(member, None)
                    if (
                        broken_at is not None
                        and time.monotonic() - broken_at < _RECONNECT_REFUSED_S
                    ):
                        self._stopped.append(member)
                else:
                    is_timeout = event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
                    is_timeout = is_timeout and value in _TIMEOUT_ERRORS
                    self._on_handshake_failed(member, is_timeout=is_timeout)
            if time.monotonic() >= self._connect_at.get(member, float("inf")):
                del self._connect_at[member]
                self._reconnect(member)
            self._receive_rejections(member)
        return connected

    def _reconnect(self, member: int) -> None:
        """ZeroMQ gives a connection up for good when the other side makes no sense: with another
        secret, or none. It may have been put right since."""
        endpoint = f"tcp://{self._others[member]}"
        with contextlib.suppress(zmq.ZMQError):
            self._dealers[member].disconnect(endpoint)
        self._dealers[member].connect(endpoint)

    def _on_handshake_failed(self, member: int, *, is_timeout: bool) -> None:
        self.failed_count += 1
        self._connect_at.setdefault(member, time.monotonic() + _RECONNECT_S)
        if is_timeout:
            if self._handshake_timeouts.get(member, 0) % _FAILURES_PER_LOG_LINE == 0:
                log.warning(
                    "%s accepts connections but did not answer for %d ms: it is frozen or"
                    " overloaded, or packets are lost",
                    self._name(member),
                    _HANDSHAKE_MS,
                )
            self._handshake_timeouts[member] = self._handshake_timeouts.get(member, 0) + 1
            return
        self._failures[member] = self._failures.get(member, 0) + 1
        if self._failures[member] % _FAILURES_PER_LOG_LINE == 0:
            log.error(
                "the handshake with %s failed. Set the same `cluster.secret` on every node. If it"
                " is the same, something on the network closes the connections.",
                self._name(member),
            )

    def take_stopped(self) -> list[int]:
        """The peers that have refused a reconnection since the last call: their process has
        ended."""
        stopped, self._stopped = self._stopped, []
        return stopped

    def close(self) -> None:
        """Close all sockets."""
        for dealer in self._dealers.values():
            dealer.disable_monitor()
            dealer.close(_LINGER_MS)
        self._router.disable_monitor()
        self._router.close(0)
        for other in [self._router_monitor, *self._monitors.values()]:
            other.close(0)
        if self._zap is not None:
            self._zap.close(0)
        self._context.term()

    def _validated_header(self, head: bytes) -> PeerHeader | str:
        """The header, or why whoever sends it is not listened to."""
        try:
            header = self._decode_header(head)
        except msgspec.DecodeError:
            return "its header cannot be decoded"
        found: PeerHeader | str = header
        if header.version != PEER_VERSION:
            found = (
                f"node {header.node_id} has peer protocol version {header.version}, node"
                f" {self._own.node_id} has {PEER_VERSION}. Run compatible releases."
            )
        elif header.cluster_id != self._own.cluster_id:
            found = (
                f"node {header.node_id} belongs to cluster {header.cluster_id}, node"
                f" {self._own.node_id} to {self._own.cluster_id}. Format all nodes of a cluster"
                " with the same `cluster.id`."
            )
        elif header.node_id == self._own.node_id:
            found = (
                f"another node has node id {header.node_id}, too. Give each node its own `node.id`."
            )
        elif node_id_of(header.member) != header.node_id:
            found = f"node {header.node_id} claims to be a metadata replica of another node"
        elif header.store_count != self._own.store_count:
            found = (
                f"node {header.node_id} was formatted with {header.store_count} stores, node"
                f" {self._own.node_id} with {self._own.store_count}. Format all nodes of a cluster"
                " with the same number of stores."
            )
        if len(self._headers) >= _HEADERS_MAX:
            self._headers.clear()
        self._headers[head] = found
        return found

    def _refuse(self, connection: bytes, refused: PeerRejected) -> None:
        self.refused_count += 1
        reason, now = refused.reason, time.monotonic()
        if now - self._refused_at.get(reason, -_REFUSAL_S) < _REFUSAL_S:
            return
        if len(self._refused_at) >= _HEADERS_MAX:
            self._refused_at.clear()
        self._refused_at[reason] = now
        log.error("rejected a node: %s", reason)
        try:
            self._router.send_multipart((connection, _encode(refused)), zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # it has gone

    def _receive_rejections(self, member: int) -> None:
        while True:
            try:
                payload = self._dealers[member].recv(zmq.NOBLOCK)
                refused = self._decode_refusal(payload)
            except zmq.Again:
                return
            except msgspec.DecodeError:
                continue
            log.error("%s rejects this node: %s", self._name(member), refused.reason)
            if refused.is_replaced:
                self.replaced_by.add(member)

    def _name(self, member: int) -> str:
        who = "the node" if member < 0 else f"node {node_id_of(member)}"
        return f"{who} at {self._others[member]}"

    # -- sockets -----------------------------------------------------------------------------------

    def _bind(self, listen: PeerAddress) -> Socket:
        router = self._context.socket(zmq.ROUTER)
        self._set_up(router)
        router.setsockopt(zmq.LINGER, 0)
        if self._keys is not None:
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
            router.setsockopt(zmq.ZAP_DOMAIN, b"peers")
        try:
            router.bind(f"tcp://{_numeric(listen)}")
        except (zmq.ZMQError, OSError) as error:
            self._context.destroy(0)
            raise PeerBusError(
                f"peer.listen={listen}: {error}. Choose another address, or stop the process that"
                " uses it."
            ) from error
        return router

    def _make_dealer(self) -> Socket:
        dealer = self._context.socket(zmq.DEALER)
        self._set_up(dealer)
        dealer.setsockopt(zmq.LINGER, _LINGER_MS)
        # Nothing is kept for a peer that is away: when it is back it would be old.
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS)
        if self._keys is not None:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, self._keys.public)
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        return dealer

    @staticmethod
    def _set_up(socket: Socket) -> None:
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.SNDHWM, _QUEUE_FRAMES)
        socket.setsockopt(zmq.RCVHWM, _QUEUE_FRAMES)
        socket.setsockopt(zmq.MAXMSGSIZE, _FRAME_BYTES_MAX)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PING_TIMEOUT_MS)

    # -- ZAP ---------------------------------------------------------------------------------------

    def _authenticate(self) -> Socket:
        zap = self._context.socket(zmq.ROUTER)
        zap.setsockopt(zmq.LINGER, 0)
        zap.bind(_ZAP_ADDRESS)
        return zap

    def _answer_zap(self, zap: Socket) -> None:
        """Who shows the cluster's own key may come in."""
        assert self._keys is not None
        while True:
            try:
                parts = zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            at = parts.index(b"") + 1
            version, request_id = parts[at], parts[at + 1]
            mechanism, credentials = parts[at + 5], parts[at + 6 :]
            is_ours = (
                mechanism == b"CURVE"
                and len(credentials) == 1
                and z85.encode(credentials[0]) == self._keys.public
            )
            code, text = (b"200", b"OK") if is_ours else (b"400", b"not of this cluster")
            zap.send_multipart([*parts[:at], version, request_id, code, text, b"", b""])


def _events(monitor: Socket) -> Iterator[tuple[int, int, str]]:
    """What a monitor has to tell: the event, its value, and the address it is about."""
    while True:
        try:
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return
        endpoint = event["endpoint"].decode(errors="replace")
        yield int(event["event"]), int(event["value"]), endpoint


def _numeric(address: PeerAddress) -> PeerAddress:
    """ZeroMQ binds numeric addresses only."""
    if not address.host:
        return PeerAddress("*", address.port)
    found = sockets.getaddrinfo(address.host, address.port, type=sockets.SOCK_STREAM)
    return PeerAddress(str(found[0][4][0]), address.port)
