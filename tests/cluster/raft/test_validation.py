"""What cannot be true is told from the message alone."""

import pytest

from cluster.raft.configuration import Configuration, Voter, configuration_of, encode_configuration
from cluster.raft.messages import (
    EVERYBODY,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    FollowRequest,
    LeaderHint,
    Message,
    SnapshotChunk,
    SnapshotMark,
    SnapshotReceived,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from cluster.raft.validation import NUMBER_MAX, is_plausible

MARK = SnapshotMark(9, 2, 10, 77, configuration_of([1, 2, 3]))
EMPTY = SnapshotMark(9, 2, 0, 0, MARK.configuration)
UNORDERED = SnapshotMark(9, 2, 10, 77, Configuration((Voter(2), Voter(1))))


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(1, 2, 1, 0, 0),
        VoteResponse(1, 2, 0, False, is_pre_vote=True),
        AppendRequest(1, 2, 3, 0, 0, (Entry(1, 1, b""), Entry(2, 3, b"x")), 0),
        AppendRequest(1, 2, 3, 4, 2, (), 9),
        AppendRequest(1, 2, 3, 0, 0, (Entry(1, 1, encode_configuration(MARK.configuration)),), 0),
        AppendAccepted(1, 2, 3, 4),
        AppendRejected(1, 2, 3, 0, 0, 0),
        SnapshotChunk(1, 2, 3, MARK, 6, 4, b"abcd"),
        SnapshotChunk(1, 2, 3, EMPTY, 0, 0, b""),
        SnapshotReceived(1, 2, 3, 9, 2, 4),
        TimeoutNow(1, 2, 3),
        FollowRequest(1, EVERYBODY, 0, 0),
        LeaderHint(1, 2, 0, 4),
    ],
)
def test_what_may_be_true_passes(message: Message) -> None:
    assert is_plausible(message)


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(-1, 2, 1, 0, 0),
        VoteRequest(1, -2, 1, 0, 0),
        VoteRequest(1, EVERYBODY, 1, 0, 0),
        VoteRequest(1, 2, 0, 0, 0),
        VoteRequest(1, 2, NUMBER_MAX + 1, 0, 0),
        VoteRequest(1, 2, 1, 4, 0),
        VoteRequest(1, 2, 1, 0, 1),
        VoteRequest(1, 2, 1, -1, 1),
        VoteResponse(1, 2, 0, True, is_pre_vote=True),
        VoteResponse(1, 2, 0, False),
        AppendRequest(1, 2, 0, 0, 0, (), 0),
        AppendRequest(1, 2, 3, 4, 0, (), 0),
        AppendRequest(1, 2, 3, 4, 4, (), 0),
        AppendRequest(1, 2, 3, 4, 2, (), -1),
        AppendRequest(1, 2, 3, 4, 2, (), 0, -1),
        AppendRequest(1, 2, 3, 4, 2, (Entry(6, 3, b""),), 0),
        AppendRequest(1, 2, 3, 4, 2, (Entry(5, 4, b""),), 0),
        AppendRequest(1, 2, 3, 4, 2, (Entry(5, 1, b""),), 0),
        AppendRequest(1, 2, 3, 0, 0, (Entry(1, 0, b""),), 0),
        AppendRequest(1, 2, 3, 4, 2, (Entry(5, 3, b""), Entry(5, 3, b"")), 0),
        AppendRequest(1, 2, 3, 0, 0, (Entry(1, 1, b"\xc1nonsense"),), 0),
        AppendAccepted(1, 2, 3, -4),
        AppendAccepted(1, 2, 0, 4),
        AppendRejected(1, 2, 3, 4, -1, 0),
        SnapshotChunk(1, 2, 3, MARK, 8, 4, b"abcd"),
        SnapshotChunk(1, 2, 3, MARK, 0, 5, b"abcd"),
        SnapshotChunk(1, 2, 3, MARK, 0, 0, b""),
        SnapshotChunk(1, 2, 1, MARK, 0, 4, b"abcd"),
        SnapshotChunk(1, 2, 3, UNORDERED, 0, 4, b"abcd"),
        SnapshotReceived(1, 2, 3, 9, 2, -4),
        TimeoutNow(1, 2, 0),
        FollowRequest(1, 2, 0, -1),
        LeaderHint(1, 2, 0, -4),
    ],
)
def test_what_cannot_be_true_is_told(message: Message) -> None:
    assert not is_plausible(message)
