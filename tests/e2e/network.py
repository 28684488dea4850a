"""A network between processes of one machine that can be cut, delayed and healed.

Every port is reached through gates: ports on loopback that forward bytes. The party of a connection
is looked up by its process, so that no party needs its own address. No privileges are needed, which
network namespaces would need. The gates run in their own process: in the process of a test, whose
threads are busy, connections waited for seconds.

Faults on the bytes from one party to another:

    cut      nothing passes, nor the end of a connection; bytes arrive after `heal`, as with TCP's
             retransmissions
    reset    connections are reset, and every new one as well
    delay    everything arrives in order, but later
"""

import asyncio
import contextlib
import multiprocessing
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias

import psutil

Line: TypeAlias = "Connection[object, object]"

CLIENTS: Final = -1
"""The party of all clients."""

_PIECE_BYTES: Final = 1 << 16
_PIECES_MAX: Final = 256
"""Buffered pieces in one direction of a connection at most. Then its sender has to wait."""
_ANSWER_S: Final = 30.0
_LOOKUP_INTERVAL_S: Final = 0.1
"""Interval of lookups of connecting processes."""
_RST_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Gate(NamedTuple):
    """`port` leads to `target_port` of a party. The source of a connection is looked up, unless
    `source` names it. Faults can be limited to gates of one kind."""

    port: int
    target_port: int
    owner: int
    kind: str = ""
    source: int | None = None


class _Way(NamedTuple):
    """From one party to another, through gates of one kind."""

    source: int
    destination: int
    kind: str


