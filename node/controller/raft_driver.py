"""The Raft core's driver: carries out each `Ready` with the metadata log and the peers.

The order is that of cluster.raft.ready: persist (in the log writer's thread, one durable commit for
hard state and entries), send, apply, advance. The loop does not wait for the disk: what needs no
disk is sent at once, and what arrives during a sync shares the next one. Committed entries go to
the `RaftListener`.

A log that a quorum of one wrote before there was Raft needs no conversion: its entries have term 1,
and the bootstrap voters are its voters.

If the disk is full, entries that do not fit have not been acknowledged. A follower retries until
there is space and does not follow meanwhile. A leader resigns and restarts the core from the disk
(`on_discard`): what it had not persisted has not happened.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from odradek.cluster.raft.configuration import MembershipChange, ProposalRefusal, configuration_of
from odradek.cluster.raft.messages import Entry, Message, SnapshotChunk, TimeoutNow
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import Proposal, Ready, Role, SoftState
from odradek.cluster.raft.settings import RaftSettings
from odradek.node.controller.metadata_log_writer import MetadataLogWriter, WriteResult
from odradek.node.structured_log import get_logger
from odradek.storage.metadata_log import MetadataLog, MetadataLogFullError

log = get_logger(__name__)

RETRY_MS = 250
"""Between two attempts to write to a full disk."""
KEPT_ENTRIES = 5_000
"""Entries kept below a snapshot, for followers that are a little behind."""


class RaftListener(NamedTuple):
    """Called for what follows from the log, in order. None of it may call `process_ready`."""

    on_commit: Callable[[tuple[Entry, ...]], None]
    """These entries are committed and on this disk. Each is reported once, in order; after a
    discard those above the applied state are reported again."""
    on_snapshot: Callable[[int, bytes], None]
    """A leader's snapshot has replaced everything: the last applied index, and the content."""
    on_soft_state: Callable[[SoftState], None]
    """The leader, the term or this member's role has changed."""
    on_discard: Callable[[int], None]
    """The disk was full: entries above this index that this member proposed are lost."""


