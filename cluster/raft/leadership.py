"""A leader in its term: replicates to its peers, counts matches, checks its quorum.

Created when an election is won and dropped with the term. It reads the log and never changes it;
`node` appends, commits and steps down. Peers are the other voters, and the observers as long as
they respond; observers count in no majority.

All messages are created in `flush`, from the state at that moment: what arrived since the last one
shares requests. Entries may be sent before they are durable on the leader's own disk, as long as
the leader counts itself only afterwards (thesis 10.2.1), as `majority_match` does.
"""

from collections.abc import Collection

from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    MembershipChange,
    ProposalRefusal,
    apply_change,
    majority_of,
    majority_value,
)
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    Message,
    PeerResponse,
    SnapshotChunk,
    TimeoutNow,
)
from odradek.cluster.raft.progress import Progress, ProgressState
from odradek.cluster.raft.settings import RaftSettings


class Leadership:
    def __init__(
        self, own_id: int, term: int, log: RaftLog, settings: RaftSettings, now_ms: int
    ) -> None:
        self._own_id = own_id
        self._term = term
        self._log = log
        self._settings = settings
        self._heartbeat_ms = now_ms + settings.heartbeat_ms
        self._voter_ids: tuple[int, ...] = ()
        self.peers: dict[int, Progress] = {}
        self.transferee: int | None = None
        self._transfer_deadline_ms = 0
        self._is_timeout_now_sent = False
        self._uncommitted_bytes = 0
        self.follow_configuration(now_ms)

    # -- peers -------------------------------------------------------------------------------------

    @property
    def observer_ids(self) -> list[int]:
        """The peers without a vote."""
        return [peer for peer in self.peers if peer not in self._voter_ids]

    def follow_configuration(self, now_ms: int) -> None:
        """The log's configuration has changed. A removed voter stays as an observer, so that it
        learns of its removal."""
        self._voter_ids = self._log.configuration.voter_ids
        for voter in self._voter_ids:
            if voter != self._own_id and voter not in self.peers:
                self._add_peer(voter, self._log.last_index + 1, now_ms)
        if self.transferee is not None and self.transferee not in self._voter_ids:
            self.transferee = None

    def add_observer(self, member: int, last_index: int, now_ms: int) -> None:
        """A FollowRequest. A voter is a peer anyway. The progress of an observer is reset, because
        it counts nowhere and may have lost its log."""
        if member in self._voter_ids:
            return
        if member in self.peers or len(self.peers) < self._settings.observers_max:
            self._add_peer(member, min(last_index, self._log.last_index) + 1, now_ms)

    def _add_peer(self, member: int, next_index: int, now_ms: int) -> None:
        self.peers[member] = Progress(
            next_index=next_index, last_index=self._log.last_index, now_ms=now_ms
        )

    # -- uncommitted entries -----------------------------------------------------------------------

    def refusal(self) -> ProposalRefusal | None:
        """Why nothing can be proposed now."""
        if self.transferee is not None:
            return ProposalRefusal.TRANSFER_IN_PROGRESS
        if self._uncommitted_bytes >= self._settings.uncommitted_bytes_max:
            return ProposalRefusal.TOO_MUCH_UNCOMMITTED
        return None

    def increase_uncommitted(self, entry: Entry) -> None:
        """An entry was appended by this leader."""
        self._uncommitted_bytes += entry.size

    def reduce_uncommitted(self, index: int) -> None:
        """The log is about to be committed up to `index`. Entries of earlier leaders were not
        counted."""
        for at in range(self._log.committed_index + 1, index + 1):
            entry = self._log.entry_at(at)
            assert entry is not None
            self._uncommitted_bytes = max(0, self._uncommitted_bytes - entry.size)

    # -- responses ---------------------------------------------------------------------------------

    def handle_response(self, message: PeerResponse, now_ms: int) -> bool:
        """A peer's response of this term; False if it is impossible."""
        if isinstance(message, AppendAccepted) and message.match_index > self._log.last_index:
            return False
        progress = self.peers[message.sender]
        progress.last_contact_ms = now_ms
        if isinstance(message, AppendAccepted):
            self._accepted(progress, message, now_ms)
        elif isinstance(message, AppendRejected):
            # Probe further back, skipping what cannot match by the hint and our own terms.
            index, _ = self._log.last_possible_match(message.hint_index, message.hint_term)
            progress.rejected(message.previous_index, index + 1)
        else:
            progress.snapshot_received(message.index, message.snapshot_term, message.offset)
        return True

    def _accepted(self, progress: Progress, message: AppendAccepted, now_ms: int) -> None:
        was_in_snapshot = progress.state is ProgressState.SNAPSHOT
        progress.accepted(message.match_index)
        if (
            was_in_snapshot
            and progress.state is ProgressState.SNAPSHOT
            and message.match_index >= self._log.previous_index
            and message.match_index == progress.match_index
        ):
            # It has reached our first entry by entries, perhaps of an earlier leader.
            progress.probe(message.match_index + 1)
        self._update_caught_up(progress, now_ms)

    def _update_caught_up(self, progress: Progress, now_ms: int) -> None:
        progress.update_caught_up(
            last_index=self._log.last_index,
            now_ms=now_ms,
            round_ms_max=self._settings.election_timeout_ms,
        )

    # -- majorities --------------------------------------------------------------------------------

    def majority_match(self) -> int:
        """The last index that a majority of the voters has durably. This member counts only if it
        is a voter, and only up to its own stable index."""
        return majority_value(
            self._log.stable_index if voter == self._own_id else self.peers[voter].match_index
            for voter in self._voter_ids
        )

    def is_quorum_active(self, now_ms: int) -> bool:
        """Check quorum: did a majority respond within the last election timeout? (thesis 6.2)"""
        since_ms = now_ms - self._settings.election_timeout_ms
        active = sum(
            voter == self._own_id or self.peers[voter].last_contact_ms >= since_ms
            for voter in self._voter_ids
        )
        return active >= majority_of(len(self._voter_ids))

    def is_caught_up(self, member: int, now_ms: int) -> bool:
        """Whether a peer has caught up enough to become a voter (thesis 4.2.1)."""
        progress = self.peers.get(member)
        if progress is None:
            return False
        self._update_caught_up(progress, now_ms)
        since_ms = now_ms - self._settings.election_timeout_ms
        return progress.is_caught_up and progress.last_contact_ms >= since_ms

    def next_configuration(
        self, change: MembershipChange, now_ms: int
    ) -> Configuration | ProposalRefusal:
        """The configuration to append for a change, or why it must not be appended now.

        Single-server changes (thesis 4.1) are safe if the previous one is committed and the leader
        has committed an entry of its own term. Without the second condition two leaders could
        change the same configuration differently, with majorities that do not overlap (Ongaro's
        correction of the thesis, raft-dev, 2015)."""
        log = self._log
        if log.configuration_index > log.committed_index:
            return ProposalRefusal.CHANGE_IN_PROGRESS
        if log.term_at(log.committed_index) != self._term:
            return ProposalRefusal.TERM_NOT_COMMITTED
        configuration = apply_change(log.configuration, change)
        if isinstance(change, AddVoter) and isinstance(configuration, Configuration):
            is_near = self.is_caught_up(change.voter.member_id, now_ms)
            return configuration if is_near else ProposalRefusal.NOT_CAUGHT_UP
        return configuration

    def best_successor(self, candidates: Collection[int] | None = None) -> int | None:
        """The voter, of `candidates` if given, with the longest log. Asking one that is not up to
        date does no harm."""
        others = [
            voter
            for voter in self._voter_ids
            if voter != self._own_id and (candidates is None or voter in candidates)
        ]
        return max(
            others,
            key=lambda voter: (self.peers[voter].match_index, self.peers[voter].last_contact_ms),
            default=None,
        )

    # -- transfer ----------------------------------------------------------------------------------

    def transfer(self, to: int, now_ms: int) -> None:
        """Replicate the whole log to `to`, then send TimeoutNow (thesis 3.10). Ends after an
        election timeout."""
        self.transferee = to
        self._is_timeout_now_sent = False
        self._transfer_deadline_ms = now_ms + self._settings.election_timeout_ms

    # -- time --------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do. A leader without peers has no heartbeats to send."""
        if self.transferee is not None:
            return min(self._heartbeat_ms, self._transfer_deadline_ms)
        if not self.peers:
            return self._heartbeat_ms + self._settings.observer_silence_ms
        return self._heartbeat_ms

    def tick(self, now_ms: int) -> None:
        """Schedule heartbeats, end an expired transfer, forget silent observers."""
        if self.transferee is not None and now_ms >= self._transfer_deadline_ms:
            self.transferee = None
        if now_ms < self._heartbeat_ms:
            return
        self._heartbeat_ms = now_ms + self._settings.heartbeat_ms
        since_ms = now_ms - self._settings.observer_silence_ms
        for member in [m for m in self.observer_ids if self.peers[m].last_contact_ms < since_ms]:
            del self.peers[member]
        for progress in self.peers.values():
            progress.is_heartbeat_due = True

    # -- sending -----------------------------------------------------------------------------------

    def flush(self, out: list[Message]) -> None:
        """Append all messages to send now to `out`."""
        log = self._log
        for member, progress in self.peers.items():
            if progress.state is not ProgressState.SNAPSHOT:
                self._flush_entries(member, progress, out)
            if progress.state is ProgressState.SNAPSHOT:
                self._flush_snapshot(member, progress, out)
        if self.transferee is not None and not self._is_timeout_now_sent:
            progress = self.peers[self.transferee]
            if progress.match_index == log.last_index:
                self._is_timeout_now_sent = True
                out.append(TimeoutNow(self._own_id, self.transferee, self._term))

    def _flush_entries(self, member: int, progress: Progress, out: list[Message]) -> None:
        settings, log = self._settings, self._log
        while progress.next_index <= log.last_index and progress.can_send_entries(
            requests_max=settings.window_requests_max, bytes_max=settings.window_bytes_max
        ):
            if not self._send(member, progress, settings.append_bytes_max, out):
                return
        has_new_commit = (
            progress.state is ProgressState.REPLICATE
            and progress.sent_commit_index < log.committed_index
        )
        if has_new_commit or progress.is_heartbeat_due:
            self._send(member, progress, 0, out)

    def _send(self, member: int, progress: Progress, bytes_max: int, out: list[Message]) -> bool:
        """Append one request with the next entries, about `bytes_max` of them, 0 for none.

        False if the entries are compacted: then the snapshot is sent.
        """
        log = self._log
        previous_index = progress.next_index - 1
        previous_term = log.term_at(previous_index)
        if previous_term is None:
            assert log.snapshot is not None, "entries are gone and nothing replaces them"
            progress.begin_snapshot(log.snapshot)
            return False
        entries = log.slice(progress.next_index, bytes_max) if bytes_max else ()
        out.append(self._request(member, progress, previous_index, previous_term, entries))
        progress.sent_commit_index = log.committed_index
        progress.sent(previous_index + len(entries), sum([entry.size for entry in entries]))
        return True

    def _flush_snapshot(self, member: int, progress: Progress, out: list[Message]) -> None:
        newest = self._log.snapshot
        assert newest is not None
        if progress.snapshot != newest:
            # The snapshot that was being sent has been replaced.
            progress.begin_snapshot(newest)
        if progress.is_heartbeat_due and progress.is_chunk_sent:
            progress.chunk_age += 1
            if (
                progress.chunk_age * self._settings.heartbeat_ms
                > self._settings.election_timeout_ms
            ):
                progress.is_chunk_sent = False  # it has been lost, or its answer
        if not progress.is_chunk_sent:
            offset = progress.snapshot_offset
            length = min(self._settings.snapshot_chunk_bytes, newest.size - offset)
            out.append(SnapshotChunk(self._own_id, member, self._term, newest, offset, length))
            progress.is_chunk_sent = True
            progress.chunk_age = 0
        if progress.is_heartbeat_due:
            # A request that matches every log: prevents elections during the transfer.
            out.append(self._request(member, progress, 0, 0, ()))

    def _request(
        self,
        member: int,
        progress: Progress,
        previous_index: int,
        previous_term: int,
        entries: tuple[Entry, ...],
    ) -> AppendRequest:
        progress.is_heartbeat_due = False
        return AppendRequest(
            self._own_id,
            member,
            self._term,
            previous_index,
            previous_term,
            entries,
            self._log.committed_index,
        )