@dataclass(slots=True)
class _Flow:
    """The fault on the bytes from one party to another."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    is_reset: bool = False

    def inject(self, order: "_Order") -> None:
        """Put the fault in force."""
        match order.what:
            case "cut":
                self.opened.clear()
            case "reset":
                self.is_reset = True
            case "delay":
                self.delay_s = order.delay_s

    def heal(self) -> None:
        """End all faults."""
        self.opened.set()
        self.is_reset, self.delay_s = False, 0.0

    def __str__(self) -> str:
        words = ("passes" if self.opened.is_set() else "cut", "reset" if self.is_reset else "")
        return f"{' '.join(filter(None, words))}, delay {self.delay_s} s"


class NodeNetwork:
    """See the module's docstring. Use it as a context manager. `marks` are texts in the command
    line of each party's first process, and in no other's."""

    def __init__(self, gates: Iterable[Gate], marks: Mapping[int, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(
            target=_keep_gates, args=(list(gates), dict(marks), theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.close()
        self._process.join(_ANSWER_S)
        self._process.kill()
        self._process.close()

    # -- what happens to it ------------------------------------------------------------------------

    def cut(self, sources: Iterable[int], destinations: Iterable[int], *kinds: str) -> None:
        """Let nothing pass from any of the sources to any of the destinations, through gates of
        these kinds (default: all)."""
        self._ask("cut", sources, destinations, kinds)

    def part(self, some: Iterable[int], others: Iterable[int], *kinds: str) -> None:
        """Let nothing pass between them in either direction."""
        some, others = list(some), list(others)
        self._ask("cut", some, others, kinds)
        self._ask("cut", others, some, kinds)

    def reset(self, some: Iterable[int], others: Iterable[int], *kinds: str) -> None:
        """Reset the connections between them, and every new one."""
        some, others = list(some), list(others)
        self._ask("reset", some, others, kinds)
        self._ask("reset", others, some, kinds)

    def delay(self, sources: Iterable[int], destinations: Iterable[int], delay_s: float) -> None:
        """Delay everything by this time."""
        self._ask("delay", sources, destinations, (), delay_s)

    def heal(self) -> None:
        """End all faults everywhere."""
        self._ask("heal", (), (), ())

    def describe(self) -> str:
        """The faults in force and the open connections, for failure messages."""
        return self._ask("describe", (), (), ())

    def _ask(
        self,
        what: str,
        sources: Iterable[int],
        destinations: Iterable[int],
        kinds: Iterable[str],
        delay_s: float = 0.0,
    ) -> str:
        self._line.send(_Order(what, list(sources), list(destinations), list(kinds), delay_s))
        return self._answer()

    def _answer(self) -> str:
        if not self._line.poll(_ANSWER_S):
            raise TimeoutError("the network does not answer")
        return str(self._line.recv())


class _Order(NamedTuple):
    """A command for the process of the gates."""

    what: str
    sources: list[int]
    destinations: list[int]
    kinds: list[str]
    delay_s: float


# -- the process of the gates --------------------------------------------------------------------


def _keep_gates(gates: list[Gate], marks: dict[int, str], line: "Line") -> None:
    asyncio.run(_Gatekeeper(gates, marks, line).serve())


class _Gatekeeper:
    """Passes bytes on and carries out orders until the pipe is closed."""

    def __init__(self, gates: list[Gate], marks: dict[int, str], line: "Line") -> None:
        self._line = line
        self._owners = _Owners(marks)
        self._flows: dict[_Way, _Flow] = {}
        self._links: dict[asyncio.StreamWriter, _Way] = {}
        """Both ends of the open connections, with their parties."""
        self._listeners = {gate: _listener(gate.port) for gate in gates}
        self._kinds = {gate.kind for gate in gates}
        self._is_over = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the parent process has ended."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            serving = [
                tasks.create_task(self._accept(gate, listener, tasks))
                for gate, listener in self._listeners.items()
            ]
            serving.append(tasks.create_task(self._owners.look()))
            loop.add_reader(self._line.fileno(), self._obey)
            self._line.send("ready")
            await self._is_over.wait()
            loop.remove_reader(self._line.fileno())
            for task in (*serving, *self._connections):
                task.cancel()

    def _obey(self) -> None:
        try:
            order = self._line.recv()
        except (EOFError, OSError):
            self._is_over.set()
            return
        assert isinstance(order, _Order)
        if order.what == "describe":
            self._line.send(self._describe())
            return
        if order.what == "heal":
            for flow in self._flows.values():
                flow.heal()
        for source, destination in product(order.sources, order.destinations):
            for kind in order.kinds or self._kinds:
                if source != destination:
                    self._flow(_Way(source, destination, kind)).inject(order)
        for writer, way in self._links.items():
            if self._flow(way).is_reset:
                _abort(writer)
        self._line.send("done")

    def _describe(self) -> str:
        lines = [f"{way}: {flow}" for way, flow in self._flows.items()]
        lines += [f"open: {way}" for way in set(self._links.values())]
        lines.append(f"{len(self._links)} ends, {len(self._connections)} connections")
        return "\n".join(lines)

    def _flow(self, way: _Way) -> _Flow:
        flow = self._flows.get(way)
        if flow is None:
            flow = self._flows[way] = _Flow()
            flow.opened.set()
        return flow

    async def _accept(self, gate: Gate, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        with listener:
            while True:
                connection, (_, port) = await asyncio.get_running_loop().sock_accept(listener)
                # Here and not in the task, which may be cancelled before its first step.
                try:
                    reader, writer = await asyncio.open_connection(sock=connection)
                except OSError:
                    connection.close()
                    continue
                task = tasks.create_task(self._carry(gate, reader, writer, port))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)
                task.add_done_callback(lambda _, writer=writer: _abort(writer))  # type: ignore[misc]  # a default

    async def _carry(
        self,
        gate: Gate,
        near_reader: asyncio.StreamReader,
        near: asyncio.StreamWriter,
        port: int,
    ) -> None:
        """Forward one connection until it ends."""
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", gate.target_port)
        except OSError:
            return  # nobody listens there
        try:
            source = gate.source
            if source is None:
                source = await self._owners.owner_of(_End(port, gate.port))
            if source is None:
                return
            way = _Way(source, gate.owner, gate.kind)
            there, back = self._flow(way), self._flow(_Way(gate.owner, source, gate.kind))
            if there.is_reset:
                return
            self._links[near] = self._links[far] = way
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(near_reader, far, there))
                pumps.create_task(_pump(far_reader, near, back))
        finally:
            self._links.pop(near, None)
            self._links.pop(far, None)
            _abort(far)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: _Flow) -> None:
    """Forward bytes, and the end of the stream."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)
    now = asyncio.get_running_loop().time

    async def take() -> None:
        piece = b"..."
        while piece:
            try:
                piece = await reader.read(_PIECE_BYTES)
            except OSError:
                piece = b""
            await under_way.put((now() + flow.delay_s, piece))

    async def deliver() -> None:
        while True:
            due, piece = await under_way.get()
            await asyncio.sleep(max(0.0, due - now()))
            await flow.opened.wait()
            with contextlib.suppress(OSError):
                if not piece:
                    # No node keeps one direction open after the other has ended.
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take())
        tasks.create_task(deliver())


