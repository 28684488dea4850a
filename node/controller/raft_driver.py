"""The Raft core's driver: what `Ready` says is done here, with the metadata log and the peers.

Order of duties, as cluster.raft.ready has it: persist (a thread of its own, one durable commit for
hard state and entries), then send, then apply, then advance. While the disk is busy the loop goes
on: what needs no disk leaves at once, and what arrives shares the next sync. Applying is the
caller's: `process_ready` returns what has been committed, in order.

The log that a quorum of one wrote before there was Raft is a log like any other: its entries have
term 1, and who votes is said by the bootstrap.

A full disk. Entries that the log has no room for are not promised to anybody yet. A follower tries
again and again, and does not follow meanwhile. A leader steps down and begins anew from its disk
(`EntriesDiscarded`): what it had not persisted has not happened.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

from odradek.cluster.raft.configuration import (
    Configuration,
    MembershipChange,
    ProposalRefusal,
    configuration_of,
    decode_configuration,
    encode_configuration,
)
from odradek.cluster.raft.messages import (
    Entry,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
    TimeoutNow,
)
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import (
    HardState,
    Proposal,
    Ready,
    ReceivedChunk,
    Restored,
    Role,
    SoftState,
)
from odradek.cluster.raft.settings import RaftSettings
from odradek.node.controller.disk_thread import DiskThread
from odradek.storage.metadata_log import (
    MetadataLog,
    MetadataLogEntry,
    MetadataLogError,
    MetadataLogFullError,
    SnapshotManifest,
    SnapshotWriter,
    StoredHardState,
)

log = logging.getLogger(__name__)

RETRY_MS = 250
"""After which a disk that was full is tried again."""
KEPT_ENTRIES = 5_000
"""Left before a snapshot for followers that are a little behind, where there are any."""


class EntriesCommitted(NamedTuple):
    """These entries are committed, and on this disk. Each is told once, in order."""

    entries: tuple[Entry, ...]


class SnapshotInstalled(NamedTuple):
    """A leader's snapshot has replaced everything: the state after applying `last_index`."""

    last_index: int
    content: bytes


class SoftStateChanged(NamedTuple):
    """Somebody else leads than before, or nobody, or this member in another term."""

    soft_state: SoftState


class EntriesDiscarded(NamedTuple):
    """There was no room on the disk for what this member led: all above `last_index` is gone."""

    last_index: int
    reason: str


Event: TypeAlias = EntriesCommitted | SnapshotInstalled | SoftStateChanged | EntriesDiscarded


