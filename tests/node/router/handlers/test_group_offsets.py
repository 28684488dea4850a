"""OffsetCommit, OffsetFetch, OffsetDelete: topics, topic ids, versions, permissions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.handlers import group_offsets
from odradek.node.router.handlers.consumer_groups import handle_consumer_group_heartbeat
from odradek.node.router.handlers.group_offsets import (
    handle_offset_commit,
    handle_offset_delete,
    handle_offset_fetch,
)
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from odradek.protocol.messages.groups import ConsumerGroupHeartbeatRequest, FindCoordinatorRequest
from odradek.protocol.messages.partitions import PartitionNumber, TopicPartitionNumbers
from odradek.protocol.types import ZERO_UUID, Uuid
from tests.support.group_harness import GroupHarness

GROUP = ResourceType.GROUP
TOPIC = ResourceType.TOPIC
UNKNOWN_ID = b"no topic has this"[:16]
Fetched = dict[tuple[str, int], tuple[int, int]]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("t", 1, partitions=2)
        harness.have_topic("u", 2)
        yield harness


def id_of(harness: GroupHarness, name: str) -> Uuid:
    return harness.image.topics_by_name[name].topic_id


def commit_request(
    *topics: tuple[str | Uuid, int], offset: int = 5, metadata: str = "note", epoch: int = -1
) -> OffsetCommitRequest:
    """One entry for each (name or id, partition)."""
    entries = []
    for topic, index in topics:
        partition = OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=metadata,
        )
        by_name = isinstance(topic, str)
        entries.append(
            OffsetCommitRequestTopic(
                name=topic if isinstance(topic, str) else "",
                topic_id=ZERO_UUID if by_name else topic,  # type: ignore[arg-type]  # it is the id then
                partitions=[partition],
            )
        )
    return OffsetCommitRequest(group_id="g", topics=entries)


def commit(harness: GroupHarness, request: OffsetCommitRequest, version: int = 9) -> list[int]:
    response = harness.call(handle_offset_commit, request, version)
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def fetch(
    harness: GroupHarness, *topics: tuple[str, list[int]], version: int = 9, group: str = "g"
) -> tuple[int, Fetched]:
    """The group's error, and (offset, error) by topic and partition; of all if none is named."""
    if version >= 8:
        wanted = [
            OffsetFetchRequestTopic(
                name=name if version < 10 else "",
                topic_id=id_of(harness, name) if version >= 10 else ZERO_UUID,
                partition_indexes=indexes,
            )
            for name, indexes in topics
        ]
        asked = OffsetFetchRequestGroup(group_id=group, topics=wanted or None)
        [found] = harness.call(
            handle_offset_fetch, OffsetFetchRequest(groups=[asked]), version
        ).groups
        names = {topic.topic_id: topic.name for topic in harness.image.topics_by_id.values()}
        return found.error_code, {
            (topic.name or names[topic.topic_id], partition.partition_index): (
                partition.committed_offset,
                partition.error_code,
            )
            for topic in found.topics
            for partition in topic.partitions
        }
    old = [OffsetFetchRequestTopic(name=name, partition_indexes=at) for name, at in topics]
    request = OffsetFetchRequest(group_id=group, topics=old or None)
    response = harness.call(handle_offset_fetch, request, version)
    return response.error_code, {
        (topic.name, partition.partition_index): (
            partition.committed_offset,
            partition.error_code,
        )
        for topic in response.topics
        for partition in topic.partitions
    }


# -- OffsetCommit and OffsetFetch -----------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_offsets_committed_by_name_are_fetched_in_every_version(
    harness: GroupHarness, version: int
) -> None:
    assert commit(harness, commit_request(("t", 1)), version) == [ErrorCode.NONE]
    for other in range(11):
        assert fetch(harness, ("t", [1]), version=other) == (0, {("t", 1): (5, 0)})


