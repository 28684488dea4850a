"""A network between parties on one machine that can be cut, delayed and healed.

Each party's ports are reached through gates: ports on loopback that pass bytes on. Which party a
connection comes from is found out by the process that made it, as the kernel tells, so that nobody
needs an address of its own, and whoever learns of a gate may use it. Nothing here needs rights
that a container in a build does not have, which network namespaces do. The gates are kept by a
process of their own: in that of a test, whose threads are busy, a connection had to wait for
seconds before it was passed on.

What a flow of bytes from one party to another may suffer:

    cut      nothing passes, also no end of a connection; what was sent arrives when it is healed,
             as with TCP whose segments are sent again
    reset    the connections end in RST, and so does each new one
    delay    everything arrives, and in order, but so much later
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
"""The party of everybody who is no node."""

_PIECE_BYTES: Final = 1 << 16
_PIECES_MAX: Final = 256
"""Under way in one direction of a connection; then its sender has to wait."""
_ANSWER_S: Final = 30.0
_LOOK_S: Final = 0.1
"""Between two looks for the processes of who has connected."""
_RST_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class Gate(NamedTuple):
    """`port` leads to `target_port` of a party. Who connects is found out unless `source` says.
    Gates of a kind may suffer without the others."""

    port: int
    target_port: int
    owner: int
    kind: str = ""
    source: int | None = None


class _Way(NamedTuple):
    """From one party to another, by gates of one kind."""

    source: int
    destination: int
    kind: str


@dataclass(slots=True)
class _Flow:
    """What is in force for bytes from one party to another."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    is_reset: bool = False

    def inject(self, order: "_Order") -> None:
        """Put it in force."""
        match order.what:
            case "cut":
                self.opened.clear()
            case "reset":
                self.is_reset = True
            case "delay":
                self.delay_s = order.delay_s

    def heal(self) -> None:
        """As it was at first."""
        self.opened.set()
        self.is_reset, self.delay_s = False, 0.0

    def __str__(self) -> str:
        words = ("passes" if self.opened.is_set() else "cut", "reset" if self.is_reset else "")
        return f"{' '.join(filter(None, words))}, delay {self.delay_s} s"


class NodeNetwork:
    """See the module's docstring. Use it as a context manager. `marks` are what stands in the
    command line of each party's first process, and in no other's."""

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
        """Let nothing pass from any of the sources to any of the destinations: by gates of these
        kinds, or by none at all."""
        self._ask("cut", sources, destinations, kinds)

    def part(self, some: Iterable[int], others: Iterable[int], *kinds: str) -> None:
        """Let nothing pass between them in either direction."""
        some, others = list(some), list(others)
        self._ask("cut", some, others, kinds)
        self._ask("cut", others, some, kinds)

    def reset(self, some: Iterable[int], others: Iterable[int], *kinds: str) -> None:
        """End the connections between them in RST, and each new one."""
        some, others = list(some), list(others)
        self._ask("reset", some, others, kinds)
        self._ask("reset", others, some, kinds)

    def delay(self, sources: Iterable[int], destinations: Iterable[int], delay_s: float) -> None:
        """Have everything arrive so much later."""
        self._ask("delay", sources, destinations, (), delay_s)

    def heal(self) -> None:
        """Pass everything on at once, everywhere."""
        self._ask("heal", (), (), ())

    def describe(self) -> str:
        """What is in force, and what is connected, for whoever looks for the cause of a failure."""
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
    """What the process of the gates is told."""

    what: str
    sources: list[int]
    destinations: list[int]
    kinds: list[str]
    delay_s: float


# -- the process of the gates --------------------------------------------------------------------


def _keep_gates(gates: list[Gate], marks: dict[int, str], line: "Line") -> None:
    asyncio.run(_Gatekeeper(gates, marks, line).serve())


class _Gatekeeper:
    """Passes the bytes on, and does what it is told until the line ends."""

    def __init__(self, gates: list[Gate], marks: dict[int, str], line: "Line") -> None:
        self._line = line
        self._owners = _Owners(marks)
        self._flows: dict[_Way, _Flow] = {}
        self._links: dict[asyncio.StreamWriter, _Way] = {}
        """Both ends of the connections that are open, and whose they are."""
        self._listeners = {gate: _listener(gate.port) for gate in gates}
        self._kinds = {gate.kind for gate in gates}
        self._is_over = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until whoever gives orders is gone."""
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
                # Here and not in the task, which may be cancelled before it begins.
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
        """Carry one connection until it ends."""
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
    """Pass on what comes, and the end of it."""
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
                    # Nobody here keeps one direction open when the other has ended.
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take())
        tasks.create_task(deliver())


def _abort(writer: asyncio.StreamWriter) -> None:
    """End the connection in RST, if it has not ended yet."""
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
    """Of a connection on loopback: its own port, and that of the other end."""

    port: int
    peer_port: int


class _Owners:
    """Finds out who has connected: in one look for all who want to know it, and in a thread.

    A look costs milliseconds, whatever is looked for: the kernel goes through its table of all
    connections. Who did that for each of the connections of a node whose processes are not known
    yet, and in the loop that passes the bytes on, kept so busy on a loaded machine that the nodes
    took each other for dead, connected anew, and never got through.
    """

    def __init__(self, marks: Mapping[int, str]) -> None:
        self._marks = marks
        self._pids: Mapping[int, Iterable[int]] = {}
        self._wanted: dict[_End, asyncio.Future[int | None]] = {}
        self._is_wanted = asyncio.Event()

    async def owner_of(self, end: _End) -> int | None:
        """The party that has connected; None if it has gone again. A node whose processes are not
        known yet has to wait."""
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._wanted[end] = found
        self._is_wanted.set()
        try:
            return await found
        finally:
            self._wanted.pop(end, None)

    async def look(self) -> None:
        """Answer those who ask, for ever."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            while self._wanted:
                ends = list(self._wanted)
                for end, party in (await asyncio.to_thread(self._parties_of, ends)).items():
                    if end in self._wanted and not self._wanted[end].done():
                        self._wanted[end].set_result(party)
                # Those who were told are off the list when they have run.
                await asyncio.sleep(0)
                if self._wanted.keys() & set(ends):
                    await asyncio.sleep(_LOOK_S)

    def _parties_of(self, ends: Iterable[_End]) -> dict[_End, int | None]:
        """Whose the ends are, None for those that are gone; no word of who is not known yet."""
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
    """The parties of whose processes one has the socket open, by the socket's inode."""
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
    """Of the sockets that are connected from a port to another, both on loopback; without those
    that no process has any more.

    proc(5): the lines of /proc/net/tcp, with addresses as HEX:PORT and the inode as tenth field; of
    tcp6 as well, for IPv4 by sockets that can do both.
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
    """The processes of each party: the one whose command line has the mark, and all that it has
    started, and they."""
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
