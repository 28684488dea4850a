"""Node to node: ZeroMQ over TCP between the controllers of one cluster.

Each node binds one ROUTER socket, which only receives, and connects one DEALER socket to every
other known member, which only sends. A DEALER receives only rejections. The owner decides on the
members (`connect`, `disconnect`). Every frame has its sender's address. Queues are short, and
messages that do not fit are dropped: Raft and callers with a deadline send them again.

With a cluster secret the traffic is encrypted by CURVE. curve.py says who may connect, and how the
secret is replaced.

Every frame has a header of its sender. A node of another cluster, with an incompatible version, or
rejected by the owner gets a reason, which both sides log.
"""

import contextlib
import errno
import socket as sockets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from odradek.cluster.raft.configuration import node_id_of
from odradek.node.bus.curve import (
    HANDSHAKE_FAILURES,
    ConnectingKeys,
    CurveListener,
    KeyPair,
    cluster_keys,
)
from odradek.node.bus.endpoint import (
    Context,
    Socket,
    SocketOptions,
    drain,
    drain_frames,
    encode,
    set_options,
)
from odradek.node.bus.peer_messages import PEER_VERSION, PeerHeader, PeerMessage, PeerRejected
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

_QUEUE_FRAMES = 1_000
_HANDSHAKE_MS = 3_000
_SOCKET_OPTIONS: SocketOptions = (
    (zmq.IPV6, 1),
    (zmq.SNDHWM, _QUEUE_FRAMES),
    (zmq.RCVHWM, _QUEUE_FRAMES),
    (zmq.MAXMSGSIZE, 64 << 20),
    (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
    # Heartbeats detect a peer whose machine is gone.
    (zmq.HEARTBEAT_IVL, 500),
    (zmq.HEARTBEAT_TIMEOUT, 2_000),
)
_LINGER_MS = 100
"""At close, for the leader's last message, which asks a successor to take over."""
_DEALER_OPTIONS: SocketOptions = (
    (zmq.LINGER, _LINGER_MS),
    # Messages are not queued for a peer that is not connected: they would be outdated.
    (zmq.IMMEDIATE, 1),
    (zmq.RECONNECT_IVL, 20),
    (zmq.RECONNECT_IVL_MAX, 200),
    (zmq.CONNECT_TIMEOUT, 1_000),
)
_HEADERS_MAX = 256
_REJECTION_S = 1.0
"""One rejection for the same reason is logged and sent in this time."""
_UNAUTHENTICATED = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
_TIMEOUT_ERRORS = frozenset({errno.EAGAIN, errno.ETIMEDOUT})
"""The errors of a handshake without an answer. If the peer rejects it, the connection is closed."""
_FAILURES_PER_LOG_LINE = 3
"""Handshakes in a row that fail before that is logged, for each key: a peer may be killed during
one. The first one that times out is logged at once."""
_TRIALS_MAX = 20
"""While a node has two secrets, other nodes may try the wrong one this often, unlogged."""
_LOG_AGAIN_S = 600.0
"""ZeroMQ tries again many times a second; a log line comes once in this time."""
_RECONNECT_S = 0.5
_CONNECTIONS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CLOSED
_RECONNECT_REFUSED_S = 0.3
"""A connection that cannot be restored within this time after it broke was refused: the process has
ended. A machine that cannot be reached refuses nothing."""


class PeerBusError(Exception):
    """The peer address cannot be bound."""


class PeerAddress(NamedTuple):
    """Where a node listens for the others."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PeerBus:
    """See the module's docstring. One owner, one thread."""

    def __init__(
        self,
        *,
        header: PeerHeader,
        listen: PeerAddress,
        others: Mapping[int, PeerAddress],
        secrets: Sequence[str] = (),
        refuses: Callable[[PeerHeader], PeerRejected | None] = lambda _header: None,
        watch: Callable[[Socket, bool], None] = lambda _socket, _is_new: None,
    ) -> None:
        """`others` are the members that are known from the start; a negative number is an address
        whose member is not known. `refuses` is called for every frame, and may return why the peer
        is rejected. `watch` is called with each new socket (true), and before one is closed
        (false). Without secrets nothing is encrypted. Raises PeerBusError if `listen` cannot be
        bound.
        """
        self._own = header
        self._header = encode(header)
        self._others: dict[int, PeerAddress] = {}
        self._refuses = refuses
        self._context: Context = zmq.Context(io_threads=1)
        self._decode_header = msgspec.msgpack.Decoder(PeerHeader).decode
        self._decode = msgspec.msgpack.Decoder(list[PeerMessage]).decode
        self._decode_rejection = msgspec.msgpack.Decoder(PeerRejected).decode
        self._watch = watch
        self._headers: dict[bytes, PeerHeader | str] = {}
        self._rejected_at: dict[str, float] = {}
        self._outgoing: dict[int, list[PeerMessage]] = {}
        self._disconnected_at: dict[int, float] = {}
        self.disconnected_since: dict[int, float] = {}
        """Peers that were connected and are not any more: since when, as time.monotonic."""
        self._failures: dict[int, int] = {}
        self._failure_logged_at: dict[int, float] = {}
        self._unauthenticated: list[float] = []
        self._unauthenticated_logged_at = -_LOG_AGAIN_S
        self._handshake_timeouts: dict[int, int] = {}
        self._connect_at: dict[int, float] = {}
        self.failed_count = 0
        """Failed handshakes with peers."""
        self._stopped: list[int] = []
        self.replaced_by: set[int] = set()
        """The members that rejected us because the quorum has another replica of this node."""
        self.dropped_count = 0
        """Messages that were dropped: the queue was full, or there was no connection."""
        self.refused_count = 0
        """Rejected frames and handshakes."""
        self._keys: tuple[KeyPair, ...] = cluster_keys(secrets)
        self._curve = self._bind_curve(listen) if self._keys else None
        self._router = self._bind(listen)
        self._router_monitor = self._router.get_monitor_socket(HANDSHAKE_FAILURES)
        self._dealers: dict[int, Socket] = {}
        self._connecting: dict[int, ConnectingKeys] = {}
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
        return found if self._curve is None else [*found, self._curve.authenticator]

    # -- members -----------------------------------------------------------------------------------

    def connect(self, member: int, address: PeerAddress) -> None:
        """Connect to this member, at this address from now on."""
        if self._others.get(member) == address:
            return
        self.disconnect(member)
        self._others[member] = address
        dealer = self._make_socket(zmq.DEALER, _DEALER_OPTIONS)
        keys = self._connecting[member] = ConnectingKeys(self._keys)
        set_options(dealer, keys.options)
        monitor = dealer.get_monitor_socket(HANDSHAKE_FAILURES | _CONNECTIONS)
        self._dealers[member], self._monitors[member] = dealer, monitor
        dealer.connect(f"tcp://{address}")
        self._watch(dealer, True)
        self._watch(monitor, True)

    def disconnect(self, member: int) -> None:
        if self._others.pop(member, None) is None:
            return
        dealer, monitor = self._dealers.pop(member), self._monitors.pop(member)
        self._watch(dealer, False)
        self._watch(monitor, False)
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(_LINGER_MS)
        counts = (self._failures, self._failure_logged_at, self._handshake_timeouts)
        for notes in (self._disconnected_at, self.disconnected_since, self._connect_at, *counts):
            notes.pop(member, None)
        self._outgoing.pop(member, None)
        del self._connecting[member]

    # -- keys --------------------------------------------------------------------------------------

    def change_secrets(self, secrets: Sequence[str], header: PeerHeader) -> None:
        """Listen with the first of these secrets, and connect with any of them. Connections with
        other ones end. `header` is ours from now on."""
        self._own, self._header = header, encode(header)
        if self._curve is None or not secrets:
            return
        listened_with, self._keys = self._keys[0], cluster_keys(secrets)
        self._unauthenticated.clear()
        for member, keys in self._connecting.items():
            if keys.change(self._keys):
                self._reconnect(member)
        if self._keys[0] == listened_with:
            return
        router, monitor = self._router, self._router_monitor
        self._router = self._curve.listen_with(self._keys[0])
        self._router_monitor = self._router.get_monitor_socket(HANDSHAKE_FAILURES)
        for former in (router, monitor):
            self._watch(former, False)
        for made in (self._router, self._router_monitor):
            self._watch(made, True)
        router.disable_monitor()
        monitor.close(0)
        router.close(0)

    # -- sending -----------------------------------------------------------------------------------

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
            frame = (self._header, encode(messages))
            try:
                self._dealers[member].send_multipart(frame, zmq.NOBLOCK)
            except zmq.ZMQError:
                self.dropped_count += len(messages)

    # -- receiving ---------------------------------------------------------------------------------

    def receive(self) -> Iterator[tuple[PeerHeader, list[PeerMessage]]]:
        """The received messages, of each peer in the order of sending."""
        for parts in drain_frames(self._router):
            if len(parts) != 3:
                self.refused_count += 1
                continue
            connection, head, body = parts
            header = self._headers.get(head)
            if header is None:
                header = self._validated_header(head)
            if isinstance(header, str):
                self._reject(connection, PeerRejected(header))
                continue
            rejection = self._refuses(header)
            if rejection is not None:
                self._reject(connection, rejection)
                continue
            try:
                messages = self._decode(body)
            except msgspec.DecodeError as error:
                self._reject(connection, PeerRejected(f"its messages cannot be decoded: {error}"))
                continue
            yield header, messages

    def poll_events(self) -> list[int]:
        """Process connection events and rejections. Returns the newly connected peers."""
        if self._curve is not None:
            self._curve.answer_authentication()
        for event, _, address in _events(self._router_monitor):
            self.refused_count += 1
            if event & _UNAUTHENTICATED:  # otherwise the peer disconnected during the handshake
                self._on_unauthenticated(address, time.monotonic())
        connected = []
        for member, monitor in self._monitors.items():
            for event, value, _ in _events(monitor):
                if event & zmq.Event.HANDSHAKE_SUCCEEDED:
                    connected.append(member)
                    self._disconnected_at.pop(member, None)
                    self.disconnected_since.pop(member, None)
                    self._failures[member] = self._handshake_timeouts[member] = 0
                    self._failure_logged_at.pop(member, None)
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
        """Connect again. ZeroMQ does not retry after a handshake with another secret or none, which
        the operator may have corrected since."""
        endpoint = f"tcp://{self._others[member]}"
        dealer = self._dealers[member]
        with contextlib.suppress(zmq.ZMQError):
            dealer.disconnect(endpoint)
        set_options(dealer, self._connecting[member].options)
        dealer.connect(endpoint)

    def _on_unauthenticated(self, address: str, now: float) -> None:
        """A client without the secret with which we listen was rejected."""
        if now < self._unauthenticated_logged_at + _LOG_AGAIN_S:
            return
        if len(self._keys) > 1:
            # It may be a node that goes on to our first secret.
            self._unauthenticated = [at for at in self._unauthenticated if now < at + _LOG_AGAIN_S]
            self._unauthenticated.append(now)
            if len(self._unauthenticated) < _TRIALS_MAX:
                return
        self._unauthenticated_logged_at = now
        log.error(
            "rejected a connection to the peer address: wrong or missing cluster secret",
            peer_address=address,
            action="if it is a node of this cluster, set the same `cluster.secret` on it; an"
            " old cluster.bundle has the secret of then",
        )

    def _on_handshake_failed(self, member: int, *, is_timeout: bool) -> None:
        now = time.monotonic()
        self.failed_count += 1
        self._connect_at.setdefault(member, now + _RECONNECT_S)
        if self._connecting[member].handshake_failed(now):
            self._reconnect(member)
        if is_timeout:
            if self._handshake_timeouts.get(member, 0) % _FAILURES_PER_LOG_LINE == 0:
                log.warning(
                    "a peer accepts connections but did not answer: it is frozen or"
                    " overloaded, or packets are lost",
                    **self._peer_fields(member),
                    duration_ms=_HANDSHAKE_MS,
                )
            self._handshake_timeouts[member] = self._handshake_timeouts.get(member, 0) + 1
            return
        failures = self._failures[member] = self._failures.get(member, 0) + 1
        is_told = now < self._failure_logged_at.get(member, -_LOG_AGAIN_S) + _LOG_AGAIN_S
        # With several keys the wrong one may be tried several times before the next one is due.
        if failures < _FAILURES_PER_LOG_LINE * max(1, len(self._keys)) ** 2 or is_told:
            return
        self._failure_logged_at[member] = now
        log.error(
            "the handshake with a peer failed",
            **self._peer_fields(member),
            action="set the same `cluster.secret` on every node (an old cluster.bundle has"
            " the secret of then); if it is the same, something on the network closes"
            " the connections",
        )

    def take_stopped(self) -> list[int]:
        """The peers that refused a reconnection since the last call: their processes have ended."""
        stopped, self._stopped = self._stopped, []
        return stopped

    def close(self) -> None:
        for dealer in self._dealers.values():
            dealer.disable_monitor()
            dealer.close(_LINGER_MS)
        self._router.disable_monitor()
        self._router.close(0)
        for other in [self._router_monitor, *self._monitors.values()]:
            other.close(0)
        if self._curve is not None:
            self._curve.close()
        self._context.term()

    def _validated_header(self, head: bytes) -> PeerHeader | str:
        """The header, or why its sender is rejected."""
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

    def _reject(self, connection: bytes, rejection: PeerRejected) -> None:
        self.refused_count += 1
        reason, now = rejection.reason, time.monotonic()
        if now - self._rejected_at.get(reason, -_REJECTION_S) < _REJECTION_S:
            return
        if len(self._rejected_at) >= _HEADERS_MAX:
            self._rejected_at.clear()
        self._rejected_at[reason] = now
        log.error("rejected a node", reason=reason)
        with contextlib.suppress(zmq.ZMQError):  # it may be disconnected
            self._router.send_multipart((connection, encode(rejection)), zmq.NOBLOCK)

    def _receive_rejections(self, member: int) -> None:
        for payload in drain(self._dealers[member]):
            try:
                rejection = self._decode_rejection(payload)
            except msgspec.DecodeError:
                continue
            log.error(
                "a node rejects this node", **self._peer_fields(member), reason=rejection.reason
            )
            if rejection.is_replaced:
                self.replaced_by.add(member)

    def _peer_fields(self, member: int) -> dict[str, object]:
        """Who a line is about. The id of a node that has not introduced itself is not known."""
        known: dict[str, object] = {"peer_address": self._others[member]}
        return known if member < 0 else {"peer_node": node_id_of(member), **known}

    # -- sockets -----------------------------------------------------------------------------------

    def _make_socket(self, kind: int, options: SocketOptions) -> Socket:
        socket = self._context.socket(kind)
        set_options(socket, (*_SOCKET_OPTIONS, *options))
        return socket

    def _make_router(self) -> Socket:
        return self._make_socket(zmq.ROUTER, ((zmq.LINGER, 0),))

    def _bind_curve(self, listen: PeerAddress) -> CurveListener:
        try:
            return CurveListener(self._context, listen.host, listen.port, self._make_router)
        except OSError as error:
            raise self._bind_error(listen, error) from error

    def _bind(self, listen: PeerAddress) -> Socket:
        if self._curve is not None:
            return self._curve.listen_with(self._keys[0])
        router = self._make_router()
        try:
            router.bind(f"tcp://{_numeric(listen)}")
        except (zmq.ZMQError, OSError) as error:
            raise self._bind_error(listen, error) from error
        return router

    def _bind_error(self, listen: PeerAddress, error: Exception) -> PeerBusError:
        self._context.destroy(0)
        return PeerBusError(
            f"peer.listen={listen}: {error}. Choose another address, or stop the process that uses"
            " it."
        )


def _events(monitor: Socket) -> Iterator[tuple[int, int, str]]:
    """The monitor's events: the event, its value, and its address."""
    for frames in drain_frames(monitor):
        event = parse_monitor_message(frames)
        endpoint = event["endpoint"].decode(errors="replace")
        yield int(event["event"]), int(event["value"]), endpoint


def _numeric(address: PeerAddress) -> PeerAddress:
    """ZeroMQ binds numeric addresses only."""
    if not address.host:
        return PeerAddress("*", address.port)
    found = sockets.getaddrinfo(address.host, address.port, type=sockets.SOCK_STREAM)
    return PeerAddress(str(found[0][4][0]), address.port)
