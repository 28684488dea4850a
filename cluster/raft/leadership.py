"""What a leader does in its term: feed its peers, count what they have, prove that it leads.

Made when an election is won and dropped with the term. It reads the log and never changes it;
`node` appends, commits and steps down. Peers are the other voters, which it always feeds, and the
observers, which it feeds for as long as they are heard; observers are in no majority.

Messages are made in `flush` and only there, from what is the case then: whatever arrived since
the last flush shares requests. Nothing here promises anything of the leader's own disk: it may
send entries before it has them durably, as long as it counts itself only afterwards (thesis
10.2.1), which `majority_match` does.
"""

from collections.abc import Collection

from odradek.cluster.raft.configuration import ProposalRefusal, majority_of, majority_value
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotReceived,
    TimeoutNow,
)
from odradek.cluster.raft.progress import Progress, ProgressState
from odradek.cluster.raft.settings import RaftSettings


class Leadership:
    """See the module's docstring."""

    __slots__ = (
        "_heartbeat_ms",
        "_is_transfer_asked",
        "_log",
        "_own_id",
        "_settings",
        "_term",
        "_transfer_deadline_ms",
        "_uncommitted_bytes",
        "_voter_ids",
        "peers",
        "transfer_to",
    )

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
        self.transfer_to: int | None = None
        self._transfer_deadline_ms = 0
        self._is_transfer_asked = False
        self._uncommitted_bytes = 0
        self.follow_configuration(now_ms)

    # -- who is fed --------------------------------------------------------------------------------

    @property
    def observer_ids(self) -> list[int]:
        """Who follows without a vote."""
        return [peer for peer in self.peers if peer not in self._voter_ids]

    def follow_configuration(self, now_ms: int) -> None:
        """The log's configuration has changed.

        Who has lost its vote goes on as an observer, so that it learns that it has lost it.
        """
        self._voter_ids = self._log.configuration.voter_ids
        for voter in self._voter_ids:
            if voter != self._own_id and voter not in self.peers:
                self._add_peer(voter, self._log.last_index + 1, now_ms)
        if self.transfer_to is not None and self.transfer_to not in self._voter_ids:
            self.transfer_to = None

    def add_observer(self, member: int, last_index: int, now_ms: int) -> None:
        """Somebody who hears no leader asks to be fed.

        A voter is fed anyway. An observer begins anew, because it counts nowhere and may have
        forgotten everything.
        """
        if member in self._voter_ids:
            return
        if member in self.peers or len(self.peers) < self._settings.observers_max:
            self._add_peer(member, min(last_index, self._log.last_index) + 1, now_ms)

    def _add_peer(self, member: int, next_index: int, now_ms: int) -> None:
        self.peers[member] = Progress(
            next_index=next_index, last_index=self._log.last_index, now_ms=now_ms
        )

    # -- what is not committed yet -----------------------------------------------------------------

    def refusal(self) -> ProposalRefusal | None:
        """Why nothing more is taken in now."""
        if self.transfer_to is not None:
            return ProposalRefusal.TRANSFER_IN_PROGRESS
        if self._uncommitted_bytes >= self._settings.uncommitted_bytes_max:
            return ProposalRefusal.TOO_MUCH_UNCOMMITTED
        return None

    def increase_uncommitted(self, entry: Entry) -> None:
        """An entry of this leader's own."""
        self._uncommitted_bytes += entry.size

    def reduce_uncommitted(self, index: int) -> None:
        """The log is about to be committed up to `index`.

        Some of it may have come from former leaders, and was not counted.
        """
        for at in range(self._log.committed_index + 1, index + 1):
            entry = self._log.entry_at(at)
            assert entry is not None
            self._uncommitted_bytes = max(0, self._uncommitted_bytes - entry.size)

    # -- what peers say ----------------------------------------------------------------------------

    def handle_response(
        self, message: AppendAccepted | AppendRejected | SnapshotReceived, now_ms: int
    ) -> bool:
        """An answer of a peer in this term; False if it cannot be true."""
        if isinstance(message, AppendAccepted):
            if message.match_index > self._log.last_index:
                return False
            self._accepted(message, now_ms)
        elif isinstance(message, AppendRejected):
            self._rejected(message, now_ms)
        else:
            progress = self._record_contact(message.sender, now_ms)
            progress.snapshot_received(message.index, message.snapshot_term, message.offset)
        return True

    def _accepted(self, message: AppendAccepted, now_ms: int) -> None:
        progress = self._record_contact(message.sender, now_ms)
        was_fed_a_snapshot = progress.state is ProgressState.SNAPSHOT
        progress.accepted(message.match_index)
        if (
            was_fed_a_snapshot
            and progress.state is ProgressState.SNAPSHOT
            and message.match_index >= self._log.previous_index
            and message.match_index == progress.match_index
        ):
            # It has come by entries to where ours begin, perhaps from a former leader.
            progress.probe(message.match_index + 1)
        self._update_caught_up(progress, now_ms)

    def _rejected(self, message: AppendRejected, now_ms: int) -> None:
        """Search on, skipping what cannot match: its hint, held against our own terms."""
        progress = self._record_contact(message.sender, now_ms)
        index, _ = self._log.last_possible_match(message.hint_index, message.hint_term)
        progress.rejected(message.previous_index, index + 1)

    def _record_contact(self, sender: int, now_ms: int) -> Progress:
        progress = self.peers[sender]
        progress.heard_ms = now_ms
        return progress

    def _update_caught_up(self, progress: Progress, now_ms: int) -> None:
        progress.update_caught_up(
            last_index=self._log.last_index,
            now_ms=now_ms,
            round_ms_max=self._settings.election_timeout_ms,
        )

    # -- majorities --------------------------------------------------------------------------------

    def majority_match(self) -> int:
        """The last index that a majority of the voters has durably, this member among them only if
        it has a vote and only as far as its own disk has it.
        """
        return majority_value(
            self._log.stable_index if voter == self._own_id else self.peers[voter].match_index
            for voter in self._voter_ids
        )

    def is_quorum_active(self, now_ms: int) -> bool:
        """Whether a majority was heard within the last election timeout (thesis 6.2)."""
        since_ms = now_ms - self._settings.election_timeout_ms
        heard = sum(
            voter == self._own_id or self.peers[voter].heard_ms >= since_ms
            for voter in self._voter_ids
        )
        return heard >= majority_of(len(self._voter_ids))

    def is_caught_up(self, member: int, now_ms: int) -> bool:
        """Whether a peer is near enough to be given a vote (thesis 4.2.1)."""
        progress = self.peers.get(member)
        if progress is None:
            return False
        self._update_caught_up(progress, now_ms)
        since_ms = now_ms - self._settings.election_timeout_ms
        return progress.is_caught_up and progress.heard_ms >= since_ms

    def best_successor(self, candidates: Collection[int] | None = None) -> int | None:
        """The voter, of the candidates if they are given, that has most of the log; only one that
        is heard and has all that is committed is worth asking, but asking another does no harm.
        """
        others = [
            voter
            for voter in self._voter_ids
            if voter != self._own_id and (candidates is None or voter in candidates)
        ]
        return max(
            others,
            key=lambda voter: (self.peers[voter].match_index, self.peers[voter].heard_ms),
            default=None,
        )

    # -- transfer ----------------------------------------------------------------------------------

    def transfer(self, to: int, now_ms: int) -> None:
        """Bring `to` up to the end of the log, then ask it to take over (thesis 3.10).

        Given up after an election timeout.
        """
        self.transfer_to = to
        self._is_transfer_asked = False
        self._transfer_deadline_ms = now_ms + self._settings.election_timeout_ms

    # -- time --------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        if self.transfer_to is not None:
            return min(self._heartbeat_ms, self._transfer_deadline_ms)
        return self._heartbeat_ms

    def tick(self, now_ms: int) -> None:
        """Heartbeats that are due, a transfer whose time is up, observers that have gone."""
        if self.transfer_to is not None and now_ms >= self._transfer_deadline_ms:
            self.transfer_to = None
        if now_ms < self._heartbeat_ms:
            return
        self._heartbeat_ms = now_ms + self._settings.heartbeat_ms
        since_ms = now_ms - self._settings.observer_silence_ms
        for member in [m for m in self.observer_ids if self.peers[m].heard_ms < since_ms]:
            del self.peers[member]
        for progress in self.peers.values():
            progress.is_heartbeat_due = True

    # -- sending -----------------------------------------------------------------------------------

    def flush(self, out: list[Message]) -> None:
        """Everything that may and should be sent now, appended to `out`."""
        log = self._log
        for member, progress in self.peers.items():
            if progress.state is not ProgressState.SNAPSHOT:
                self._flush_entries(member, progress, out)
            if progress.state is ProgressState.SNAPSHOT:
                self._flush_snapshot(member, progress, out)
        if self.transfer_to is not None and not self._is_transfer_asked:
            progress = self.peers[self.transfer_to]
            if progress.match_index == log.last_index:
                self._is_transfer_asked = True
                out.append(TimeoutNow(self._own_id, self.transfer_to, self._term))

    def _flush_entries(self, member: int, progress: Progress, out: list[Message]) -> None:
        settings, log = self._settings, self._log
        while progress.next_index <= log.last_index and progress.can_send_entries(
            requests_max=settings.window_requests_max, bytes_max=settings.window_bytes_max
        ):
            if not self._send(member, progress, settings.append_bytes_max, out):
                return
        is_news = (
            progress.state is ProgressState.REPLICATE
            and progress.sent_commit_index < log.committed_index
        )
        if is_news or progress.is_heartbeat_due:
            self._send(member, progress, 0, out)

    def _send(self, member: int, progress: Progress, bytes_max: int, out: list[Message]) -> bool:
        """One request after what was sent before, with entries of about `bytes_max`, 0 for none.

        False when the log does not go back so far: then it has become the snapshot's turn.
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
            # The one that was being sent has been replaced, and its bytes are gone.
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
            # A request that fits every log: it keeps elections away while chunks travel.
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
