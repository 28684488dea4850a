"""ZeroMQ between the workers of simulated nodes: the sockets that `odradek.node.bus.replica_link`
uses.

A connection behaves like TCP: messages arrive whole and in order, or not at all. While a direction
is cut its messages wait, as the kernel retransmits them. After `SILENCE_MS`, when ZeroMQ gives up,
the connection breaks, messages in flight are lost, and the connecting side tries again. A killed
process closes its connections. A machine without power does not: its peers notice by the silence,
or by its return.
"""

from collections import deque
from collections.abc import Callable, Sequence

import zmq

from tests.simulation.simulation import Simulation

SILENCE_MS = 3_000
"""`HEARTBEAT_TIMEOUT` of the links."""
_RETRY_MS = 10
_RETRY_MS_MAX = 200
_STALLED_MS = 40
Frames = tuple[bytes, ...]


class Wires:
    """All listening sockets of a simulation, by address, and the faults of connections."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.break_share = 0.0
        """The share of messages after which their connection breaks."""
        self._listening: dict[str, Socket] = {}

    def context(self, host_id: int, wake: Callable[[], None]) -> "Context":
        """The sockets of a host's worker; `wake` is called when one of them has a message."""
        return Context(self, host_id, wake)

    def listen(self, address: str, socket: "Socket") -> None:
        self._listening[address] = socket

    def at(self, address: str) -> "Socket | None":
        """The socket that listens there, if its host runs."""
        socket = self._listening.get(address)
        return None if socket is None or socket.is_closed else socket


class Context:
    """As `zmq.Context`, for one worker from its start to its end."""

    def __init__(self, wires: Wires, host_id: int, wake: Callable[[], None]) -> None:
        self.wires = wires
        self.host_id = host_id
        self.wake = wake
        self._sockets: list[Socket] = []

    def socket(self, kind: int) -> "Socket":
        """A ROUTER or a DEALER."""
        socket = Socket(self, kind)
        self._sockets.append(socket)
        return socket

    def end(self, *, is_silent: bool) -> None:
        """The process has ended; `is_silent`: together with its machine."""
        for socket in self._sockets:
            socket.end(is_silent=is_silent)


class Monitor:
    """Reports handshakes."""

    def __init__(self) -> None:
        self.count = 0

    def recv_multipart(self, _flags: int) -> None:
        if not self.count:
            raise zmq.Again
        self.count -= 1

    def close(self, _linger: int) -> None:
        self.count = 0


class Frame:
    """As `zmq.Frame`; its buffer is not shared."""

    def __init__(self, data: bytes) -> None:
        self.buffer = memoryview(bytearray(data))


class Socket:
    """The part of `zmq.Socket` that is used."""

    def __init__(self, context: Context, kind: int) -> None:
        self.context = context
        self.is_closed = False
        self.identity = b""
        self.inbox: deque[Frames] = deque()
        self.monitor = Monitor()
        self.connections: dict[bytes, SimulatedConnection] = {}
        """Of a listening socket, by the identity of the other side."""
        self._link: Link | None = None
        self._is_listening = kind == zmq.ROUTER

    def setsockopt(self, option: int, value: int | bytes) -> None:
        if option == zmq.IDENTITY:
            assert isinstance(value, bytes)
            self.identity = value

    def bind(self, address: str) -> None:
        self.context.wires.listen(address, self)

    def connect(self, address: str) -> None:
        self._link = Link(self, address)

    def get_monitor_socket(self, _events: int) -> Monitor:
        return self.monitor

    def disable_monitor(self) -> None:
        self.monitor.count = 0

    def close(self, _linger: int) -> None:
        self.end(is_silent=False)

    def end(self, *, is_silent: bool) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.inbox.clear()
        for connection in list(self.connections.values()):
            connection.leave(self, is_silent=is_silent)
        if self._link is not None and self._link.connection is not None:
            self._link.connection.leave(self, is_silent=is_silent)

    def send(self, data: bytes, _flags: int) -> None:
        connection = None if self._link is None else self._link.connection
        if connection is None:
            raise zmq.Again
        connection.say(self, (self.identity, data))

    def send_multipart(self, frames: Sequence[bytes], _flags: int, *, copy: bool = True) -> None:
        connection = self.connections.get(frames[0])
        if connection is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        connection.say(self, tuple(frames[1:]))

    def recv_multipart(self, _flags: int, *, copy: bool = True) -> Sequence[bytes] | list[Frame]:
        if not self.inbox:
            raise zmq.Again
        frames = self.inbox.popleft()
        return frames if copy else [Frame(frame) for frame in frames]

    def wake(self) -> None:
        self.context.wake()


