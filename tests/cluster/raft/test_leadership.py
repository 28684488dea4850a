"""A leader: replication within limits, majorities, check quorum."""

from odradek.cluster.raft.configuration import (
    Configuration,
    ProposalRefusal,
    configuration_of,
    encode_configuration,
)
from odradek.cluster.raft.leadership import Leadership
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
    SnapshotReceived,
    TimeoutNow,
)
from odradek.cluster.raft.progress import ProgressState
from odradek.cluster.raft.settings import RaftSettings
from tests.cluster.raft.quorum import only

TERM = 3
VOTERS = configuration_of([1, 2, 3])
ENTRY_BYTES = Entry(1, TERM, b"x").size
SETTINGS = RaftSettings(
    append_bytes_max=2 * ENTRY_BYTES,
    window_requests_max=3,
    snapshot_chunk_bytes=4,
    observers_max=4,
)


class Stage:
    """A leader of term 3 with `entry_count` entries, all durable, and what it sends."""

    def __init__(self, entry_count: int = 1, *, bootstrap: Configuration = VOTERS) -> None:
        entries = tuple(Entry(index, TERM, b"x") for index in range(1, entry_count + 1))
        self.log = RaftLog(entries, bootstrap=bootstrap)
        self.leadership = Leadership(1, TERM, self.log, SETTINGS, 0)

    def flush(self) -> list[Message]:
        out: list[Message] = []
        self.leadership.flush(out)
        return out

    def appends(self, to: int) -> list[AppendRequest]:
        return [request for request in only(AppendRequest, self.flush()) if request.to == to]

    def accepts(self, sender: int, match_index: int, *, now_ms: int = 0) -> None:
        answer = AppendAccepted(sender, 1, TERM, match_index)
        self.leadership.handle_response(answer, now_ms)

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.log.append(TERM, b"x")
        self.log.mark_stable(self.log.unstable())

    def compact(self, first_index: int) -> SnapshotMetadata:
        self.log.commit_to(self.log.last_index)
        self.log.take_committed(1 << 30)
        mark = SnapshotMetadata(self.log.last_index, TERM, 10, 77, self.log.configuration)
        self.log.compact(mark, first_index)
        return mark


def test_the_first_request_is_sent_to_every_voter_and_a_probe_waits_for_its_response() -> None:
    stage = Stage()
    stage.grow(1)
    first = only(AppendRequest, stage.flush())
    assert [(m.to, m.previous_index, len(m.entries)) for m in first] == [(2, 1, 1), (3, 1, 1)]
    stage.grow(1)
    assert stage.appends(2) == []
    stage.accepts(2, 2)
    assert [len(request.entries) for request in stage.appends(2)] == [1]


