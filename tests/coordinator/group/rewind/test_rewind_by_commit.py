"""Commits that are handled as rewinds, and their responses."""

import pytest

from odradek.coordinator.group.rewind.requests import RewindResult
from odradek.coordinator.group.rewind.rewind_by_commit import (
    TIMEOUT_MS,
    is_rewind,
    response_to,
    rewind_of,
)
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

ID = bytes(15) + b"a"
SETTINGS = GroupSettings(rewind_by_commit_groups=frozenset({"g"}), offset_metadata_bytes_max=10)


def commit_of(
    *,
    group: str = "g",
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = None,
) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=3,
        committed_offset=7,
        committed_leader_epoch=2,
        committed_metadata=metadata,
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name="a", topic_id=ID, partitions=[partition])],
    )


def test_only_commits_without_a_member_are_rewinds_and_only_with_the_config() -> None:
    assert is_rewind(commit_of(), SETTINGS)
    for other in (
        commit_of(group="h"),
        commit_of(member="m"),
        commit_of(generation=1),
        commit_of(instance="i"),
    ):
        assert not is_rewind(other, SETTINGS)


def test_the_offsets_of_a_commit_are_the_targets() -> None:
    rewind = rewind_of(commit_of(metadata="m"), SETTINGS)
    assert rewind is not None
    (at,) = rewind.positions
    assert (at.topic, at.topic_id, at.partition, at.offset) == ("a", ID, 3, 7)
    assert (at.leader_epoch, at.metadata) == (2, "m")
    assert rewind.timeout_ms == TIMEOUT_MS


def test_a_commit_with_too_long_metadata_is_not_a_rewind() -> None:
    assert rewind_of(commit_of(metadata="m" * 11), SETTINGS) is None


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        # Java's admin client asks again (AlterConsumerGroupOffsetsHandler).
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REBALANCE_IN_PROGRESS),
    ],
)
def test_all_partitions_have_the_same_error(error: ErrorCode, answered: ErrorCode) -> None:
    response = response_to(commit_of(), RewindResult(error_code=error))
    assert response.topics[0].partitions[0].error_code == answered
