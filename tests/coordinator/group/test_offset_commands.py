"""Offset requests of a shard; the tests of each group type have more."""

from odradek.coordinator.group.requests import DropTopicOffsets
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.types import ZERO_UUID


def commit(*topics: str, group: str = "g", generation: int = -1) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        topics=[
            OffsetCommitRequestTopic(
                name=name, partitions=[OffsetCommitRequestPartition(committed_offset=5)]
            )
            for name in topics
        ],
    )


def ask(shard: GroupShard, request: object, version: int = 8) -> object:
    """Handle a request and replay its records at once."""
    outcome = shard.handle(Command(request=request, request_id=1, api_version=version), 0)
    for record in outcome.records:
        shard.timeline.advance()
        shard.replay(record)
    return outcome.replies[0].response


def codes(response: object) -> list[int]:
    assert isinstance(response, OffsetCommitResponse)
    return [each.error_code for topic in response.topics for each in topic.partitions]


def test_a_commit_without_a_group_creates_a_simple_group() -> None:
    shard = GroupShard(GroupSettings())
    assert codes(ask(shard, commit("t"))) == [ErrorCode.NONE]
    assert shard.directory.group_type_of("g") == "classic"


def test_a_generation_of_an_unknown_group_has_the_error_of_the_version() -> None:
    shard = GroupShard(GroupSettings())
    assert codes(ask(shard, commit("t", generation=1))) == [ErrorCode.ILLEGAL_GENERATION]
    assert codes(ask(shard, commit("t", generation=1), 9)) == [ErrorCode.GROUP_ID_NOT_FOUND]
    ask(shard, commit("t"))
    assert codes(ask(shard, commit("t", generation=1), 9)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_only_the_offsets_of_a_deleted_topic_are_removed() -> None:
    shard = GroupShard(GroupSettings())
    ask(shard, commit("t", "u"))
    ask(shard, DropTopicOffsets((("t", ZERO_UUID),)))
    assert {topic for (topic, _), _ in shard.offsets.items("g")} == {"u"}
