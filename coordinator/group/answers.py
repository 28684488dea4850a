"""What a group shard answers, as values: those that need no more than what they are given.

Called by `shard`.
"""

from typing import Final

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.records import GroupMetadata
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.offsets.committed_offsets import OffsetExpiration
from odradek.coordinator.outcome import Command, Outcome, ShardReply
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    ListGroupsRequest,
)
from odradek.protocol.types import NO_TIMESTAMP

DEAD: Final = "Dead"
"""The state that DescribeGroups gives a group which does not exist."""
_ERRORS_SINCE: Final = 6


def answer(command: Command, response: object) -> Outcome[GroupRecord]:
    """An answer that writes nothing, but follows from what was written before."""
    return Outcome(replies=(ShardReply(command.request_id, response),))


def read(command: Command, response: object) -> Outcome[GroupRecord]:
    """An answer from committed state."""
    return Outcome(replies=(ShardReply(command.request_id, response, is_immediate=True),))


def unknown_group_error(group_id: str) -> ErrorCode:
    """What a member is told whose group is not there."""
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def refused_commit(request: OffsetCommitRequest, error_code: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error_code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def described(group: ClassicGroup) -> DescribedGroup:
    """Metadata and assignments are shown of a Stable group only: else they belong to nobody."""
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members
        ],
    )


def described_dead(group_id: str, version: int, message: str) -> DescribedGroup:
    """DescribeGroups of what is no classic group: Dead, and since v6 an error (KIP-1043)."""
    unknown = DescribedGroup(group_id=group_id, group_state=DEAD)
    if version >= _ERRORS_SINCE:
        unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        unknown.error_message = message
    return unknown


def no_consumer_group(group_id: str, *, exists: bool) -> ConsumerGroupDescribedGroup:
    """ConsumerGroupDescribe of what is none, though it may be a group of another kind."""
    kind = "is not a consumer group" if exists else "not found"
    return ConsumerGroupDescribedGroup(
        group_id=group_id,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} {kind}.",
    )


def deleted_group(group_id: str, error: ErrorCode) -> DeletableGroupResult:
    """One group of DeleteGroups: gone, or why not."""
    message = None if error is ErrorCode.NONE else error.message
    return DeletableGroupResult(group_id=group_id, error_code=error, error_message=message)


def matches_filters(group: ListedGroup, request: ListGroupsRequest) -> bool:
    """Whether the filters of ListGroups let the group through; they know no capital letters."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return (not states or group.group_state.lower() in states) and (
        not types or group.group_type in types
    )


def offset_expiration(
    group: ClassicGroup | None, metadata: GroupMetadata | None, read_topics: frozenset[str] | None
) -> OffsetExpiration | None:
    """When the offsets of a group expire; None: not while it is as it is. What is read stays:
    `read_topics`, if it is no classic group."""
    if read_topics is not None:
        return OffsetExpiration(None, read_topics)
    if group is not None and not group.is_empty:
        topics = group.subscribed_topics()
        if group.state is not GroupState.STABLE or topics is None:
            return None
        return OffsetExpiration(None, topics)
    if metadata is None or not metadata.protocol_type:
        return OffsetExpiration(None)
    since_ms = metadata.state_timestamp_ms
    return OffsetExpiration(None if since_ms == NO_TIMESTAMP else since_ms)
