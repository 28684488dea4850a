"""A follower's responses to its leader, and its log."""

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.follower_log import FollowerLog
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    SnapshotChunk,
    SnapshotMetadata,
    SnapshotReceived,
)

BOOTSTRAP = configuration_of([1, 2, 3])
MARK = SnapshotMetadata(9, 2, 10, 77, BOOTSTRAP)


def entries_of(first_index: int, *terms: int) -> tuple[Entry, ...]:
    return tuple(Entry(first_index + at, term, b"x") for at, term in enumerate(terms))


def follower(*terms: int, committed_index: int = 0) -> tuple[FollowerLog, RaftLog]:
    log = RaftLog(entries_of(1, *terms), bootstrap=BOOTSTRAP, committed_index=committed_index)
    return FollowerLog(2, log), log


def append(
    previous_index: int, previous_term: int, *terms: int, commit_index: int = 0
) -> AppendRequest:
    entries = entries_of(previous_index + 1, *terms)
    return AppendRequest(1, 2, 5, previous_index, previous_term, entries, commit_index)


def chunk(offset: int, length: int) -> SnapshotChunk:
    return SnapshotChunk(1, 2, 5, MARK, offset, length, b"x" * length)


def test_appended_entries_are_acknowledged_with_their_last_index() -> None:
    following, log = follower(1)
    assert following.append(append(1, 1, 5, 5)) == AppendAccepted(2, 1, 5, 3)
    assert log.last_index == 3


def test_the_commit_index_is_limited_to_the_confirmed_entries() -> None:
    """Figure 2, AppendEntries 5: "set commitIndex = min(leaderCommit, index of last new entry)"."""
    following, log = follower(1, 2, 2, 2)
    following.append(append(1, 1, commit_index=4))
    assert log.committed_index == 1
    following.append(append(1, 1, 2, commit_index=9))
    assert log.committed_index == 2


def test_a_rejection_has_a_hint_to_the_last_possible_match() -> None:
    following, _ = follower(1, 1, 2, 2)
    assert following.append(append(9, 5)) == AppendRejected(2, 1, 5, 9, 4, 2)
    assert following.append(append(4, 1)) == AppendRejected(2, 1, 5, 4, 2, 1)


def test_an_old_heartbeat_removes_nothing() -> None:
    following, log = follower(1, 1, 1, 1, committed_index=4)
    assert following.append(append(1, 1)) == AppendAccepted(2, 1, 5, 4)
    assert following.append(append(0, 0)) == AppendAccepted(2, 1, 5, 4)
    assert following.append(append(1, 1, 1, 1)) == AppendAccepted(2, 1, 5, 4)
    assert log.last_index == 4


def test_of_partly_committed_entries_only_the_rest_is_appended() -> None:
    following, log = follower(1, 1, committed_index=2)
    assert following.append(append(0, 0, 1, 1, 5)) == AppendAccepted(2, 1, 5, 3)
    assert log.last_term == 5


def test_a_snapshot_whose_entries_are_in_the_log_commits_them() -> None:
    """Figure 13, 6: "If existing log entry has same index and term as snapshot's last included
    entry, retain log entries following it and reply".
    """
    following, log = follower(1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    assert following.chunk(chunk(0, 4)) == AppendAccepted(2, 1, 5, 9)
    assert (log.committed_index, log.last_index) == (9, 10)
    assert following.incoming.mark is None


def test_a_snapshot_replaces_the_log_when_its_last_chunk_is_stored() -> None:
    following, log = follower(1, 1)
    assert following.chunk(chunk(0, 4)) is None
    first = following.incoming.pending_chunk
    assert first is not None
    assert following.chunk_stored(first, 1, 5) == SnapshotReceived(2, 1, 5, 9, 2, 4)
    assert following.chunk(chunk(4, 6)) is None
    last = following.incoming.pending_chunk
    assert last is not None
    assert log.last_index == 2
    assert following.chunk_stored(last, 1, 5) == AppendAccepted(2, 1, 5, 9)
    assert (log.last_index, log.committed_index) == (9, 9)


def test_requests_are_ignored_while_the_log_is_about_to_be_replaced() -> None:
    following, log = follower(1, 1)
    following.chunk(chunk(0, 10))
    assert following.append(append(2, 1, 5)) is None
    assert following.chunk(chunk(0, 10)) is None
    assert log.last_index == 2


def test_a_duplicate_chunk_is_answered_with_our_offset() -> None:
    following, _ = follower(1)
    following.chunk(chunk(0, 4))
    first = following.incoming.pending_chunk
    assert first is not None
    following.chunk_stored(first, None, 5)
    assert following.chunk(chunk(0, 4)) == SnapshotReceived(2, 1, 5, 9, 2, 4)


def test_a_partly_received_snapshot_is_dropped_when_its_entries_are_committed() -> None:
    following, _ = follower(1, 1)
    following.chunk(chunk(0, 4))
    first = following.incoming.pending_chunk
    assert first is not None
    following.append(append(2, 1, 1, 1, 1, 1, 1, 1, 2, commit_index=9))
    assert following.incoming.mark is None
    assert following.chunk_stored(first, 1, 5) is None


def test_a_heartbeat_is_acknowledged_up_to_the_durable_index() -> None:
    following, log = follower(1)
    assert following.append(append(1, 1, 5, 5)) == AppendAccepted(2, 1, 5, 3)
    assert following.append(append(3, 5)) == AppendAccepted(2, 1, 5, 1)
    log.mark_stable(log.unstable())
    assert following.append(append(3, 5)) == AppendAccepted(2, 1, 5, 3)
