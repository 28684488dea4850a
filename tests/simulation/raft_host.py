"""A Raft core with its driver, its disk and a state machine, as a host of the simulation.

The driver follows `cluster.raft.ready`, with syncs that take time while other things happen. The
state machine is a checksum over the commands, and their count. So two hosts have the same state
exactly if they have applied the same commands in the same order, with or without snapshots.
"""

from collections.abc import Callable
from typing import Protocol

from odradek.cluster.raft.configuration import Configuration
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
)
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import HardState, Ready, Restored
from odradek.cluster.raft.settings import RaftSettings
from odradek.protocol.checksum import crc32c
from tests.simulation.disk import Disk
from tests.simulation.simulation import Simulation, Violation

STATE_BYTES = 12
"""A snapshot has the checksum and the number of commands."""
_SNAPSHOT_PADDING = b"." * 50


class Observer(Protocol):
    """Observes everything that a host does. It must not change anything."""

    def sent(self, host: "RaftHost", message: Message) -> None: ...

    def persisting(self, host: "RaftHost", ready: Ready) -> None: ...

    def applied(self, host: "RaftHost", entry: Entry) -> None: ...

    def installed(self, host: "RaftHost") -> None: ...


class RaftDisk:
    """The content of the metadata log."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self.previous_index = 0
        self.previous_term = 0
        self.snapshot: SnapshotMetadata | None = None
        self.content = b""
        self.incoming = b""  # lost in a crash: an unfinished file is dropped at the start

    @property
    def last_index(self) -> int:
        return self.previous_index + len(self.entries)

    def term_at(self, index: int) -> int | None:
        at = index - self.previous_index - 1
        if 0 <= at < len(self.entries):
            return self.entries[at].term
        if at == -1:
            return self.previous_term
        mark = self.snapshot
        return mark.term if mark is not None and mark.index == index else None

    def write(self, ready: Ready) -> None:
        """Write everything that a Ready has for the disk."""
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            at = ready.entries[0].index - self.previous_index - 1
            if not 0 <= at <= len(self.entries):
                raise Violation(f"entries from {ready.entries[0].index} leave a gap on the disk")
            del self.entries[at:]
            self.entries += ready.entries
        chunk = ready.chunk
        if chunk is not None:
            self.incoming = self.incoming if chunk.offset else b""
            if len(self.incoming) != chunk.offset:
                raise Violation(f"a chunk at {chunk.offset} after {len(self.incoming)} bytes")
            self.incoming += chunk.data
            if chunk.is_last:
                self.complete(chunk.snapshot, self.incoming)

    def complete(self, mark: SnapshotMetadata, content: bytes) -> None:
        """A snapshot is complete; a log that does not reach it is deleted (as in `MetadataLog`)."""
        if crc32c(content) != mark.checksum or len(content) != mark.size:
            raise Violation(f"the snapshot at {mark.index} is spoiled")
        if self.term_at(mark.index) != mark.term:
            self.entries = []
            self.previous_index, self.previous_term = mark.index, mark.term
        self.snapshot, self.content = mark, content

    def drop_prefix(self, first_index: int) -> None:
        """Delete the entries below `first_index`."""
        count = first_index - 1 - self.previous_index
        if count > 0:
            self.previous_term = self.entries[count - 1].term
            self.previous_index = first_index - 1
            del self.entries[:count]


class RaftHost:
    """One member, running or not."""

    def __init__(
        self,
        simulation: Simulation,
        own_id: int,
        bootstrap: Configuration,
        settings: RaftSettings,
        observer: Observer,
        *,
        core: type[RaftNode] = RaftNode,
    ) -> None:
        self.own_id = own_id
        self.disk = Disk(RaftDisk(), simulation.random)
        self.applied_index = 0
        self.applied_term = 0
        self.command_count = 0
        self.digest = 0
        self._simulation = simulation
        self._bootstrap = bootstrap
        self._settings = settings
        self._observer = observer
        self._core = core
        self.node: RaftNode

    # -- the life of a host ------------------------------------------------------------------------

    def start(self) -> None:
        disk = self.disk.state
        disk.incoming = b""
        self._load_state_machine()
        random, timeout_ms = self._simulation.random, self._settings.election_timeout_ms
        self.node = self._core(
            self.own_id,
            self._settings,
            Restored(
                hard_state=disk.hard_state,
                entries=tuple(disk.entries),
                previous_term=disk.previous_term,
                snapshot=disk.snapshot,
                bootstrap=self._bootstrap,
            ),
            jitter_ms=lambda: random.randrange(timeout_ms),
            now_ms=self.clock_ms(),
        )
        self._settle()

    def crash(self) -> None:
        self.disk.crash()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.disk.state = RaftDisk()

    def receive(self, message: object) -> None:
        self.node.step(message, self.clock_ms())  # type: ignore[arg-type]  # only these are sent
        self._settle()

    def wake(self) -> None:
        self.node.tick(self.clock_ms())
        self._settle()

    def next_deadline_ms(self) -> int:
        return self.node.next_deadline_ms()

    def clock_ms(self) -> int:
        """The host's clock."""
        return self._simulation.now_ms

    def ask(self, question: Callable[[RaftNode], None]) -> None:
        """Run an operation of the core's users."""
        question(self.node)
        self._settle()

    def take_snapshot(self, kept_entries: int) -> None:
        """Of the applied state; keeps some entries for followers that are not far behind."""
        index = self.applied_index
        log, disk = self.node.log, self.disk.state
        is_newer = disk.snapshot is None or index > disk.snapshot.index
        if index == 0 or not is_newer or not self.node.can_take_snapshot:
            return
        head = self.command_count.to_bytes(8, "big") + self.digest.to_bytes(4, "big")
        content = head + self.state_content()
        configuration = log.configuration_at(index)
        mark = SnapshotMetadata(
            index, self.applied_term, len(content), crc32c(content), configuration
        )
        first_index = max(disk.previous_index + 1, index + 1 - kept_entries)
        disk.complete(mark, content)
        disk.drop_prefix(first_index)
        self.node.snapshot_taken(mark, first_index)
        self._settle()

    def state_content(self) -> bytes:
        """The content of a snapshot besides the checksum."""
        return _SNAPSHOT_PADDING

    # -- the driver's duties -----------------------------------------------------------------------

    def _settle(self) -> None:
        while (ready := self.node.ready()) is not None:
            if ready.must_persist:
                self._persist(ready)
            else:
                self._finish(ready)

    def _persist(self, ready: Ready) -> None:
        self._observer.persisting(self, ready)
        delay_ms = self.disk.begin(lambda disk: disk.write(ready))

        def synced() -> None:
            self.disk.finish()
            self._finish(ready)
            self._settle()

        self._simulation.after_on(self.own_id, delay_ms, synced)

    def _finish(self, ready: Ready) -> None:
        for message in ready.messages:
            self._send(message)
        if ready.snapshot is not None:
            self._load_state_machine()
            self._observer.installed(self)
        for entry in ready.committed:
            self._apply(entry)
        self.node.advance(ready)

    def _send(self, message: Message) -> None:
        if isinstance(message, SnapshotChunk):
            disk = self.disk.state
            if disk.snapshot != message.snapshot:
                return
            data = disk.content[message.offset : message.offset + message.length]
            message = SnapshotChunk(
                message.sender,
                message.to,
                message.term,
                message.snapshot,
                message.offset,
                message.length,
                data,
            )
        self._observer.sent(self, message)
        everybody = self._simulation.host_ids if message.to == ALL_MEMBERS else [message.to]
        for to in everybody:
            if to != self.own_id:
                self._simulation.send(self.own_id, to, message)

    # -- the state machine -------------------------------------------------------------------------

    def _apply(self, entry: Entry) -> None:
        if entry.index != self.applied_index + 1:
            raise Violation(f"{self.own_id} applies {entry.index} after {self.applied_index}")
        self.applied_index, self.applied_term = entry.index, entry.term
        if entry.is_command:
            self.command_count += 1
            self.digest = crc32c(entry.data, self.digest)
        self._observer.applied(self, entry)

    def _load_state_machine(self) -> None:
        disk = self.disk.state
        mark, head = disk.snapshot, disk.content[:STATE_BYTES]
        self.applied_index, self.applied_term = (0, 0) if mark is None else (mark.index, mark.term)
        self.command_count = int.from_bytes(head[:8], "big")
        self.digest = int.from_bytes(head[8:], "big")
