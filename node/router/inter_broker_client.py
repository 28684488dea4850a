"""Requests between brokers: from this broker's router to the router of another one.

A transaction's coordinator, a partition's leader and a group's coordinator may each be on another
broker. They send each other Kafka's own requests, through the port at which workers serve
followers, which requires the cluster's keys. The worker relays requests to its router and responses
back. A request to this broker itself is handled in place.

A request fails at once if it cannot be sent, and within a second if its connection or broker is
lost. Its outcome is unknown then, so every request must be safe to send twice.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec
import zmq

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.curve import KeyPair
from odradek.node.bus.endpoint import descriptor, drain
from odradek.node.bus.replica_link import WorkerLink
from odradek.node.bus.reply import Reply, TracedReply, drive, start_coroutine
from odradek.node.bus.request_trace import RequestTrace
from odradek.node.structured_log import get_logger
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.types import Request

log = get_logger(__name__)

R = TypeVar("R")

REQUEST_TIMEOUT_S: Final = 3.0
"""After this a request fails: the other router may have died with it, unnoticed by the worker."""
PENDING_COUNT_MAX: Final = 10_000
"""Pending requests to one broker; more fail at once."""
_SWEEP_S: Final = 0.25
_API_KEYS: Final = {
    APIS[key].request: key
    for key in (
        ApiKey.PRODUCE,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.RELOAD_SHARE_STATE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_LAG,
    )
}
"""The requests between brokers, in their newest version."""

InterBrokerHandler: TypeAlias = Callable[[int, int, object], Coroutine[Any, Any, Any]]
"""(API key, version, request) to response."""


class _RelayFrame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request, or with the same id and key its response. An empty body: the request failed."""

    request_id: int
    api_key: int
    version: int
    body: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_RelayFrame).decode


@dataclass(slots=True)
class _PeerConnection:
    address: str
    link: WorkerLink
    is_connected: bool = False
    unsent: list[bytes] = field(default_factory=list)
    pending: dict[int, tuple[Reply[Any], float]] = field(default_factory=dict)


class InterBrokerClient(Protocol):
    """Implemented by ZmqInterBrokerClient, and by the simulation."""

    def send(self, node_id: int, request: Request[R]) -> Reply[R]:
        """The response of a broker. The reply fails with ApiError(COORDINATOR_NOT_AVAILABLE) if the
        broker cannot be reached or does not answer."""


