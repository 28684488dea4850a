"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47)."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
)
from odradek.protocol.messages.partitions import PartitionNumber, TopicPartitionNumbers
from odradek.protocol.messages.topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.members import RawMember, form, stabilise, subscription, wait_for_coordinator
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

Committed = tuple[int, int, int, str | None]
"""Error code, offset, leader epoch and metadata of one partition."""

NOTHING: Committed = (ErrorCode.NONE, -1, -1, "")


@pytest.fixture(autouse=True)
def coordinator(cluster: DialogueCluster, group: str) -> None:
    """The test's group has a coordinator."""
    wait_for_coordinator(cluster, group)


def commit(
    wire: WireClient,
    group: str,
    topic: str,
    offsets: dict[int, int],
    *,
    version: int = 8,
    metadata: str | None = "",
    leader_epoch: int = -1,
    generation: int = -1,
    member_id: str = "",
) -> dict[int, int]:
    """Commit offsets of one topic; error codes by partition."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=leader_epoch,
            committed_metadata=metadata,
        )
        for index, offset in offsets.items()
    ]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)],
    )
    answer = wire.ask(request, version, OffsetCommitResponse)
    return {each.partition_index: each.error_code for each in answer.topics[0].partitions}


def committed(
    wire: WireClient, group: str, topic: str, *partitions: int, version: int = 6
) -> dict[int, Committed]:
    """What is committed for some partitions of one topic."""
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))
    if version < 8:
        request = OffsetFetchRequest(group_id=group, topics=[asked])
        answer = wire.ask(request, version, OffsetFetchResponse)
        assert answer.error_code == ErrorCode.NONE
        return {each.partition_index: _fields(each) for each in answer.topics[0].partitions}
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])])
    (answered,) = wire.ask(request, version, OffsetFetchResponse).groups
    assert (answered.group_id, answered.error_code) == (group, ErrorCode.NONE)
    return {each.partition_index: _fields(each) for each in answered.topics[0].partitions}


def _fields(partition: OffsetFetchResponsePartition) -> Committed:
    return (
        partition.error_code,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.metadata,
    )


@pytest.mark.parametrize("version", range(2, 10))
def test_an_offset_is_committed_in_every_version(
    wire: WireClient, topic: str, group: str, version: int
) -> None:
    """B.2: "Metadata string and leader epoch must round-trip (Nisshi finding 4)"."""
    codes = commit(wire, group, topic, {0: 42}, version=version, metadata="why", leader_epoch=0)
    assert codes == {0: ErrorCode.NONE}
    epoch = 0 if version >= 6 else -1
    assert committed(wire, group, topic, 0) == {0: (ErrorCode.NONE, 42, epoch, "why")}


@pytest.mark.parametrize("version", range(1, 10))
def test_offsets_are_fetched_in_every_version(
    wire: WireClient, cluster: DialogueCluster, group: str, version: int
) -> None:
    """B.2: "No commit: offset -1, epoch -1, metadata "", NONE (not an error)"."""
    topic = cluster.new_topic(3)
    commit(wire, group, topic, {0: 1, 2: 3}, metadata="m", leader_epoch=0)
    epoch = 0 if version >= 5 else -1
    assert committed(wire, group, topic, 0, 1, 2, version=version) == {
        0: (ErrorCode.NONE, 1, epoch, "m"),
        1: NOTHING,
        2: (ErrorCode.NONE, 3, epoch, "m"),
    }


def test_topics_may_be_named_by_id(
    wire: WireClient, cluster: DialogueCluster, topic: str, group: str
) -> None:
    """B.2: "v10 topic ids", "(100)"."""
    topic_id, unknown = cluster.topic_id(topic), b"\x01" * 16
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(topic_id=each, partitions=[partition])
            for each in (topic_id, unknown)
        ],
    )
    answer = wire.ask(request, 10, OffsetCommitResponse)
    codes = {each.topic_id: each.partitions[0].error_code for each in answer.topics}
    assert codes == {topic_id: ErrorCode.NONE, unknown: ErrorCode.UNKNOWN_TOPIC_ID}

    asked = [
        OffsetFetchRequestTopic(topic_id=each, partition_indexes=[0])
        for each in (topic_id, unknown)
    ]
    fetched = wire.ask(
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)]),
        10,
        OffsetFetchResponse,
    )
    offsets = {
        each.topic_id: (each.partitions[0].error_code, each.partitions[0].committed_offset)
        for each in fetched.groups[0].topics
    }
    assert offsets == {topic_id: (0, 7), unknown: (ErrorCode.UNKNOWN_TOPIC_ID, -1)}


@pytest.mark.parametrize("version", [2, 5, 7])
def test_null_topics_mean_all(
    wire: WireClient, cluster: DialogueCluster, group: str, version: int
) -> None:
    """B.2: "null topics = all (v2+)"."""
    topics = [cluster.new_topic(), cluster.new_topic(2)]
    commit(wire, group, topics[0], {0: 1})
    commit(wire, group, topics[1], {0: 2, 1: 3})
    request = OffsetFetchRequest(group_id=group, topics=None)
    answer = wire.ask(request, version, OffsetFetchResponse)
    found = {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }
    assert found == {(topics[0], 0): 1, (topics[1], 0): 2, (topics[1], 1): 3}


@pytest.mark.parametrize("version", [8, 9])
def test_many_groups_are_asked_for_at_once(
    wire: WireClient, cluster: DialogueCluster, topic: str, group: str, version: int
) -> None:
    """B.2: "v8+ many groups, error per group"; a group that does not exist has no offsets."""
    other, nobody = unique("group"), unique("group")
    wait_for_coordinator(cluster, other)
    commit(wire, group, topic, {0: 1})
    commit(wire, other, topic, {0: 2})
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=each, topics=None) for each in (group, nobody, other)
        ]
    )
    answer = wire.ask(request, version, OffsetFetchResponse)
    found = {
        each.group_id: [part.committed_offset for topic in each.topics for part in topic.partitions]
        for each in answer.groups
    }
    assert found == {group: [1], nobody: [], other: [2]}
    assert {each.error_code for each in answer.groups} == {ErrorCode.NONE}


def test_a_later_commit_wins_even_if_it_goes_back(wire: WireClient, topic: str, group: str) -> None:
    for offset in (5, 9, 3):
        assert commit(wire, group, topic, {0: offset}) == {0: ErrorCode.NONE}
        assert committed(wire, group, topic, 0)[0][1] == offset


def test_metadata_has_a_limit(wire: WireClient, cluster: DialogueCluster, group: str) -> None:
    """B.2: "metadata > 4096 B OFFSET_METADATA_TOO_LARGE (12) per partition"."""
    topic = cluster.new_topic(2)
    assert commit(wire, group, topic, {0: 1}, metadata="x" * 4096) == {0: ErrorCode.NONE}
    codes = commit(wire, group, topic, {0: 2, 1: 2}, metadata="x" * 4097)
    assert set(codes.values()) == {ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert committed(wire, group, topic, 0)[0][1] == 1


def test_null_metadata_is_read_back_as_an_empty_string(
    wire: WireClient, topic: str, group: str
) -> None:
    assert commit(wire, group, topic, {0: 1}, metadata=None) == {0: ErrorCode.NONE}
    assert committed(wire, group, topic, 0)[0][3] == ""


def test_a_topic_that_does_not_exist_takes_no_commits(
    wire: WireClient, topic: str, group: str
) -> None:
    """B.2: "unknown topic (3)/(100)"."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(wire, group, unique("nowhere"), {0: 1}) == {0: unknown}
    assert commit(wire, group, topic, {0: 1, 4: 1}) == {0: ErrorCode.NONE, 4: unknown}