class RaftDriver:
    """See the module's docstring. One owner, one thread. Times are of a clock that does not go
    back, in milliseconds.
    """

    def __init__(
        self,
        metadata_log: MetadataLog,
        *,
        own_id: int,
        voter_ids: Sequence[int],
        send: Callable[[Message], None],
        jitter_ms: Callable[[], int],
        now_ms: int,
        may_use_reserve: Callable[[Entry], bool] = lambda _entry: False,
        settings: RaftSettings | None = None,
    ) -> None:
        """`voter_ids` count for as long as the log names none; there are none in a member that
        joins. `may_use_reserve` says of an entry that
        was received whether the room that is kept back for a full disk may be used for it.
        """
        self._log = metadata_log
        self._own_id = own_id
        self._bootstrap = configuration_of(voter_ids)
        self._send = send
        self._jitter_ms = jitter_ms
        self._now_ms = now_ms
        self._may_spend = may_use_reserve
        self._settings = settings or RaftSettings()
        self._disk = DiskThread()
        self._persisting: Ready | None = None
        self._is_refused = False
        self._retry_at_ms: int | None = None
        self._is_full = False
        self._has_new_input = False
        self._incoming: SnapshotWriter | None = None
        self._node = self._make_node()

    def _make_node(self) -> RaftNode:
        return RaftNode(
            self._own_id,
            self._settings,
            restored(self._log, self._bootstrap),
            jitter_ms=self._jitter_ms,
            now_ms=self._now_ms,
        )

    # -- looking -----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when the disk has done something: `process_ready` is to be called."""
        return self._disk.fileno()

    @property
    def node(self) -> RaftNode:
        """The core, to be looked at."""
        return self._node

    @property
    def is_sole_voter(self) -> bool:
        """Whether this member is the only one that votes, as far as its log knows."""
        return self._node.configuration.voter_ids == (self._own_id,)

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._node.role is Role.LEADER

    @property
    def is_idle(self) -> bool:
        """Whether the log is not being written to: the owner may use it itself."""
        return self._persisting is None

    @property
    def has_work(self) -> bool:
        """Whether something was asked of the core since the last `process_ready`."""
        return self._has_new_input

    @property
    def first_index(self) -> int:
        """The first entry that `entries_from` can give."""
        return self._node.log.first_index

    def entries_from(self, index: int, end: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries `[index, end)`, fewer if they are many; at least one if there is one."""
        found = self._node.log.slice(index, bytes_max)
        return found[: max(0, end - index)]

    def age_ms(self, time_ms: int) -> int:
        """How long ago it was."""
        return max(0, self._now_ms - time_ms)

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do, if nothing happens before."""
        due = self._node.next_deadline_ms()
        if self._retry_at_ms is None:
            return due
        return self._retry_at_ms if self._persisting is None else min(due, self._retry_at_ms)

    # -- asking ------------------------------------------------------------------------------------

    def propose(self, data: bytes) -> Proposal | ProposalRefusal:
        """Append to the log, if this member leads. `process_ready` carries it on."""
        self._has_new_input = True
        return self._node.propose(data)

    def change_membership(self, change: MembershipChange) -> Proposal | ProposalRefusal:
        """Append the next configuration, if this member leads. `process_ready` carries it on."""
        self._has_new_input = True
        return self._node.propose_membership_change(change, self._now_ms)

    def step(self, message: Message) -> None:
        """Take in what a peer has said. Never raises, whatever it says."""
        self._node.step(message, self._now_ms)

    def tick(self, now_ms: int) -> None:
        """It is now so late."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._retry_at_ms is not None:
            if now_ms < self._retry_at_ms:
                return
            self._retry_at_ms = None
            if self._persisting is not None:
                self._start_persisting(self._persisting)
        self._node.tick(self._now_ms)

    def transfer_leadership(self, candidates: Collection[int]) -> int | None:
        """Ask the voter among these that has most of the log to take over, once it has all of it
        (thesis 3.10). Whom; None if this member does not lead or there is none.

        Until the other leads, or an election timeout has passed, nothing is taken in here.
        """
        leadership = self._node.leadership
        if leadership is None:
            return None
        successor = leadership.best_successor(candidates)
        if successor is not None:
            self._has_new_input = True
            self._node.transfer_leadership(successor, self._now_ms)
        return successor

    def resign(self) -> None:
        """Ask the best other voter to take over, if this member leads."""
        if self.is_leader and not self.is_sole_voter:
            self._has_new_input = True
            self._node.resign(self._now_ms)

    def campaign_now(self, leader_id: int) -> None:
        """The leader's process has ended: stand for election as if it had asked for that with its
        last word, in place of waiting for a silence that is certain to come.

        Nothing but the waiting is left out: who votes judges the log as ever (thesis 3.10).
        """
        node = self._node
        if node.leader_id == leader_id and node.role is Role.FOLLOWER:
            self._has_new_input = True
            node.step(TimeoutNow(leader_id, self._own_id, node.term), self._now_ms)

    def snapshot(self, index: int, content: bytes) -> bool:
        """Let `content`, the state after applying `index`, stand for the entries up to there.

        Only while the disk is idle. False if there was no room, or this is not the time.
        """
        assert self.is_idle
        term = self._node.log.term_at(index)
        if term is None or not self._node.can_take_snapshot:
            return False
        configuration = self._node.log.configuration_at(index)
        writer: SnapshotWriter | None = None
        try:
            writer = self._log.begin_snapshot(
                index=index, term=term, configuration=encode_configuration(configuration)
            )
            writer.write(content)
            mark = writer.commit()
            kept = 0 if self.is_sole_voter else KEPT_ENTRIES
            first_index = max(self._log.first_index, index + 1 - kept)
            self._log.truncate_prefix(first_index)
        except (MetadataLogError, OSError) as error:
            # The log goes on without it, as long as it has room, and tries again later.
            log.error("no snapshot of the metadata: %s", error)
            if writer is not None:
                writer.abort()
            return False
        self._node.snapshot_taken(_mark(mark), self._log.first_index)
        return True

    def close(self) -> None:
        """Finish what the disk is doing. The log is closed by its owner."""
        self._disk.close()

    # -- the driver's duties -----------------------------------------------------------------------

    def process_ready(self, *, waits: bool = False) -> list[Event]:
        """Carry out what the core says until it says nothing; what is to be applied, in order.

        With `waits` also what the disk is doing is waited for, at a start.
        """
        events: list[Event] = []
        self._has_new_input = False
        self._take_persisted(events)
        while True:
            while (ready := self._node.ready()) is not None:
                if ready.must_persist:
                    self._persisting = ready
                    if self._retry_at_ms is None:
                        self._start_persisting(ready)
                else:
                    self._carry_out(ready, events)
            if not waits or self._persisting is None or self._retry_at_ms is not None:
                return events
            _, error = self._disk.wait_result()
            self._persisted(error, events)

    def _start_persisting(self, ready: Ready) -> None:
        spends = self._node.role is not Role.FOLLOWER or any(map(self._may_spend, ready.entries))
        self._disk.submit(lambda: self._persist(ready, spends))

    def _persist(self, ready: Ready, spends: bool) -> None:
        """In the disk's thread."""
        hard_state = ready.hard_state
        if hard_state is not None or ready.entries:
            self._log.append_entries(
                [MetadataLogEntry(entry.index, entry.term, entry.data) for entry in ready.entries],
                hard_state=None
                if hard_state is None
                else StoredHardState(hard_state.term, hard_state.vote, hard_state.commit),
                may_use_reserve=spends,
            )
        if ready.chunk is not None:
            self._is_refused = not self._store(ready.chunk)

    def _store(self, chunk: ReceivedChunk) -> bool:
        """A piece of a leader's snapshot; False if the snapshot must be sent anew."""
        mark = chunk.snapshot
        try:
            if chunk.offset == 0:
                self._incoming = self._log.begin_snapshot(
                    index=mark.index,
                    term=mark.term,
                    configuration=encode_configuration(mark.configuration),
                )
            writer = self._incoming
            if writer is None or writer.size != chunk.offset:
                return False
            writer.write(chunk.data)
            if not chunk.is_last:
                return True
            self._incoming = None
            if (writer.size, writer.checksum) != (mark.size, mark.checksum):
                log.error("a snapshot of the metadata came spoiled: it is fetched anew")
                writer.abort()
                return False
            writer.commit()
        except (OSError, MetadataLogError) as error:
            log.error("a snapshot of the metadata cannot be stored: %s", error)
            if self._incoming is not None:
                self._incoming.abort()
                self._incoming = None
            return False
        return True

    def _take_persisted(self, events: list[Event]) -> None:
        is_done, error = self._disk.take_result()
        if is_done:
            self._persisted(error, events)

    def _persisted(self, error: Exception | None, events: list[Event]) -> None:
        ready = self._persisting
        assert ready is not None
        if isinstance(error, MetadataLogFullError):
            self._on_full(error, events)
            return
        if error is not None:
            raise error
        self._persisting = None
        if self._is_full:
            self._is_full = False
            log.info("there is room in the metadata log again")
        if self._is_refused:
            self._is_refused = False
            self._node.reject_snapshot()
            mark = None
        else:
            mark = ready.snapshot
        if mark is not None:
            content = b"".join(self._log.iter_snapshot())
            events.append(SnapshotInstalled(mark.index, content))
        self._carry_out(ready, events)

    def _carry_out(self, ready: Ready, events: list[Event]) -> None:
        for message in ready.messages:
            self._send_with_data(message)
        if ready.committed:
            events.append(EntriesCommitted(ready.committed))
        if ready.soft_state is not None:
            events.append(SoftStateChanged(ready.soft_state))
        self._node.advance(ready)

    def _send_with_data(self, message: Message) -> None:
        if not isinstance(message, SnapshotChunk):
            self._send(message)
            return
        mark = self._log.snapshot
        if mark is None or _mark(mark) != message.snapshot:
            return  # it has been replaced; the core begins with the new one
        data = self._log.read_snapshot(message.offset, message.length)
        self._send(
            SnapshotChunk(
                message.sender,
                message.to,
                message.term,
                message.snapshot,
                message.offset,
                message.length,
                data,
            )
        )

    def _on_full(self, error: MetadataLogFullError, events: list[Event]) -> None:
        self._retry_at_ms = self._now_ms + RETRY_MS
        was_full, self._is_full = self._is_full, True
        if not self.is_leader:
            if not was_full:
                log.error("no room: this node falls behind until there is some (%s)", error)
            return
        log.error("no room: this node does not lead until there is some (%s)", error)
        self.resign()
        # What may be said without a disk is: a successor is asked to take over. What is committed
        # meanwhile is told again.
        while (ready := self._node.ready()) is not None and not ready.must_persist:
            for message in ready.messages:
                self._send_with_data(message)
        self._persisting = None
        self._node = self._make_node()
        events.append(EntriesDiscarded(self._log.last_index, str(error)))
        events.append(SoftStateChanged(self._node.soft_state))


def restored(metadata_log: MetadataLog, bootstrap: Configuration) -> Restored:
    """What a member finds on its disk."""
    first_index = metadata_log.first_index
    stored = metadata_log.hard_state
    mark = metadata_log.snapshot
    return Restored(
        hard_state=HardState(stored.term, stored.vote, stored.commit),
        entries=tuple(
            Entry(entry.index, entry.term, entry.data) for entry in metadata_log.read(first_index)
        ),
        previous_term=metadata_log.term_at(first_index - 1),
        snapshot=None if mark is None else _mark(mark),
        bootstrap=bootstrap,
    )


def _mark(mark: SnapshotManifest) -> SnapshotMetadata:
    """A snapshot of the time before there was Raft names no voters."""
    voters = mark.configuration
    configuration = decode_configuration(voters) if voters else Configuration()
    return SnapshotMetadata(mark.index, mark.term, mark.size, mark.checksum, configuration)