class ZmqInterBrokerClient:
    """See the module's docstring. `on_image` must be called with every new image."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        *,
        identity: bytes,
        keys: Sequence[KeyPair],
        node_id: int,
        address_of: Callable[[int], str | None],
        handler: InterBrokerHandler,
    ) -> None:
        self._node_id = node_id
        self._handler = handler
        self._loop = loop
        self._context = context
        self._identity = identity
        self._keys = tuple(keys)
        self._address_of = address_of
        self._nodes: dict[int, _PeerConnection] = {}
        self._next_id = 0
        self._sweep: asyncio.TimerHandle | None = None

    def send(self, node_id: int, request: Request[R]) -> Reply[R]:
        """See InterBrokerClient."""
        key = _API_KEYS[type(request)]
        version = APIS[key].max_version
        if node_id == self._node_id:
            return start_coroutine(self._handler(key, version, request))
        trace = RequestTrace.current
        reply: Reply[R] = Reply()
        if trace is not None:
            about = {"broker": str(node_id), "request": APIS[key].name}
            reply = TracedReply(trace, "broker_request", about)
        node = self._connection_to(node_id)
        if node is None or len(node.pending) >= PENDING_COUNT_MAX:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return reply
        self._next_id = request_id = self._next_id + 1
        body = b"".join(encode_request(key, version, request))
        node.pending[request_id] = reply, self._loop.time() + REQUEST_TIMEOUT_S
        node.unsent.append(_encode(_RelayFrame(request_id, key, version, body)))
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire_requests)
        self._send(node)
        return reply

    def answer(self, payload: bytes, send: Callable[[bytes], None]) -> None:
        """Handle a request of another broker's router; `send` gets the response, now or later."""
        try:
            frame = _decode(payload)
            if frame.api_key not in _API_KEYS.values():
                raise ProtocolError(f"API {frame.api_key} is not served to brokers")
            request = decode_request(frame.api_key, frame.version, memoryview(frame.body))
        except (msgspec.MsgspecError, ProtocolError) as error:
            log.warning("dropped an invalid request of another broker", reason=str(error))
            return

        def finish(response: object, error: BaseException | None) -> None:
            body = b""
            if error is None:
                body = b"".join(encode_response(frame.api_key, frame.version, response))
            else:
                log.error("a request of another broker failed", exc_info=error)
            send(_encode(_RelayFrame(frame.request_id, frame.api_key, frame.version, body)))

        drive(self._handler(frame.api_key, frame.version, request), finish)

    def on_image(self, image: MetadataImage) -> None:
        """Fail requests to brokers that are fenced, unregistered or at another address now."""
        for node_id, node in list(self._nodes.items()):
            broker = image.brokers.get(node_id)
            if self._address_of(node_id) != node.address:
                self._disconnect(node_id)
            elif broker is None or broker.is_fenced:
                self._fail_requests(node)

    def change_keys(self, keys: Sequence[KeyPair]) -> None:
        """Connect with these keys. Requests on connections with other ones fail."""
        if self._keys == tuple(keys):
            return
        self._keys = tuple(keys)
        for node in self._nodes.values():
            node.link.change_keys(self._keys)
            # The descriptors may have signalled during the change already.
            self._loop.call_soon(self._on_monitor, node)

    def close(self) -> None:
        """Close all connections; pending requests fail."""
        if self._sweep is not None:
            self._sweep.cancel()
        for node_id in list(self._nodes):
            self._disconnect(node_id)

    # -- inside -----------------------------------------------------------------------------------

    def _connection_to(self, node_id: int) -> _PeerConnection | None:
        node = self._nodes.get(node_id)
        if node is None:
            address = self._address_of(node_id)
            if address is None:
                return None
            link = WorkerLink(self._context, address, self._identity, self._keys)
            node = self._nodes[node_id] = _PeerConnection(address, link)
            self._loop.add_reader(descriptor(link.socket), self._receive, node)
            self._loop.add_reader(descriptor(link.monitor), self._on_monitor, node)
            self._loop.call_soon(self._on_monitor, node)
        return node

    def _send(self, node: _PeerConnection) -> None:
        if not node.is_connected:
            return
        unsent, node.unsent = node.unsent, []
        for at, payload in enumerate(unsent):
            try:
                node.link.socket.send_multipart((b"", payload), zmq.NOBLOCK)
            except zmq.Again:
                # Disconnected again; the monitor reports when it is back.
                node.is_connected = False
                node.unsent = unsent[at:]
                return
        # A send may consume the descriptor's readable edge of a message that has come.
        self._loop.call_soon(self._receive, node)

    def _on_monitor(self, node: _PeerConnection) -> None:
        if node.link.socket.closed or not node.link.take_connected():
            return
        # Requests that were sent over the former connection may be lost.
        unsent = {_decode(payload).request_id for payload in node.unsent}
        sent = [request_id for request_id in node.pending if request_id not in unsent]
        for request_id in sent:
            self._complete(node, request_id, None)
        node.is_connected = True
        self._send(node)

    def _receive(self, node: _PeerConnection) -> None:
        if node.link.socket.closed:
            return
        for payload in drain(node.link.socket):
            if not payload:
                continue  # the empty delimiter frame
            try:
                answer = _decode(payload)
                response = None
                if answer.body:
                    response = decode_response(
                        answer.api_key, answer.version, memoryview(answer.body)
                    )
            except (msgspec.MsgspecError, ProtocolError) as error:
                log.warning("dropped an invalid response of another broker", reason=str(error))
                continue
            self._complete(node, answer.request_id, response)

    def _complete(self, node: _PeerConnection, request_id: int, response: object | None) -> None:
        reply, _ = node.pending.pop(request_id, (None, 0.0))
        if reply is None:
            return
        if response is None:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            reply.resolve(response)

    def _fail_requests(self, node: _PeerConnection) -> None:
        node.unsent.clear()
        for request_id in list(node.pending):
            self._complete(node, request_id, None)

    def _disconnect(self, node_id: int) -> None:
        node = self._nodes.pop(node_id)
        self._loop.remove_reader(descriptor(node.link.socket))
        self._loop.remove_reader(descriptor(node.link.monitor))
        node.link.close()
        self._fail_requests(node)

    def _expire_requests(self) -> None:
        """Fail requests whose deadline has passed."""
        self._sweep = None
        now = self._loop.time()
        is_any = False
        for node in self._nodes.values():
            for request_id, (_, deadline) in list(node.pending.items()):
                if deadline <= now:
                    self._complete(node, request_id, None)
            is_any = is_any or bool(node.pending)
        if is_any:
            self._sweep = self._loop.call_later(_SWEEP_S, self._expire_requests)