def test_a_deleted_topic_takes_its_offsets_along(
    wire: WireClient, cluster: DialogueCluster, group: str
) -> None:
    """B.4: "committed offsets of the deleted topic disappear"."""
    topic = cluster.new_topic()
    commit(wire, group, topic, {0: 5})
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
    wire.ask(request, 6, DeleteTopicsResponse)
    wait_until(
        lambda: committed(wire, group, topic, 0)[0][1] == -1, what="the committed offset is gone"
    )


def test_only_members_commit_while_there_are_any(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str
) -> None:
    """B.2: "generation -1 with member "" is a "simple"/admin commit: allowed only if the group is
    Empty (or unknown: it is created), else UNKNOWN_MEMBER_ID (25)".
    """
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        stabilise(member)
        assert member.commit(topic, 5) == ErrorCode.NONE
        assert commit(wire, group, topic, {0: 9}) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
        assert committed(wire, group, topic, 0)[0][1] == 5
        assert member.leave() == ErrorCode.NONE
        assert commit(wire, group, topic, {0: 9}) == {0: ErrorCode.NONE}
    assert committed(wire, group, topic, 0)[0][1] == 9


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, ErrorCode.ILLEGAL_GENERATION),
        (8, ErrorCode.ILLEGAL_GENERATION),
        (9, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_member_of_no_group_cannot_commit(
    wire: WireClient, topic: str, group: str, version: int, expected: ErrorCode
) -> None:
    """B.2: "Generation >=0 on an unknown group: (22); v9+ GROUP_ID_NOT_FOUND (69)"."""
    codes = commit(wire, group, topic, {0: 1}, version=version, generation=1, member_id="nobody")
    assert codes == {0: expected}


def test_commits_are_held_to_member_and_generation(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str
) -> None:
    """B.2: commits of strangers (25) and of other generations (22)."""
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        stabilise(member)
        stranger = commit(
            wire, group, topic, {0: 1}, generation=member.generation, member_id="nobody"
        )
        assert stranger == {0: ErrorCode.UNKNOWN_MEMBER_ID}
        for generation in (member.generation + 1, member.generation - 1):
            assert member.commit(topic, 1, generation=generation) == ErrorCode.ILLEGAL_GENERATION
        assert committed(wire, group, topic, 0) == {0: NOTHING}


def test_commits_during_a_rebalance(cluster: DialogueCluster, topic: str, group: str) -> None:
    """B.2: "CompletingRebalance: (27); PreparingRebalance: accepted from known members of the
    current generation".
    """
    with cluster.connect() as one, cluster.connect() as two:
        first, second = RawMember(one, group), RawMember(two, group)
        form(first)
        assert first.commit(topic, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        first.sync({first.id: b""})
        assert first.commit(topic, 2) == ErrorCode.NONE
        second.get_id()
        second.post_join()
        wait_until(
            lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance"
        )
        assert first.commit(topic, 3) == ErrorCode.NONE
        first.join()
        second.joined()
        assert first.commit(topic, 4) == ErrorCode.REBALANCE_IN_PROGRESS
    with cluster.connect() as wire:
        assert committed(wire, group, topic, 0)[0][1] == 3


def test_offsets_outlive_their_members(
    cluster: DialogueCluster, wire: WireClient, topic: str, group: str
) -> None:
    """B.2: "Last leave: group Empty, generation kept, offsets kept"."""
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        stabilise(member)
        assert member.commit(topic, 77, metadata="mine") == ErrorCode.NONE
        assert member.leave() == ErrorCode.NONE
    assert committed(wire, group, topic, 0)[0][1:] == (77, -1, "mine")


def delete_offsets(
    wire: WireClient, group: str, topic: str, *partitions: int
) -> tuple[int, dict[int, int]]:
    """The group's error code and those of the partitions."""
    asked = [PartitionNumber(partition_index=index) for index in partitions]
    request = OffsetDeleteRequest(
        group_id=group, topics=[TopicPartitionNumbers(name=topic, partitions=asked)]
    )
    answer = wire.ask(request, 0, OffsetDeleteResponse)
    codes = {
        each.partition_index: each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }
    return answer.error_code, codes


def test_offsets_are_deleted_one_by_one(
    wire: WireClient, cluster: DialogueCluster, group: str
) -> None:
    """B.2: "dead/simple group allowed"."""
    topic = cluster.new_topic(3)
    commit(wire, group, topic, {0: 1, 1: 2, 2: 3})
    assert delete_offsets(wire, group, topic, 0, 2) == (ErrorCode.NONE, {0: 0, 2: 0})
    assert committed(wire, group, topic, 0, 1, 2) == {
        0: NOTHING,
        1: (ErrorCode.NONE, 2, -1, ""),
        2: NOTHING,
    }


def test_offsets_of_nobody_cannot_be_deleted(wire: WireClient, topic: str) -> None:
    """B.2: "unknown group (69)"."""
    code, _ = delete_offsets(wire, unique("group"), topic, 0)
    assert code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_subscribed_topic_are_kept(
    wire: WireClient, cluster: DialogueCluster, topic: str, group: str
) -> None:
    """B.2: "Partition of a topic some member subscribes to: GROUP_SUBSCRIBED_TO_TOPIC (86)"."""
    other = cluster.new_topic()
    with cluster.connect() as connection:
        member = RawMember(connection, group, metadata=subscription(topic))
        stabilise(member)
        assert member.commit(topic, 5) == ErrorCode.NONE
        assert member.commit(other, 6) == ErrorCode.NONE
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert delete_offsets(wire, group, topic, 0) == (ErrorCode.NONE, {0: subscribed})
        assert delete_offsets(wire, group, other, 0) == (ErrorCode.NONE, {0: ErrorCode.NONE})
    assert committed(wire, group, topic, 0)[0][1] == 5
    assert committed(wire, group, other, 0) == {0: NOTHING}


def test_offsets_of_a_group_that_is_no_consumer_group_are_kept(
    wire: WireClient, cluster: DialogueCluster, topic: str, group: str
) -> None:
    """B.2: "non-"consumer" protocol type with members: top-level (68)"."""
    with cluster.connect() as connection:
        member = RawMember(connection, group)
        member.protocol_type = "connect"
        stabilise(member)
        code, _ = delete_offsets(wire, group, topic, 0)
        assert code == ErrorCode.NON_EMPTY_GROUP