class RaftDriver:
    """See the module's docstring. One owner, one thread. Times are milliseconds of a clock that
    does not go back.
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
        """`voter_ids` count as long as the log names no voters; empty in a member that joins.
        `may_use_reserve` decides which received entries may use the space reserved for a full disk.
        """
        self._log = metadata_log
        self._own_id = own_id
        self._bootstrap = configuration_of(voter_ids)
        self._send = send
        self._jitter_ms = jitter_ms
        self._now_ms = now_ms
        self._may_use_reserve = may_use_reserve
        self._settings = settings or RaftSettings()
        self._writer = MetadataLogWriter(metadata_log)
        self._persisting: Ready | None = None
        self._retry_at_ms: int | None = None
        self._is_full = False
        self.has_work = False
        """Whether the core got new input since the last `process_ready`."""
        self.node = self._make_node()
        """The core. Read only."""

    def _make_node(self) -> RaftNode:
        return RaftNode(
            self._own_id,
            self._settings,
            self._writer.restored(self._bootstrap),
            jitter_ms=self._jitter_ms,
            now_ms=self._now_ms,
        )

    # -- state -------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when a write has ended: call `process_ready`."""
        return self._writer.fileno()

    @property
    def is_sole_voter(self) -> bool:
        """Whether this member is the only voter, according to its log."""
        return self.node.configuration.voter_ids == (self._own_id,)

    @property
    def is_leader(self) -> bool:
        """Whether this member leads in its current term."""
        return self.node.role is Role.LEADER

    @property
    def is_idle(self) -> bool:
        """Whether no write is under way: the owner may use the log itself."""
        return self._persisting is None

    def age_ms(self, time_ms: int) -> int:
        """Milliseconds since `time_ms`."""
        return max(0, self._now_ms - time_ms)

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do, if nothing happens before."""
        due = self.node.next_deadline_ms()
        if self._retry_at_ms is None:
            return due
        return self._retry_at_ms if self._persisting is None else min(due, self._retry_at_ms)

    # -- input -------------------------------------------------------------------------------------

    def propose(self, data: bytes) -> Proposal | ProposalRefusal:
        """Append to the log, if this member leads. `process_ready` replicates it."""
        self.has_work = True
        return self.node.propose(data)

    def change_membership(self, change: MembershipChange) -> Proposal | ProposalRefusal:
        """Append the next configuration, if this member leads. `process_ready` replicates it."""
        self.has_work = True
        return self.node.propose_membership_change(change, self._now_ms)

    def step(self, message: Message) -> None:
        """Take in a peer's message. Never raises, whatever it contains."""
        self.node.step(message, self._now_ms)

    def tick(self, now_ms: int) -> None:
        """Advance the clock to `now_ms`."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._retry_at_ms is not None:
            if now_ms < self._retry_at_ms:
                return
            self._retry_at_ms = None
            if self._persisting is not None:
                self._persist(self._persisting)
        self.node.tick(self._now_ms)

    def transfer_leadership(self, candidates: Collection[int]) -> int | None:
        """Ask the candidate with the longest log to take over once it has all of it (thesis 3.10).

        The candidate; None if this member does not lead or there is none. Nothing can be proposed
        until the other leads or an election timeout has passed.
        """
        leadership = self.node.leadership
        if leadership is None:
            return None
        successor = leadership.best_successor(candidates)
        if successor is not None:
            self.has_work = True
            self.node.transfer_leadership(successor, self._now_ms)
        return successor

    def resign(self) -> None:
        """Step down and ask the best other voter to take over, if this member leads."""
        if self.is_leader and not self.is_sole_voter:
            self.has_work = True
            self.node.resign(self._now_ms)

    def campaign_now(self, leader_id: int) -> None:
        """The leader's process has ended: campaign as if it had sent TimeoutNow, instead of waiting
        for the election timeout. Voters judge the log as always (thesis 3.10).
        """
        node = self.node
        if node.leader_id == leader_id and node.role is Role.FOLLOWER:
            self.has_work = True
            node.step(TimeoutNow(leader_id, self._own_id, node.term), self._now_ms)

    def snapshot(self, index: int, content: bytes) -> bool:
        """Replace the entries up to `index` by `content`, the state after applying them.

        Only while idle. False if it failed or another snapshot is being received.
        """
        assert self.is_idle
        term = self.node.log.term_at(index)
        if term is None or not self.node.can_take_snapshot:
            return False
        metadata = self._writer.take_snapshot(
            content,
            index=index,
            term=term,
            configuration=self.node.log.configuration_at(index),
            retained_entries=0 if self.is_sole_voter else KEPT_ENTRIES,
        )
        if metadata is None:
            return False
        self.node.snapshot_taken(metadata, self._log.first_index)
        return True

    def close(self) -> None:
        """Finish the write under way. The owner closes the log."""
        self._writer.close()

    # -- Ready -------------------------------------------------------------------------------------

    def process_ready(self, listener: RaftListener, *, waits: bool = False) -> bool:
        """Carry out every Ready of the core; whether the listener was called.

        With `waits`, also wait for the disk, as at a start.
        """
        self.has_work = False
        result = self._writer.take_result()
        is_reported = result is not None and self._on_written(result, listener)
        while True:
            while (ready := self.node.ready()) is not None:
                if ready.must_persist:
                    self._persisting = ready
                    if self._retry_at_ms is None:
                        self._persist(ready)
                else:
                    is_reported |= self._complete(ready, listener)
            if not waits or self._persisting is None or self._retry_at_ms is not None:
                return is_reported
            is_reported |= self._on_written(self._writer.wait_result(), listener)

    def _persist(self, ready: Ready) -> None:
        may_use_reserve = self.node.role is not Role.FOLLOWER or any(
            map(self._may_use_reserve, ready.entries)
        )
        self._writer.persist(ready, may_use_reserve=may_use_reserve)

    def _on_written(self, result: WriteResult, listener: RaftListener) -> bool:
        """A write has ended; whether the listener was called."""
        ready = self._persisting
        assert ready is not None
        if isinstance(result.error, MetadataLogFullError):
            return self._on_full(result.error, listener)
        if result.error is not None:
            raise result.error
        self._persisting = None
        if self._is_full:
            self._is_full = False
            log.info("the metadata log has disk space again")
        if result.is_snapshot_corrupt:
            self.node.reject_snapshot()
        self._complete(ready, listener)
        if ready.snapshot is None or result.is_snapshot_corrupt:
            return False
        listener.on_snapshot(ready.snapshot.index, self._log.snapshot_content())
        return True

    def _complete(self, ready: Ready, listener: RaftListener) -> bool:
        """Send, apply, advance; whether the listener was called."""
        for message in ready.messages:
            self._send_with_data(message)
        if ready.committed:
            listener.on_commit(ready.committed)
        if ready.soft_state is not None:
            listener.on_soft_state(ready.soft_state)
        self.node.advance(ready)
        return bool(ready.committed) or ready.soft_state is not None

    def _send_with_data(self, message: Message) -> None:
        if isinstance(message, SnapshotChunk):
            if self._writer.snapshot != message.snapshot:
                return  # The snapshot was replaced. The core starts again with the new one.
            data = self._log.read_snapshot(message.offset, message.length)
            message = msgspec.structs.replace(message, data=data)
        self._send(message)

    def _on_full(self, error: MetadataLogFullError, listener: RaftListener) -> bool:
        self._retry_at_ms = self._now_ms + RETRY_MS
        was_full, self._is_full = self._is_full, True
        if not self.is_leader:
            if not was_full:
                log.error(
                    "disk full: this node stops following the metadata",
                    reason=str(error),
                    action="free space",
                )
            return False
        log.error(
            "disk full: this node stops leading the quorum", reason=str(error), action="free space"
        )
        self.resign()
        # What needs no disk is still sent: the successor is asked to take over. What is committed
        # meanwhile is reported again.
        while (ready := self.node.ready()) is not None and not ready.must_persist:
            for message in ready.messages:
                self._send_with_data(message)
        self._persisting = None
        self.node = self._make_node()
        listener.on_discard(self._log.last_index)
        listener.on_soft_state(self.node.soft_state)
        return True