def _abort(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, if it is still open."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_AT_CLOSE)
    writer.transport.abort()


def _listener(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    listener.setblocking(False)
    return listener


# -- whose connection it is ----------------------------------------------------------------------


class _End(NamedTuple):
    """One end of a connection on loopback: its own port and the port of the other end."""

    port: int
    peer_port: int


class _Owners:
    """Looks up the process behind a connection: once for all pending connections, in a thread.

    A lookup takes milliseconds, because the kernel goes through its table of all connections. With
    one lookup for each connection, in the loop that forwards bytes, a loaded machine was so slow
    that the nodes timed out, connected again, and never got through.
    """

    def __init__(self, marks: Mapping[int, str]) -> None:
        self._marks = marks
        self._pids: Mapping[int, Iterable[int]] = {}
        self._wanted: dict[_End, asyncio.Future[int | None]] = {}
        self._is_wanted = asyncio.Event()

    async def owner_of(self, end: _End) -> int | None:
        """The party that connected; None if the connection is closed already. Waits while the
        processes of a node are not known yet."""
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._wanted[end] = found
        self._is_wanted.set()
        try:
            return await found
        finally:
            self._wanted.pop(end, None)

    async def look(self) -> None:
        """Answer the pending lookups, for ever."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            while self._wanted:
                ends = list(self._wanted)
                for end, party in (await asyncio.to_thread(self._parties_of, ends)).items():
                    if end in self._wanted and not self._wanted[end].done():
                        self._wanted[end].set_result(party)
                # Lookups that are answered leave the list before the next pass.
                await asyncio.sleep(0)
                if self._wanted.keys() & set(ends):
                    await asyncio.sleep(_LOOKUP_INTERVAL_S)

    def _parties_of(self, ends: Iterable[_End]) -> dict[_End, int | None]:
        """The parties of these ends, None for closed ones; unknown ones are left out."""
        inodes = inodes_of(ends)
        wanted = set(inodes.values())
        found = owners_of(wanted, self._pids)
        if wanted - found.keys():
            self._pids = pids_of(self._marks)
            found |= owners_of(wanted - found.keys(), self._pids)
        parties: dict[_End, int | None] = dict.fromkeys(set(ends) - inodes.keys())
        for end, inode in inodes.items():
            if inode in found:
                parties[end] = found[inode]
        return parties


def owners_of(inodes: Iterable[str], pids: Mapping[int, Iterable[int]]) -> dict[str, int]:
    """The parties by the inodes of the sockets that their processes have open."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for party, of_party in pids.items():
        for pid in of_party:
            if len(found) == len(wanted):
                return found
            with contextlib.suppress(OSError):
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        inode = wanted.get(str(descriptor.readlink()))
                        if inode is not None:
                            found[inode] = party
    return found


def inodes_of(ends: Iterable[tuple[int, int]]) -> dict[_End, str]:
    """The inodes of connected sockets, by (port, other port) on loopback, without those that no
    process has open any more.

    See proc(5): the lines of /proc/net/tcp have addresses as HEX:PORT, and the inode as tenth
    field. The same for tcp6, which has IPv4 connections of dual-stack sockets.
    """
    wanted = {
        (f"{port:04X}", f"{peer_port:04X}"): _End(port, peer_port) for port, peer_port in ends
    }
    found: dict[_End, str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            end = wanted.get((fields[1].rpartition(":")[2], fields[2].rpartition(":")[2]))
            if end is not None and fields[9] != "0":
                found[end] = fields[9]
    return found


def pids_of(marks: Mapping[int, str]) -> dict[int, list[int]]:
    """The processes of each party: the one whose command line has the mark, and all of its
    descendants."""
    children: dict[int, list[int]] = {}
    found: dict[int, list[int]] = {party: [] for party in marks}
    for process in psutil.process_iter(["ppid", "cmdline"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
        line = " ".join(process.info["cmdline"] or ())
        for party, mark in marks.items():
            if mark in line:
                found[party].append(process.pid)
    for pids in found.values():
        for pid in pids:
            pids += [child for child in children.get(pid, ()) if child not in pids]
    return found