def test_offsets_committed_by_id_are_fetched_by_id(harness: GroupHarness) -> None:
    request = commit_request((id_of(harness, "t"), 0), epoch=3)
    response = harness.call(handle_offset_commit, request, 10)
    [answered] = response.topics
    assert answered.topic_id == id_of(harness, "t")
    assert answered.partitions[0].error_code == ErrorCode.NONE
    wanted = OffsetFetchRequestTopic(topic_id=id_of(harness, "t"), partition_indexes=[0])
    asked = OffsetFetchRequestGroup(group_id="g", topics=[wanted])
    [group] = harness.call(handle_offset_fetch, OffsetFetchRequest(groups=[asked]), 10).groups
    [topic] = group.topics
    assert topic.topic_id == id_of(harness, "t")
    [partition] = topic.partitions
    assert partition.committed_offset == 5
    assert partition.committed_leader_epoch == 3
    assert partition.metadata == "note"


def test_partitions_that_do_not_exist_are_refused_in_place(harness: GroupHarness) -> None:
    request = commit_request(("t", 0), ("t", 9), ("no", 0), ("u", 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(harness, request) == [0, unknown, unknown, 0]
    assert fetch(harness)[1] == {("t", 0): (5, 0), ("u", 0): (5, 0)}


def test_ids_that_do_not_exist_are_refused_in_place(harness: GroupHarness) -> None:
    request = commit_request((UNKNOWN_ID, 0), (id_of(harness, "u"), 0))
    assert commit(harness, request, 10) == [ErrorCode.UNKNOWN_TOPIC_ID, 0]
    wanted = [
        OffsetFetchRequestTopic(topic_id=id_of(harness, "u"), partition_indexes=[0]),
        OffsetFetchRequestTopic(topic_id=UNKNOWN_ID, partition_indexes=[0]),
        OffsetFetchRequestTopic(topic_id=id_of(harness, "t"), partition_indexes=[0]),
    ]
    asked = OffsetFetchRequestGroup(group_id="g", topics=wanted)
    [group] = harness.call(handle_offset_fetch, OffsetFetchRequest(groups=[asked]), 10).groups
    codes = [topic.partitions[0].error_code for topic in group.topics]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_ID, 0]
    assert [topic.topic_id for topic in group.topics] == [topic.topic_id for topic in wanted]


@pytest.mark.parametrize(
    "topics", [[], [OffsetFetchRequestTopic(topic_id=UNKNOWN_ID, partition_indexes=[0])]]
)
@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("m", 2, ErrorCode.NONE),
        ("m", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_fetch_of_unknown_topics_checks_the_member(
    harness: GroupHarness,
    topics: list[OffsetFetchRequestTopic],
    member_id: str,
    epoch: int,
    code: ErrorCode,
) -> None:
    joining = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    joined = harness.call(handle_consumer_group_heartbeat, joining, 1)
    assert (joined.error_code, joined.member_epoch) == (ErrorCode.NONE, 2)
    asked = OffsetFetchRequestGroup(
        group_id="g", member_id=member_id, member_epoch=epoch, topics=topics
    )
    [group] = harness.call(handle_offset_fetch, OffsetFetchRequest(groups=[asked]), 10).groups
    assert group.error_code == code
    assert len(group.topics) == (0 if code else len(topics))


def test_a_commit_of_unknown_topics_does_not_reach_the_group(harness: GroupHarness) -> None:
    assert commit(harness, commit_request(("no", 0))) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert harness.bus.append_count == 0


def test_an_error_of_the_group_is_repeated_for_every_partition(harness: GroupHarness) -> None:
    request = commit_request(("t", 0), ("u", 0))
    request.generation_id_or_member_epoch = 3
    request.member_id = "x"
    assert commit(harness, request, 9) == [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    assert commit(harness, request, 8) == [ErrorCode.ILLEGAL_GENERATION] * 2


def test_a_commit_too_large_for_the_log_is_an_invalid_commit_offset_size(
    harness: GroupHarness,
) -> None:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata="x" * 4_096
        )
        for _ in range(300)
    ]
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
    )
    assert set(commit(harness, request)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}


def test_a_missing_offset_is_an_error_in_version_0_only(harness: GroupHarness) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(harness, ("t", [0]), version=0)[1] == {("t", 0): (-1, unknown)}
    for version in range(1, 11):
        assert fetch(harness, ("t", [0]), version=version) == (0, {("t", 0): (-1, 0)})
    assert fetch(harness, ("gone", [0]), version=5) == (0, {("gone", 0): (-1, 0)})


