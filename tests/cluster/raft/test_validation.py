"""Impossible messages are recognised and change no member."""

from random import Random

import pytest

from odradek.cluster.raft.configuration import (
    Configuration,
    Voter,
    configuration_of,
    encode_configuration,
)
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    FollowRequest,
    LeaderHint,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
    SnapshotReceived,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from odradek.cluster.raft.ready import Role
from odradek.cluster.raft.validation import NUMBER_MAX, is_plausible
from tests.cluster.raft.quorum import candidate, follower, heartbeat, leader

MARK = SnapshotMetadata(9, 2, 10, 77, configuration_of([1, 2, 3]))
EMPTY = SnapshotMetadata(9, 2, 0, 0, MARK.configuration)
UNORDERED = SnapshotMetadata(9, 2, 10, 77, Configuration((Voter(2), Voter(1))))


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
        FollowRequest(1, ALL_MEMBERS, 0, 0),
        LeaderHint(1, 2, 0, 4),
    ],
)
def test_possible_messages_are_plausible(message: Message) -> None:
    assert is_plausible(message)


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(-1, 2, 1, 0, 0),
        VoteRequest(1, -2, 1, 0, 0),
        VoteRequest(1, ALL_MEMBERS, 1, 0, 0),
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
def test_impossible_messages_are_not_plausible(message: Message) -> None:
    assert not is_plausible(message)


# -- what comes from the network -------------------------------------------------------------------


def test_messages_to_other_members_or_from_this_one_are_dropped() -> None:
    member = follower()
    assert member.hear(VoteRequest(1, 3, 4, 0, 0), VoteRequest(2, 2, 4, 0, 0)) == []
    assert (member.node.dropped_count, member.node.term) == (2, 0)


def test_an_unknown_member_cannot_depose_a_leader_or_acknowledge_entries() -> None:
    member = leader()
    member.hear(AppendRejected(9, 2, 99, 0, 0, 0), AppendAccepted(9, 2, 1, 1))
    assert (member.role, member.node.term) == (Role.LEADER, 1)
    assert member.node.log.committed_index == 0
    assert member.node.dropped_count == 2


def test_an_index_beyond_the_log_acknowledges_nothing() -> None:
    member = leader()
    member.hear(AppendAccepted(1, 2, 1, 1_000))
    assert member.node.log.committed_index == 0


def test_a_second_leader_in_one_term_is_not_followed() -> None:
    member = follower()
    member.hear(heartbeat(1))
    assert member.hear(heartbeat(1, sender=3)) == []
    assert member.node.leader_id == 1
    itself = leader()
    assert itself.hear(heartbeat(1)) == []
    assert itself.role is Role.LEADER


def test_no_message_raises() -> None:
    """A thousand nonsensical messages for members in every role, some of them plausible."""
    random = Random(7)
    numbers = (-1, 0, 1, 1, 2, 2, 3, 3, 4, 9, 2**62, 2**63)

    def number() -> int:
        return random.choice(numbers)

    def message(to: int) -> Message:
        sender, term = random.choice((1, 2, 3, 9)), number()
        entries = tuple(
            Entry(
                number(), number(), random.choice((b"", b"x", b"\xc1", b"\xc1\x91\x92\x01\xc4\x00"))
            )
            for _ in range(random.randrange(3))
        )
        voters = configuration_of(random.sample(range(5), random.randrange(4)))
        mark = SnapshotMetadata(number(), number(), number(), number(), voters)
        flag = random.random() < 0.5
        return random.choice(
            (
                VoteRequest(sender, to, term, number(), number(), flag, random.random() < 0.5),
                VoteResponse(sender, to, term, flag, random.random() < 0.5),
                AppendRequest(sender, to, term, number(), number(), entries, number(), number()),
                AppendAccepted(sender, to, term, number(), number()),
                AppendRejected(sender, to, term, number(), number(), number(), number()),
                SnapshotChunk(sender, to, term, mark, number(), 1, b"x"),
                SnapshotReceived(sender, to, term, number(), number(), number()),
                TimeoutNow(sender, to, term),
                FollowRequest(sender, random.choice((to, ALL_MEMBERS)), term, number()),
                LeaderHint(sender, to, term, number()),
            )
        )

    for _ in range(100):
        for member in (follower(1, 1, 2), candidate(1, 1), leader(1, 2)):
            for _ in range(10):
                member.hear(message(2))
                if random.random() < 0.2:
                    member.elapse(random.randrange(600))
