"""Start offsets of share groups (KIP-932): DescribeShareGroupOffsets (90), v0 and v1,
AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92), v0.

DescribeShareGroupOffsets v1 adds the lag (KIP-1226). The share coordinator stores start offsets.
The group's shard has the partitions of the group, and decides whether they may be changed.
"""

from collections.abc import Mapping
from typing import TypeVar

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.coordinator.group.share.requests import FindShareStates
from odradek.coordinator.share.requests import ShareStateSummary
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively
from odradek.node.router.handlers.share_groups import is_share_group_protocol_enabled
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import DetailedPartitionResult, TopicName, TopicOffsets
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from odradek.protocol.types import ZERO_UUID

T = TypeVar("T", TopicOffsets, TopicName)

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_UNKNOWN = -1


def _check_group(
    operation: AclOperation, group_id: str, context: RequestContext, services: Services
) -> None:
    if not is_share_group_protocol_enabled(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    services.authorizer.authorize(context, operation, ResourceType.GROUP, group_id)
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)


# -- DescribeShareGroupOffsets --------------------------------------------------------------------


async def handle_describe_share_group_offsets(
    request: DescribeShareGroupOffsetsRequest, context: RequestContext, services: Services
) -> DescribeShareGroupOffsetsResponse:
    """Groups that this node coordinates. Each succeeds or fails by itself."""
    return DescribeShareGroupOffsetsResponse(
        groups=[
            await _described(requested, context, services)
            async for requested in iterate_cooperatively(request.groups)
        ]
    )


async def _described(
    requested: DescribeShareGroupOffsetsRequestGroup, context: RequestContext, services: Services
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = requested.group_id
    try:
        _check_group(AclOperation.DESCRIBE, group_id, context, services)
        # Also when the request names topics: only the group's coordinator answers.
        states = await services.group_coordinator.call(group_id, FindShareStates(group_id), context)
    except ApiError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=error.code, error_message=error.code.message
        )
    wanted: dict[str, list[int]]
    if requested.topics is None:
        wanted = {
            name: sorted(indexes)
            for name, indexes in (states or {}).values()
            if services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
        }
    else:
        wanted = {topic.name: topic.partitions for topic in requested.topics}
    return await _positions(group_id, wanted, context, services)


async def _positions(
    group_id: str, wanted: Mapping[str, list[int]], context: RequestContext, services: Services
) -> DescribeShareGroupOffsetsResponseGroup:
    ids = {
        name: topic.topic_id
        for name in wanted
        if (topic := services.image.topics_by_name.get(name)) is not None
        and services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
    }
    summaries = await services.share_persister.summaries(
        group_id, [(ids[name], index) for name in ids for index in wanted[name]]
    )
    begun = [
        (name, index)
        for name in ids
        for index in wanted[name]
        if _has_lag(summaries[ids[name], index])
    ]
    end_offsets = await services.offset_lookup.end_offsets(begun)
    answer = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
    for name, indexes in wanted.items():
        is_denied = not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
        answered = DescribeShareGroupOffsetsResponseTopic(
            topic_name=name, topic_id=ids.get(name, ZERO_UUID)
        )
        for index in indexes:
            partition = DescribeShareGroupOffsetsResponsePartition(
                partition_index=index, start_offset=_UNKNOWN
            )
            code = _DENIED if is_denied else ErrorCode.NONE
            if name in ids:
                code = _fill(partition, summaries[ids[name], index], end_offsets.get((name, index)))
            partition.error_code = code
            partition.error_message = code.message if code else None
            answered.partitions.append(partition)
        answer.topics.append(answered)
    return answer


def _has_lag(summary: ShareStateSummary | ErrorCode) -> bool:
    """Whether the partition has been read. Before that there is no lag."""
    return isinstance(summary, ShareStateSummary) and _UNKNOWN not in (
        summary.start_offset,
        summary.delivery_complete_count,
    )


def _fill(
    partition: DescribeShareGroupOffsetsResponsePartition,
    summary: ShareStateSummary | ErrorCode,
    end: int | ErrorCode | None,
) -> ErrorCode:
    """Fill in start offset and lag. Records delivered beyond the start offset count as read."""
    if isinstance(summary, ErrorCode):
        return summary
    if isinstance(end, ErrorCode):
        return end
    partition.start_offset = summary.start_offset
    partition.leader_epoch = summary.leader_epoch
    if end is not None:
        lag = end - summary.start_offset - summary.delivery_complete_count
        partition.lag = max(lag, 0)
    return ErrorCode.NONE


# -- AlterShareGroupOffsets, DeleteShareGroupOffsets ----------------------------------------------


async def handle_alter_share_group_offsets(
    request: AlterShareGroupOffsetsRequest, context: RequestContext, services: Services
) -> AlterShareGroupOffsetsResponse:
    """Set start offsets of a group without members. Needs READ on the group and the topics."""
    _check_group(AclOperation.READ, request.group_id, context, services)
    denied, request.topics = _split_by_authorization(request.topics, context, services)
    # Also without any topic: whether there is such a group comes first.
    response = await services.group_coordinator.call(request.group_id, request, context)
    if not response.error_code:
        response.responses += [
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.name,
                partitions=[
                    DetailedPartitionResult(
                        partition_index=partition.partition_index,
                        error_code=_DENIED,
                        error_message=_DENIED.message,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in denied
        ]
    return response


async def handle_delete_share_group_offsets(
    request: DeleteShareGroupOffsetsRequest, context: RequestContext, services: Services
) -> DeleteShareGroupOffsetsResponse:
    """Delete topics of a group without members. Needs DELETE on the group, READ on the topics."""
    _check_group(AclOperation.DELETE, request.group_id, context, services)
    denied, request.topics = _split_by_authorization(request.topics, context, services)
    # Also without any topic: whether there is such a group comes first.
    response = await services.group_coordinator.call(request.group_id, request, context)
    if not response.error_code:
        response.responses += [
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.name, error_code=_DENIED, error_message=_DENIED.message
            )
            for topic in denied
        ]
    return response


def _split_by_authorization(
    topics: list[T], context: RequestContext, services: Services
) -> tuple[list[T], list[T]]:
    """The topics that the client may not read, and the others."""
    denied: list[T] = []
    allowed: list[T] = []
    for topic in topics:
        is_allowed = services.authorizer.is_topic_allowed(context, AclOperation.READ, topic.name)
        (allowed if is_allowed else denied).append(topic)
    return denied, allowed
