"""ZeroMQ sockets between processes: a binding side and a connecting side.

`bind_endpoint` creates the ROUTER socket that a router or the controller listens on. `DealerLink`
is the DEALER socket of the other side, with a monitor that reports every (re)connection; its owner
then sends a greeting. The owners limit their queues: ZeroMQ's high-water mark would drop or block
messages where an owner can throttle.

A ZeroMQ descriptor is edge-triggered: it signals once that there may be messages, also as a side
effect of a send. So call `drain` after every wakeup and every send, until it returns nothing.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import zmq

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
Socket: TypeAlias = "zmq.Socket[bytes]"
SocketOptions: TypeAlias = Iterable[tuple[int, int | bytes]]

encode = msgspec.msgpack.Encoder().encode

_UNBOUNDED: SocketOptions = ((zmq.LINGER, 0), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0))
LISTENING: SocketOptions = (*_UNBOUNDED, (zmq.ROUTER_HANDOVER, 1), (zmq.ROUTER_MANDATORY, 1))
"""The options of a listening socket."""
_RECONNECT_MS = 10
_RECONNECT_MS_MAX = 200
_DRAINED_MAX = 1_000


def set_options(socket: Socket, options: SocketOptions) -> None:
    for option, value in options:
        socket.setsockopt(option, value)


def ipc_address(run_folder: Path, name: str) -> str:
    """Address of the process called `name`; its path must stay under 108 bytes (sockaddr_un)."""
    path = run_folder / f"{name}.sock"
    if len(str(path)) > 100:
        raise ValueError(
            f"run folder {run_folder} is too long for a Unix socket."
            " Choose a path under 80 characters."
        )
    return f"ipc://{path}"


def bind_endpoint(context: Context, address: str, options: SocketOptions = ()) -> Socket:
    """A ROUTER socket. A peer that reconnects takes over its identity; a send to a peer that is not
    connected raises zmq.ZMQError. Raises zmq.ZMQError, too, if the address cannot be bound."""
    socket = context.socket(zmq.ROUTER)
    set_options(socket, (*LISTENING, *options))
    try:
        socket.bind(address)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket


class DealerLink:
    """The connecting side: a DEALER socket with this identity, and its monitor.

    The owner polls both `socket` and `monitor`, and sends a greeting after `take_connected`.
    """

    __slots__ = ("monitor", "socket")

    def __init__(
        self,
        context: Context,
        address: str,
        identity: bytes,
        options: SocketOptions = (),
        events: int = zmq.Event.HANDSHAKE_SUCCEEDED,
    ) -> None:
        """`events` are those that the monitor reports."""
        self.socket = context.socket(zmq.DEALER)
        set_options(self.socket, _UNBOUNDED)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        # Messages are not queued for a peer that is not connected.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        set_options(self.socket, options)
        self.monitor = self.socket.get_monitor_socket(events)
        self.socket.connect(address)

    def take_connected(self) -> bool:
        """Whether a (re)connection was made since the last call."""
        connected = False
        while True:
            try:
                self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return connected
            connected = True

    def close(self) -> None:
        """Close both sockets. Unsent messages are dropped."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


def descriptor(socket: Socket) -> int:
    """The descriptor that an event loop polls for reading; edge-triggered, see the module."""
    file = socket.getsockopt(zmq.FD)
    assert isinstance(file, int)
    return file


def drain(socket: Socket) -> Iterator[bytes]:
    """The messages that a DEALER socket has received."""
    for _ in range(_DRAINED_MAX):
        try:
            yield socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return


def drain_frames(socket: Socket) -> Iterator[list[bytes]]:
    """The messages that a socket has received, as lists of frames."""
    for _ in range(_DRAINED_MAX):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


def drain_with_identity(socket: Socket) -> Iterator[tuple[bytes, bytes]]:
    """The messages that a ROUTER socket has received, with the identities of the senders."""
    for frames in drain_frames(socket):
        if len(frames) == 2:
            yield frames[0], frames[1]