@pytest.mark.parametrize("version", range(2, 11))
def test_null_fetches_all_topics(harness: GroupHarness, version: int) -> None:
    commit(harness, commit_request(("t", 0), ("t", 1), ("u", 0)))
    assert fetch(harness, version=version) == (
        0,
        {("t", 0): (5, 0), ("t", 1): (5, 0), ("u", 0): (5, 0)},
    )


def test_an_empty_list_fetches_no_topics(harness: GroupHarness) -> None:
    commit(harness, commit_request(("t", 0)))
    asked = OffsetFetchRequestGroup(group_id="g", topics=[])
    [group] = harness.call(handle_offset_fetch, OffsetFetchRequest(groups=[asked]), 9).groups
    assert (group.error_code, group.topics) == (ErrorCode.NONE, [])


def test_several_groups_are_fetched_and_each_fails_by_itself(harness: GroupHarness) -> None:
    commit(harness, commit_request(("t", 0)))
    harness.deny(AclOperation.DESCRIBE, GROUP, "secret")
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "secret", "h")]
    groups = harness.call(handle_offset_fetch, OffsetFetchRequest(groups=asked), 8).groups
    assert [(group.group_id, group.error_code, len(group.topics)) for group in groups] == [
        ("g", ErrorCode.NONE, 1),
        ("secret", ErrorCode.GROUP_AUTHORIZATION_FAILED, 0),
        ("h", ErrorCode.NONE, 0),
    ]


def test_the_groups_error_is_in_every_partition_before_version_2(harness: GroupHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, GROUP, "g")
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert fetch(harness, ("t", [0, 1]), version=1)[1] == {
        ("t", 0): (-1, denied),
        ("t", 1): (-1, denied),
    }
    assert fetch(harness, ("t", [0]), version=2) == (denied, {})


# -- permissions ----------------------------------------------------------------------------------


def test_commits_need_read_on_group_and_topic(harness: GroupHarness) -> None:
    harness.deny(AclOperation.READ, TOPIC, "t")
    by_name = commit(harness, commit_request(("t", 0), ("u", 0)))
    assert by_name == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]
    by_id = commit(harness, commit_request((id_of(harness, "t"), 0)), 10)
    assert by_id == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    harness.deny(AclOperation.READ, TOPIC, "hidden")
    assert commit(harness, commit_request(("hidden", 0))) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    harness.deny(AclOperation.READ, GROUP, "g")
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert commit(harness, commit_request(("t", 0), ("u", 0))) == [denied, denied]


def test_fetches_need_describe_on_group_and_topic(harness: GroupHarness) -> None:
    commit(harness, commit_request(("t", 0), ("u", 0)))
    harness.deny(AclOperation.DESCRIBE, TOPIC, "t")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert fetch(harness, ("t", [0]), ("u", [0]), version=9)[1] == {
        ("t", 0): (-1, denied),
        ("u", 0): (5, 0),
    }
    assert fetch(harness, version=9)[1] == {("u", 0): (5, 0)}


# -- deleted topics -------------------------------------------------------------------------------


def test_offsets_of_a_deleted_topic_are_not_returned(harness: GroupHarness) -> None:
    commit(harness, commit_request(("t", 0), ("u", 0)))
    harness.drop_topic("t")
    harness.turn_loop(0.01)
    assert fetch(harness)[1] == {("u", 0): (5, 0)}


def test_a_recreated_topic_has_no_offsets(harness: GroupHarness) -> None:
    commit(harness, commit_request(("t", 0)))
    harness.bus.is_away = True
    harness.drop_topic("t")
    harness.have_topic("t", 7)
    # The shard has not written the records of the deletion yet.
    assert fetch(harness, ("t", [0]))[1] == {("t", 0): (-1, 0)}
    assert fetch(harness)[1] == {}
    harness.bus.come_back()


# -- OffsetDelete ---------------------------------------------------------------------------------


