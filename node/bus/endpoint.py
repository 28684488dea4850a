"""ZeroMQ sockets as our processes use them: a binding side and a connecting side, on ipc paths.

`bind_endpoint` makes the ROUTER socket that a router or the controller listens with; `connect_link`
the DEALER socket of the other side together with a monitor that tells of every (re)connection, upon
which the owner greets. Queues are bounded by the owners, not by ZeroMQ: a high-water mark inside
ZeroMQ drops or blocks where the owner could have throttled.

A ZeroMQ descriptor is edge-triggered: it says once that something may be there, also as a side
effect of a send. `drain` must therefore be called after every wake-up and after every send, until
it returns nothing.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import zmq

encode = msgspec.msgpack.Encoder().encode

_LINGER_MS = 0
_RECONNECT_MS = 10
_RECONNECT_MS_MAX = 200


def ipc_address(run_folder: Path, name: str) -> str:
    """Address of the process called `name`; its path must stay under 108 bytes (sockaddr_un)."""
    path = run_folder / f"{name}.sock"
    if len(str(path)) > 100:
        raise ValueError(
            f"run folder {run_folder} is too long for a Unix socket."
            " Choose a path under 80 characters."
        )
    return f"ipc://{path}"


def bind_endpoint(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> "zmq.Socket[bytes]":
    """A ROUTER socket: a returning peer takes its old identity over, a missing one is an error on
    send."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.bind(address)
    return socket


class DealerLink:
    """The connecting side: a DEALER socket called `identity`, and its monitor.

    Whoever owns it watches both `socket` and `monitor`; when `take_connected` says so it greets.
    """

    __slots__ = ("_handshakes", "monitor", "socket")

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        identity: bytes,
        prepare: "Callable[[zmq.Socket[bytes]], None]" = lambda socket: None,
    ) -> None:
        """`prepare` may set more options before the socket connects."""
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        # A peer that is away must not collect what it would be told after its return.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        prepare(self.socket)
        self.monitor = self.socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
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
        """Give both sockets up; what was not sent is dropped."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


def descriptor(socket: "zmq.Socket[bytes]") -> int:
    """What an event loop watches for reading; edge-triggered, see above."""
    file = socket.getsockopt(zmq.FD)
    assert isinstance(file, int)
    return file


def drain(socket: "zmq.Socket[bytes]", at_most: int = 1000) -> Iterator[bytes]:
    """The messages that a DEALER socket holds now."""
    for _ in range(at_most):
        try:
            yield socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return


def drain_with_identity(
    socket: "zmq.Socket[bytes]", at_most: int = 1000
) -> Iterator[tuple[bytes, bytes]]:
    """The messages that a ROUTER socket holds now, with the identity of each sender."""
    for _ in range(at_most):
        try:
            parts = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(parts) == 2:
            yield parts[0], parts[1]
