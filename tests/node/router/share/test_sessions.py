"""Share sessions: epochs, connections and limits."""

import pytest

from odradek.node.router.share.sessions import (
    PARTITIONS_MAX,
    ShareSession,
    ShareSessions,
    TopicIdPartition,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.messages.share import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareRequestPartition,
    ShareRequestTopic,
)

TOPIC = b"\x01" * 16


def fetch(
    sessions: ShareSessions,
    epoch: int,
    *partitions: int,
    member: str = "a",
    connection: int = 1,
    forget: tuple[int, ...] = (),
) -> ShareSession:
    request = ShareFetchRequest(
        share_session_epoch=epoch,
        topics=[
            ShareRequestTopic(
                topic_id=TOPIC,
                partitions=[ShareRequestPartition(partition_index=index) for index in partitions],
            )
        ],
        forgotten_topics_data=[TopicIdPartitions(topic_id=TOPIC, partitions=list(forget))],
    )
    return sessions.for_fetch(request, "g", member, connection)


def acknowledge(sessions: ShareSessions, epoch: int, connection: int = 1) -> ShareSession:
    request = ShareAcknowledgeRequest(share_session_epoch=epoch)
    return sessions.for_acknowledge(request, "g", "a", connection)


def refusal(sessions: ShareSessions, epoch: int, member: str = "a") -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        fetch(sessions, epoch, member=member)
    return raised.value.code


def partitions_of(session: ShareSession) -> list[int]:
    return [place.partition for place in session.partitions]


@pytest.fixture
def sessions() -> ShareSessions:
    return ShareSessions(lambda: 2)


def test_partitions_are_added_and_removed(sessions: ShareSessions) -> None:
    assert partitions_of(fetch(sessions, 0, 0, 1)) == [0, 1]
    assert partitions_of(fetch(sessions, 1, 2, 3, forget=(0, 3))) == [1, 2]
    assert partitions_of(fetch(sessions, 2)) == [1, 2]


def test_fetches_and_acknowledgements_advance_the_same_epoch(sessions: ShareSessions) -> None:
    fetch(sessions, 0, 0)
    acknowledge(sessions, 1)
    fetch(sessions, 2)
    assert refusal(sessions, 2) == ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_epochs_wrap_to_one(sessions: ShareSessions) -> None:
    session = fetch(sessions, 0, 0)
    session.epoch = 2**31 - 1
    fetch(sessions, 2**31 - 1)
    assert session.epoch == 1


def test_a_session_that_is_opened_again_has_only_new_partitions(sessions: ShareSessions) -> None:
    first = fetch(sessions, 0, 0, 1)
    again = fetch(sessions, 0, 2, connection=5)
    assert again is first
    assert partitions_of(again) == [2]
    assert sessions.of_connection(1) == ()
    assert sessions.of_connection(5) == (again,)


def test_sessions_over_the_limit_are_refused(sessions: ShareSessions) -> None:
    first = fetch(sessions, 0, member="a")
    fetch(sessions, 0, member="b")
    assert refusal(sessions, 0, "c") == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.close(first)
    sessions.close(first)
    fetch(sessions, 0, member="c")
    assert len(sessions) == 2


def test_a_group_has_sessions_while_a_member_has_one(sessions: ShareSessions) -> None:
    first, second = fetch(sessions, 0, member="a"), fetch(sessions, 0, member="b")
    sessions.close(first)
    assert sessions.has_any("g")
    sessions.close(second)
    assert not sessions.has_any("g")


def test_a_session_belongs_to_the_connection_of_its_last_request(sessions: ShareSessions) -> None:
    session = fetch(sessions, 0, 0)
    acknowledge(sessions, 1, connection=2)
    assert sessions.of_connection(1) == ()
    assert sessions.of_connection(2) == (session,)


def test_the_final_epoch_finds_the_session_at_any_epoch(sessions: ShareSessions) -> None:
    session = fetch(sessions, 0, 0)
    assert fetch(sessions, -1, 1) is session
    assert partitions_of(session) == [0]
    assert acknowledge(sessions, -1) is session


def test_a_topic_id_partition_equals_its_tuple() -> None:
    assert TopicIdPartition(TOPIC, 3) == (TOPIC, 3)


def test_the_partitions_of_a_session_are_limited(sessions: ShareSessions) -> None:
    with pytest.raises(ApiError) as raised:
        fetch(sessions, 0, *range(PARTITIONS_MAX + 1))
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert not len(sessions)
    session = fetch(sessions, 0, *range(PARTITIONS_MAX))
    with pytest.raises(ApiError) as raised:
        fetch(sessions, 1, PARTITIONS_MAX)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert fetch(sessions, 1, 0, 1) is session, "these it has already"
    assert len(fetch(sessions, 0, PARTITIONS_MAX).partitions) == 1, "begun anew"