def delete(
    harness: GroupHarness, topics: dict[str, list[int]]
) -> tuple[int, dict[tuple[str, int], int]]:
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            TopicPartitionNumbers(
                name=name,
                partitions=[PartitionNumber(partition_index=at) for at in indexes],
            )
            for name, indexes in topics.items()
        ],
    )
    response = harness.call(handle_offset_delete, request, 0)
    return response.error_code, {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


def test_each_partition_of_an_offset_delete_has_its_own_result(harness: GroupHarness) -> None:
    commit(harness, commit_request(("t", 0), ("t", 1), ("u", 0)))
    harness.deny(AclOperation.READ, TOPIC, "u")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(harness, {"t": [0, 9], "no": [0], "u": [0]}) == (
        0,
        {
            ("t", 0): ErrorCode.NONE,
            ("t", 9): unknown,
            ("no", 0): unknown,
            ("u", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        },
    )
    assert fetch(harness)[1] == {("t", 1): (5, 0), ("u", 0): (5, 0)}


def test_deleting_offsets_needs_a_group_and_delete_on_it(harness: GroupHarness) -> None:
    assert delete(harness, {"t": [0]}) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    harness.deny(AclOperation.DELETE, GROUP, "g")
    assert delete(harness, {"t": [0]}) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, {})


def test_offsets_of_very_many_groups_are_fetched_in_turns(harness: GroupHarness) -> None:
    names = [f"g{index}" for index in range(2_000)]
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    answer = harness.call_in_turns(
        handle_offset_fetch, OffsetFetchRequest(groups=asked), harness.loop
    )
    assert [group.group_id for group in answer.groups] == names


def test_a_long_commit_and_a_long_fetch_are_several_commands(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten partitions here. Errors and offsets come in the order of the request."""
    monkeypatch.setattr(group_offsets, "PARTITIONS_PER_COMMAND", 10)
    harness.have_topic("long", 3, partitions=45)
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index)
        for index in (*range(45), 99)
    ]
    topics = [
        OffsetCommitRequestTopic(name="u", partitions=partitions[7:8] + partitions[:1]),
        OffsetCommitRequestTopic(name="long", partitions=partitions),
        OffsetCommitRequestTopic(name="t", partitions=partitions[1:2]),
    ]
    codes = commit(harness, OffsetCommitRequest(group_id="g", topics=topics))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [unknown, 0, *[0] * 45, unknown, 0]
    error, found = fetch(harness, ("u", [0]), ("long", [*range(45)]), ("t", [1, 0]))
    assert not error
    offsets = [(*key, offset) for key, (offset, _) in found.items()]
    assert offsets == [
        ("u", 0, 0),
        *[("long", index, index) for index in range(45)],
        ("t", 1, 1),
        ("t", 0, -1),
    ]


def test_very_many_partitions_of_one_topic_are_handled_in_turns(harness: GroupHarness) -> None:
    harness.have_topic("long", 3, partitions=3_000)
    commit(harness, commit_request(("long", 0)))
    loop, indexes = harness.loop, [*range(3_000)]
    topics = [OffsetFetchRequestTopic(name="long", partition_indexes=indexes)]
    fetched = harness.call_in_turns(
        handle_offset_fetch, OffsetFetchRequest(group_id="g", topics=topics), loop, version=7
    )
    found = [(each.partition_index, each.committed_offset) for each in fetched.topics[0].partitions]
    assert found == [(0, 5), *((index, -1) for index in range(1, 3_000))]
    partitions = [PartitionNumber(partition_index=index) for index in indexes]
    deletion = OffsetDeleteRequest(
        group_id="g", topics=[TopicPartitionNumbers(name="long", partitions=partitions)]
    )
    # The first of several commands deletes the last offset of the group.
    [topic] = harness.call_in_turns(handle_offset_delete, deletion, loop).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (index, ErrorCode.NONE) for index in indexes
    ]
    assert fetch(harness)[1] == {}


def test_a_very_long_commit_is_refused_in_turns(harness: GroupHarness) -> None:
    harness.deny(AclOperation.READ, GROUP, "g")
    refused = harness.call_in_turns(
        handle_offset_commit, commit_request(*[("t", 0)] * 10_000), harness.loop
    )
    codes = {each.error_code for topic in refused.topics for each in topic.partitions}
    assert (len(refused.topics), codes) == (10_000, {ErrorCode.GROUP_AUTHORIZATION_FAILED})
