"""Client connections that a router hands over to a worker: the messages about them, and the channel
that carries them with the sockets.

A producer that sends to partitions of one worker, and no very large requests, is served by that
worker itself, over the connection's own socket, so that a request wakes one process instead of two,
and one of them twice. So is a consumer that follows the end of one partition. The router keeps the
connection, reads nothing of it, and gets it back whenever there is something to do that a worker
cannot do (docs/adr/0027-connection-handover.md).

A channel is a Unix socket of whole messages (SOCK_SEQPACKET), from a router to a worker. Its order
counts: what a router says of a connection after it has got it back is about the next time. When one
side is gone, the other closes the connections: which of their requests were carried out is unknown.
"""

import os
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from odradek.node.bus.messages import AppendReply
from odradek.protocol.types import NO_OFFSET

READ_BYTES: Final = 96 << 10
"""What a worker reads of a connection at a time, unless a larger request comes."""
PIECE_BYTES_MAX: Final = 128 << 10
"""Of the bytes that go with one message when a connection is handed back."""
RECEIVED_BYTES_MAX: Final = 128 << 10
"""What is received of a connection and not answered when it is handed over."""
_MESSAGE_BYTES_MAX: Final = 384 << 10
"""Above the largest message: bytes received, and some hundred responses of a client that does not
read; below what Linux allows for a message."""


class DirectRoute(msgspec.Struct, frozen=True, array_like=True):
    """Where the records of requests go that begin so, and what the response is."""

    prefix: bytes
    """The bytes between correlation id and records."""
    store: int
    number: int
    acks: int
    timeout_ms: int
    version: int
    head: bytes
    """The response between the correlation id and the offsets."""
    tail: bytes
    has_log_start: bool
    is_transactional: bool = False


class FetchPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a consumer is, and what the last response said of its partition. Without a session only
    the offset counts."""

    epoch: int
    """That the next request of the session has."""
    fetch_offset: int
    sent_high_watermark: int
    sent_log_start_offset: int


class DirectFetch(msgspec.Struct, frozen=True, array_like=True):
    """The fetches of one partition, in a session of this partition alone or in none: requests and
    responses around what changes. Requests are counted from behind the correlation id on."""

    store: int
    number: int
    is_read_committed: bool
    bytes_max: int
    """Of the records in a response."""
    wait_ms: int
    position: FetchPosition
    request: bytes
    wait_at: int
    """Where the time to wait is, in four bytes."""
    offset_at: int
    """Where the fetch offset is, in eight bytes."""
    head: bytes
    """The response between the correlation id and the offsets: high watermark, last stable offset,
    log start."""
    middle: bytes
    """Between the offsets and the length of the records."""
    tail: bytes
    """Behind the records."""
    is_flexible: bool
    """Whether the length is a varint, of one more."""
    epoch_at: int = -1
    """Where the session's epoch is, in four bytes; -1 without a session."""
    repeated_request: bytes = b""
    """In a session, if the fetch offset is the last one."""
    unchanged_response: bytes = b""
    """In a session, if there is nothing to say of the partition."""


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The worker reads the connection from now on; the message comes with its socket. `received` is
    what the router has read and not answered. It has routes, or fetches."""

    connection: int
    key_and_version: int
    routes: tuple[DirectRoute, ...]
    received: bytes
    fetch: DirectFetch | None = None
    is_large: bool = False
    """Whether the last request was larger than READ_BYTES."""
    bytes_max: int = 104_857_600
    """Of a request: socket.request.max.bytes."""


class Recall(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Give the connection back as soon as its requests are answered."""

    connection: int


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The connection is closed."""

    connection: int


class Served(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What a worker has answered since it last said so. `timings` are of those requests that are
    measured: when it was received, done and sent, in nanoseconds of the monotonic clock. `records`
    and `record_bytes` were fetched, up to `fetch_offset`."""

    connection: int
    requests: int
    received_bytes: int
    sent_bytes: int
    timings: tuple[tuple[int, int, int], ...] = ()
    records: int = 0
    record_bytes: int = 0
    fetch_offset: int = NO_OFFSET


class HandedBack(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The router reads the connection again.

    Its next responses are, in this order: `unsent`, bytes of responses that the client has not read
    yet; `answers` to requests of which the first was refused: correlation id, number of the route,
    reply; and those to what is in `received`."""

    connection: int
    received: bytes = b""
    unsent: bytes = b""
    answers: tuple[tuple[int, int, AppendReply], ...] = ()
    position: FetchPosition | None = None
    """Of a consumer."""
    is_overloaded: bool = False
    """The worker has no time for consumers and large requests, or no room for these."""


class Unread(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Bytes that come before those in the message that hands the connection back."""

    connection: int
    piece: bytes


ToWorkerMessage: TypeAlias = HandOver | Recall | Forget
ToRouterMessage: TypeAlias = Served | Unread | HandedBack
Message: TypeAlias = ToWorkerMessage | ToRouterMessage

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class HandoverChannel:
    """One end of a channel."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MESSAGE_BYTES_MAX)
        self._socket = connected
        self._queue: deque[bytes] = deque()

    @classmethod
    def connect(cls, path: Path) -> "HandoverChannel | None":
        """The router's end. None if no worker listens there."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connecting.setblocking(False)
            connecting.connect(str(path))
        except OSError:
            connecting.close()
            return None
        return cls(connecting)

    def fileno(self) -> int:
        """Readable when there are messages, or when the other end is gone."""
        return self._socket.fileno()

    def try_send(self, message: Message, descriptor: int) -> bool:
        """Send a message with a descriptor, if that is possible now."""
        payload = _encode(message)
        if self._queue or len(payload) > _MESSAGE_BYTES_MAX:
            return False
        try:
            socket.send_fds(self._socket, [payload], [descriptor])
        except OSError:
            return False
        return True

    def send(self, message: Message) -> None:
        """Send a message, later if the other end is slow: `flush` must be called then."""
        self._queue.append(_encode(message))
        self.flush()

    def flush(self) -> bool:
        """Send what is queued. False if something is left."""
        queue = self._queue
        while queue:
            try:
                self._socket.send(queue[0])
            except BlockingIOError:
                return False
            except OSError:
                # It is gone, or the message cannot be sent: `receive` tells both ends of the end.
                queue.clear()
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                return True
            queue.popleft()
        return True

    def receive(self) -> tuple[Message, int | None] | None:
        """The next message, and the descriptor that came with it. None if there is none now. Raises
        EOFError when the other end is gone."""
        try:
            payload, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES_MAX, 1)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if not payload:
            raise EOFError
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return _decode(payload), descriptors[0] if descriptors else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def handover_path(run_folder: Path, worker: int) -> Path:
    """Where a worker waits for channels."""
    return run_folder / f"worker-{worker}.handover"


def listen(path: Path) -> socket.socket:
    """The socket at which a worker waits for channels."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.setblocking(False)
    listening.bind(str(path))
    listening.listen()
    return listening
