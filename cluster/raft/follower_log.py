"""What a follower does to its log when its leader says so.

Every request here is of the leader of the present term; `node` has seen to that. The answer is a
value; whether it may leave before the disk has caught up is the outbox's business. While the last
chunk of a snapshot is on its way to the disk the log is about to be replaced, so nothing is said
about it and nothing changes. Called by `node`.
"""

from odradek.cluster.raft.incoming_snapshot import IncomingSnapshot
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    SnapshotChunk,
    SnapshotReceived,
)
from odradek.cluster.raft.ready import ReceivedChunk


class FollowerLog:
    """The follower's half of replication, for all terms: what was received of a snapshot stays."""

    __slots__ = ("_log", "_own_id", "incoming")

    def __init__(self, own_id: int, log: RaftLog) -> None:
        self._own_id = own_id
        self._log = log
        self.incoming = IncomingSnapshot()

    def append(self, message: AppendRequest) -> AppendAccepted | AppendRejected | None:
        """AppendEntries, receiver implementation 2 to 5 (figure 2)."""
        if self.incoming.is_completing:
            return None
        log = self._log
        previous_index, previous_term = message.previous_index, message.previous_term
        entries = message.entries
        last_index = previous_index + len(entries)
        if previous_index < log.committed_index:
            # All that is committed here is in the leader's log as well (leader completeness).
            entries = entries[log.committed_index - previous_index :]
            previous_index = log.committed_index
            committed_term = log.term_at(previous_index)
            assert committed_term is not None
            previous_term = committed_term
            last_index = max(last_index, previous_index)
        if not log.merge(previous_index, previous_term, entries):
            hint_index, hint_term = log.last_possible_match(previous_index, previous_term)
            return AppendRejected(
                self._own_id,
                message.sender,
                message.term,
                message.previous_index,
                hint_index,
                hint_term,
            )
        log.commit_to(min(message.commit_index, last_index))
        mark = self.incoming.mark
        if mark is not None and mark.index <= log.committed_index:
            self.incoming.forget()
        if not message.entries:
            # A heartbeat must not wait for a slow disk: the leader wants to hear us, and a part of
            # the truth is true.
            last_index = min(last_index, log.stable_index)
        return AppendAccepted(self._own_id, message.sender, message.term, last_index)

    def chunk(self, message: SnapshotChunk) -> AppendAccepted | SnapshotReceived | None:
        """InstallSnapshot (figure 13); None when the answer has to wait until it is stored."""
        if self.incoming.is_completing:
            return None
        log, mark = self._log, message.snapshot
        if mark.index <= log.committed_index or log.term_at(mark.index) == mark.term:
            # The entries are here (figure 13, 6). That they are committed is what was missing.
            log.commit_to(mark.index)
            self.incoming.forget()
            match_index = max(mark.index, log.committed_index)
            return AppendAccepted(self._own_id, message.sender, message.term, match_index)
        offset = self.incoming.offer(message)
        if offset is None:
            return None
        return self._received(message.sender, message.term, mark.index, mark.term, offset)

    def chunk_stored(
        self, chunk: ReceivedChunk, leader_id: int | None, term: int
    ) -> AppendAccepted | SnapshotReceived | None:
        """A chunk is on the disk; the answer to the present leader, if there is one.

        A complete snapshot is the log's beginning now. It holds committed entries only, so that
        whoever leads now has them as well.
        """
        if self.incoming.storing is not chunk:
            return None  # it was given up meanwhile
        complete = self.incoming.stored()
        if complete is not None:
            self._log.restore(complete)
        if leader_id is None:
            return None
        mark = chunk.snapshot
        if complete is not None:
            return AppendAccepted(self._own_id, leader_id, term, mark.index)
        return self._received(leader_id, term, mark.index, mark.term, self.incoming.offset)

    def _received(
        self, leader_id: int, term: int, index: int, snapshot_term: int, offset: int
    ) -> SnapshotReceived:
        return SnapshotReceived(self._own_id, leader_id, term, index, snapshot_term, offset)
