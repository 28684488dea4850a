"""A follower's log: AppendEntries and InstallSnapshot, receiver implementation.

Every request is of the leader of the current term; `node` checks that. The response is a value; the
outbox sends it when it is durable. While the last chunk of a snapshot is being stored, the log is
about to be replaced: requests are ignored. Called by `node`.
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
    """See the module's docstring. A partly received snapshot stays across terms."""

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
            # The leader's log contains everything that is committed here (leader completeness).
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
            # The response to a heartbeat must not wait for a slow disk: report the durable part.
            last_index = min(last_index, log.stable_index)
        return AppendAccepted(self._own_id, message.sender, message.term, last_index)

    def chunk(self, message: SnapshotChunk) -> AppendAccepted | SnapshotReceived | None:
        """InstallSnapshot (figure 13); None if the response has to wait until it is stored."""
        if self.incoming.is_completing:
            return None
        log, mark = self._log, message.snapshot
        if mark.index <= log.committed_index or log.term_at(mark.index) == mark.term:
            # The entries are here already (figure 13, 6): only commit them.
            log.commit_to(mark.index)
            self.incoming.forget()
            match_index = max(mark.index, log.committed_index)
            return AppendAccepted(self._own_id, message.sender, message.term, match_index)
        offset = self.incoming.offer(message)
        if offset is None:
            return None
        return SnapshotReceived(
            self._own_id, message.sender, message.term, mark.index, mark.term, offset
        )

    def chunk_stored(
        self, chunk: ReceivedChunk, leader_id: int | None, term: int
    ) -> AppendAccepted | SnapshotReceived | None:
        """A chunk is on the disk. Returns the response to the current leader, if there is one.

        A complete snapshot replaces the log. It has committed entries only, which every later
        leader has too.
        """
        if self.incoming.pending_chunk is not chunk:
            return None  # dropped meanwhile
        complete = self.incoming.stored()
        if complete is not None:
            self._log.restore(complete)
        if leader_id is None:
            return None
        mark = chunk.snapshot
        if complete is not None:
            return AppendAccepted(self._own_id, leader_id, term, mark.index)
        offset = self.incoming.offset
        return SnapshotReceived(self._own_id, leader_id, term, mark.index, mark.term, offset)