def test_entries_are_batched_within_a_request_and_pipelined_within_the_window() -> None:
    stage = Stage()
    stage.flush()
    stage.accepts(2, 1)
    stage.grow(9)
    requests = stage.appends(2)
    assert [[entry.index for entry in request.entries] for request in requests] == [
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    stage.accepts(2, 3)
    assert [request.previous_index for request in stage.appends(2)] == [7]


def test_after_a_rejection_the_probe_continues_at_the_hint() -> None:
    log = RaftLog(
        [Entry(at, term, b"x") for at, term in enumerate([1, 1, 2, 3, 3], start=1)],
        bootstrap=VOTERS,
    )
    leadership = Leadership(1, TERM, log, SETTINGS, 0)
    leadership.handle_response(AppendRejected(2, 1, TERM, 5, 5, 1), 0)
    out: list[Message] = []
    leadership.flush(out)
    first = next(request for request in only(AppendRequest, out) if request.to == 2)
    assert (first.previous_index, first.previous_term) == (2, 1)


def test_heartbeats_are_sent_at_their_interval_and_repeat_a_probe_without_entries() -> None:
    stage = Stage()
    stage.grow(3)
    stage.flush()
    assert stage.flush() == []
    stage.leadership.tick(SETTINGS.heartbeat_ms - 1)
    stage.leadership.tick(SETTINGS.heartbeat_ms)
    assert [(len(r.entries), r.previous_index) for r in stage.appends(2)] == [(0, 1)]
    assert stage.leadership.next_deadline_ms() == 2 * SETTINGS.heartbeat_ms


def test_a_leader_without_peers_is_left_in_peace_until_one_follows() -> None:
    alone = Stage(bootstrap=configuration_of([1]))
    assert alone.leadership.next_deadline_ms() >= SETTINGS.observer_silence_ms
    alone.leadership.add_observer(2, 0, now_ms=1_000)
    assert alone.leadership.next_deadline_ms() <= 1_000 + SETTINGS.heartbeat_ms


def test_a_new_commit_index_is_sent_at_once() -> None:
    stage = Stage()
    stage.flush()
    stage.accepts(2, 1)
    stage.flush()
    stage.log.commit_to(1)
    assert [request.commit_index for request in stage.appends(2)] == [1]
    assert stage.appends(2) == []


def test_a_majority_is_counted_by_the_durable_entries_of_voters() -> None:
    stage = Stage(5)
    assert stage.leadership.majority_match() == 0
    stage.accepts(2, 4)
    assert stage.leadership.majority_match() == 4
    stage.log.append(TERM, b"not on our disk")
    stage.accepts(2, 6)
    assert stage.leadership.majority_match() == 5
    stage.accepts(3, 6)
    assert stage.leadership.majority_match() == 6, "two others have it: ours is not needed"


def test_an_observer_counts_in_no_majority() -> None:
    stage = Stage(5)
    stage.leadership.add_observer(8, 5, 0)
    stage.leadership.add_observer(9, 5, 0)
    for observer in (8, 9):
        stage.accepts(observer, 5)
    assert stage.leadership.observer_ids == [8, 9]
    assert stage.leadership.majority_match() == 0
    assert not stage.leadership.is_quorum_active(SETTINGS.election_timeout_ms + 1)


def test_a_leader_that_is_no_voter_does_not_count_itself() -> None:
    """Thesis 4.2.2: "it replicates log entries but does not count itself in majorities"."""
    stage = Stage(5, bootstrap=configuration_of([2, 3]))
    stage.accepts(2, 5)
    assert stage.leadership.majority_match() == 0
    stage.accepts(3, 4)
    assert stage.leadership.majority_match() == 4


def test_check_quorum_needs_responses_of_a_majority_within_an_election_timeout() -> None:
    """Thesis 6.2: "a leader in Raft steps down if an election timeout elapses without a successful
    round of heartbeats to a majority of its cluster".
    """
    stage = Stage()
    timeout_ms = SETTINGS.election_timeout_ms
    assert stage.leadership.is_quorum_active(timeout_ms)
    assert not stage.leadership.is_quorum_active(timeout_ms + 1)
    stage.accepts(3, 0, now_ms=300)
    assert stage.leadership.is_quorum_active(timeout_ms + 300)
    assert not stage.leadership.is_quorum_active(timeout_ms + 301)


def test_a_peer_that_needs_compacted_entries_gets_the_snapshot_in_chunks() -> None:
    stage = Stage(5)
    mark = stage.compact(first_index=6)
    stage.leadership.handle_response(AppendRejected(2, 1, TERM, 5, 0, 0), 0)
    out = stage.flush()
    assert only(SnapshotChunk, out) == [SnapshotChunk(1, 2, TERM, mark, 0, 4)]
    assert only(SnapshotChunk, stage.flush()) == []
    for offset, length in ((4, 4), (8, 2)):
        received = SnapshotReceived(2, 1, TERM, 5, TERM, offset)
        stage.leadership.handle_response(received, 0)
        assert only(SnapshotChunk, stage.flush()) == [
            SnapshotChunk(1, 2, TERM, mark, offset, length)
        ]
    stage.accepts(2, 5)
    assert stage.leadership.peers[2].state is ProgressState.REPLICATE


def fed_a_snapshot() -> Stage:
    stage = Stage(5)
    stage.compact(first_index=6)
    stage.flush()
    stage.leadership.handle_response(AppendRejected(2, 1, TERM, 5, 0, 0), 0)
    stage.flush()
    return stage


def test_during_a_snapshot_heartbeats_are_sent_and_lost_chunks_are_repeated() -> None:
    stage = fed_a_snapshot()
    chunks: list[SnapshotChunk] = []
    timeout_ms = SETTINGS.election_timeout_ms
    for now_ms in range(SETTINGS.heartbeat_ms, 2 * timeout_ms, SETTINGS.heartbeat_ms):
        stage.leadership.tick(now_ms)
        out = [message for message in stage.flush() if message.to == 2]
        heartbeats = only(AppendRequest, out)
        assert [(heartbeat.previous_index, heartbeat.entries) for heartbeat in heartbeats] == [
            (0, ())
        ]
        chunks += only(SnapshotChunk, out)
    assert [chunk.offset for chunk in chunks] == [0]


def test_a_snapshot_that_was_replaced_is_sent_from_its_beginning() -> None:
    stage = fed_a_snapshot()
    stage.leadership.handle_response(SnapshotReceived(2, 1, TERM, 5, TERM, 4), 0)
    stage.grow(1)
    newer = stage.compact(first_index=7)
    chunks = only(SnapshotChunk, stage.flush())
    assert [(chunk.snapshot, chunk.offset) for chunk in chunks] == [(newer, 0)]


def test_a_peer_that_has_the_entries_meanwhile_needs_no_snapshot() -> None:
    stage = fed_a_snapshot()
    stage.grow(2)
    stage.accepts(2, 5)
    assert [request.previous_index for request in stage.appends(2)] == [5]


def test_a_silent_observer_is_removed_but_not_a_voter() -> None:
    stage = Stage()
    stage.leadership.add_observer(8, 0, 0)
    stage.leadership.tick(SETTINGS.observer_silence_ms)
    assert stage.leadership.observer_ids == [8]
    stage.leadership.tick(SETTINGS.observer_silence_ms + SETTINGS.heartbeat_ms)
    assert stage.leadership.observer_ids == []
    assert sorted(stage.leadership.peers) == [2, 3]


def test_the_number_of_observers_is_limited() -> None:
    stage = Stage()
    for observer in range(10, 20):
        stage.leadership.add_observer(observer, 0, 0)
    assert len(stage.leadership.peers) == SETTINGS.observers_max


def test_a_follow_request_resets_the_progress_of_an_observer_but_not_of_a_voter() -> None:
    stage = Stage(5)
    stage.leadership.add_observer(8, 5, 0)
    stage.accepts(8, 5)
    stage.accepts(2, 5)
    stage.leadership.add_observer(8, 2, 0)
    stage.leadership.add_observer(2, 2, 0)
    assert stage.leadership.peers[8].match_index == 0
    assert stage.leadership.peers[8].next_index == 3
    assert stage.leadership.peers[2].match_index == 5


def test_a_removed_voter_stays_as_an_observer() -> None:
    stage = Stage()
    stage.log.append(TERM, encode_configuration(configuration_of([1, 2])))
    stage.leadership.follow_configuration(0)
    assert stage.leadership.observer_ids == [3]
    assert [len(request.entries) for request in stage.appends(3)] == [1]


def test_timeout_now_is_sent_when_the_successor_has_everything() -> None:
    """Thesis 3.10: "The prior leader fully updates the target server's log to match its own", and
    only then asks it.
    """
    stage = Stage(5)
    stage.leadership.transfer(2, 0)
    stage.accepts(2, 4)
    assert only(TimeoutNow, stage.flush()) == []
    stage.accepts(2, 5)
    assert only(TimeoutNow, stage.flush()) == [TimeoutNow(1, 2, TERM)]
    assert only(TimeoutNow, stage.flush()) == []


def test_a_transfer_ends_after_an_election_timeout() -> None:
    """Thesis 3.10: "If leadership transfer does not complete after about an election timeout, the
    prior leader aborts the transfer".
    """
    stage = Stage()
    stage.leadership.transfer(2, 0)
    stage.leadership.tick(SETTINGS.election_timeout_ms - 1)
    assert stage.leadership.transferee == 2
    stage.leadership.tick(SETTINGS.election_timeout_ms)
    assert stage.leadership.transferee is None


def test_the_best_successor_has_the_longest_log() -> None:
    stage = Stage(5)
    stage.accepts(2, 3)
    stage.accepts(3, 5)
    assert stage.leadership.best_successor() == 3
    assert stage.leadership.best_successor({1, 2}) == 2
    assert stage.leadership.best_successor(()) is None
    assert Stage(bootstrap=configuration_of([1])).leadership.best_successor() is None


def test_uncommitted_bytes_are_limited() -> None:
    stage = Stage()
    for index in range(2, 5):
        assert stage.leadership.refusal() is None
        entry = stage.log.append(TERM, b"x" * (SETTINGS.uncommitted_bytes_max // 3))
        stage.leadership.increase_uncommitted(entry)
        assert entry.index == index
    assert stage.leadership.refusal() is ProposalRefusal.TOO_MUCH_UNCOMMITTED
    stage.leadership.reduce_uncommitted(3)
    assert stage.leadership.refusal() is None


def test_nothing_can_be_proposed_during_a_transfer() -> None:
    """Thesis 3.10: "The prior leader stops accepting new client requests"."""
    stage = Stage()
    stage.leadership.transfer(2, 0)
    assert stage.leadership.refusal() is ProposalRefusal.TRANSFER_IN_PROGRESS


def test_a_response_beyond_the_log_is_impossible() -> None:
    stage = Stage()
    assert not stage.leadership.handle_response(AppendAccepted(2, 1, TERM, 99), 0)
    assert stage.leadership.peers[2].match_index == 0