class Link:
    """A DEALER that keeps connecting to an address."""

    def __init__(self, socket: Socket, address: str) -> None:
        self.connection: SimulatedConnection | None = None
        self._socket = socket
        self._address = address
        self._retry_ms = _RETRY_MS
        self._try()

    def _try(self) -> None:
        socket = self._socket
        if socket.is_closed:
            return
        wires, own_id = socket.context.wires, socket.context.host_id
        simulation = wires.simulation
        other = wires.at(self._address)
        if other is not None:
            network, other_id = simulation.network, other.context.host_id
            if not network.is_cut(own_id, other_id) and not network.is_cut(other_id, own_id):
                simulation.after_on(own_id, 1 + simulation.random.randrange(6), self._connected)
                return
        self._again()

    def _again(self) -> None:
        simulation = self._socket.context.wires.simulation
        simulation.after(self._retry_ms, self._try)
        self._retry_ms = min(self._retry_ms * 2, _RETRY_MS_MAX)

    def _connected(self) -> None:
        socket = self._socket
        other = socket.context.wires.at(self._address)
        if socket.is_closed:
            return
        if other is None:
            self._again()
            return
        self._retry_ms = _RETRY_MS
        former = other.connections.get(socket.identity)
        if former is not None:
            former.is_broken = True  # the handover of identities
        self.connection = SimulatedConnection(self, socket, other)
        other.connections[socket.identity] = self.connection
        socket.monitor.count += 1
        socket.wake()

    def lost(self) -> None:
        """The connection is broken."""
        self.connection = None
        if not self._socket.is_closed:
            self._again()


class SimulatedConnection:
    """Two directions of messages in order."""

    def __init__(self, link: Link, asking: Socket, listening: Socket) -> None:
        self.is_broken = False
        self._link = link
        self._ends = (asking, listening)
        self._queues: tuple[deque[Frames], deque[Frames]] = (deque(), deque())
        self._due_ms = [0, 0]
        self._stalled_since_ms = [-1, -1]

    def say(self, sender: Socket, frames: Frames) -> None:
        """Send a message."""
        direction = 0 if sender is self._ends[0] else 1
        receiver = self._ends[1 - direction]
        wires = sender.context.wires
        simulation = wires.simulation
        if simulation.random.random() < wires.break_share:
            self._lose()
            return
        self._queues[direction].append(frames)
        due_ms = max(
            self._due_ms[direction],
            simulation.now_ms + simulation.network.delay_of_a_stream_ms(),
        )
        self._due_ms[direction] = due_ms
        simulation.after_on(
            receiver.context.host_id, due_ms - simulation.now_ms, lambda: self._arrive(direction)
        )

    def leave(self, socket: Socket, *, is_silent: bool) -> None:
        """One end is closed."""
        simulation = socket.context.wires.simulation
        if is_silent:
            simulation.after(SILENCE_MS, self._lose)
        else:
            self._lose()

    def _arrive(self, direction: int) -> None:
        queue = self._queues[direction]
        sender, receiver = self._ends[direction], self._ends[1 - direction]
        if self.is_broken or not queue:
            return
        if receiver.is_closed:
            self._lose()  # a machine that is back knows nothing of it
            return
        simulation = sender.context.wires.simulation
        own_id, other_id = sender.context.host_id, receiver.context.host_id
        if simulation.network.is_cut(own_id, other_id):
            since_ms = self._stalled_since_ms[direction]
            if since_ms < 0:
                self._stalled_since_ms[direction] = simulation.now_ms
            elif simulation.now_ms - since_ms > SILENCE_MS:
                self._lose()
                return
            simulation.after_on(other_id, _STALLED_MS, lambda: self._arrive(direction))
            return
        self._stalled_since_ms[direction] = -1
        receiver.inbox.append(queue.popleft())
        receiver.wake()

    def _lose(self) -> None:
        if self.is_broken:
            return
        self.is_broken = True
        asking, listening = self._ends
        if listening.connections.get(asking.identity) is self:
            del listening.connections[asking.identity]
        if self._link.connection is self:
            self._link.lost()
