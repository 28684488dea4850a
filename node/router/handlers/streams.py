"""Streams groups (KIP-1071): StreamsGroupHeartbeat (88, 0-1), StreamsGroupDescribe (89, 0-1),
StreamsGroupTopologyDescriptionUpdate (93, 0).

A response to heartbeat v1 can request a description of the whole topology. The member sends it with
API 93, and StreamsGroupDescribe v1 returns it (KIP-1331). Kafka stores it with a plugin; here the
coordinator keeps it in memory, and a new coordinator requests it again. StreamsGroupDescribe v1
also names the assignor.

The group's shard decides (coordinator.group). The handlers authorize, and create the internal
topics that a topology lacks, with the rights of the member that sent the heartbeat. If they cannot
be created, the status in the response says why; it reports them as missing until they exist.
"""

from collections.abc import Iterable, Iterator
from typing import Final, cast

from odradek.cluster.controller.commands import CreateTopics, NewTopic
from odradek.cluster.metadata.features import STREAMS_VERSION
from odradek.coordinator.group.streams.records import InternalTopic
from odradek.coordinator.group.streams.requests import DescribeStreamsGroup, StreamsHeartbeatResult
from odradek.coordinator.group.streams.topology import StatusCode
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.group_descriptions import describe_groups
from odradek.node.router.handlers.shard_requests import answer_of, authorize_member
from odradek.node.router.handlers.topics import can_create_topic, fresh_topic_id
from odradek.node.router.shards.coordinator_service import CREATE_TIMEOUT_MS
from odradek.node.router.topic_log import caller_fields, log_created_topics
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeSubtopology,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatSubtopology,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from odradek.protocol.types import Request

DESCRIPTION_BYTES_MAX: Final = 1 << 20
"""The largest StreamsGroupTopologyDescriptionUpdate request. Descriptions are kept in memory."""


async def handle_streams_group_heartbeat(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, services: Services
) -> StreamsGroupHeartbeatResponse:
    """A member joins, sends a heartbeat or leaves."""
    if not _is_streams_protocol_enabled(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    topology = request.topology
    names = frozenset(_topic_names(topology.subtopologies if topology is not None else ()))
    authorize_member(request.group_id, names, context, services)
    # The shard's answer to this request is not the response itself.
    command = cast("Request[StreamsHeartbeatResult]", request)
    result = await answer_of(
        services.group_coordinator.call_for_heartbeat(request.group_id, command, context)
    )
    if result.missing:
        await _create_internal_topics(result, context, services)
    return result.response


def _is_streams_protocol_enabled(services: Services) -> bool:
    return services.image.features.get(STREAMS_VERSION, 0) >= 1


def _topic_names(
    subtopologies: Iterable[StreamsGroupHeartbeatSubtopology | StreamsGroupDescribeSubtopology],
) -> Iterator[str]:
    for part in subtopologies:
        yield from part.source_topics
        yield from part.repartition_sink_topics
        yield from (topic.name for topic in part.repartition_source_topics)
        yield from (topic.name for topic in part.state_changelog_topics)


async def _create_internal_topics(
    answer: StreamsHeartbeatResult, context: RequestContext, services: Services
) -> None:
    """Create the missing topics, or add the reason to the status of the response."""
    denied = [t.name for t in answer.missing if not can_create_topic(t.name, context, services)]
    if denied:
        _append_detail(answer, f"; Unauthorized to CREATE on topics {', '.join(denied)}.")
        return
    command = CreateTopics(tuple(_new_topic(topic) for topic in answer.missing))
    try:
        reply = await services.controller.submit(command, CREATE_TIMEOUT_MS)
    except ApiError as error:
        _append_detail(answer, f"; Creation failed: {error.message}")
        return
    log_created_topics(reply.results, {**caller_fields(context), "cause": "a streams group"})
    failed = [
        f"{result.name} ({result.error_message or ErrorCode(result.error_code).name})"
        for result in reply.results
        # Another member's heartbeat may have created it.
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    ]
    if failed:
        _append_detail(answer, f"; Creation failed: {', '.join(failed)}.")


def _new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        fresh_topic_id(),
        partition_count=topic.partitions,
        replication_factor=topic.replication_factor or -1,
        configs=tuple((pair.key, pair.value) for pair in topic.topic_configs),
    )


def _append_detail(answer: StreamsHeartbeatResult, why: str) -> None:
    for status in answer.response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += why


async def handle_streams_group_describe(
    request: StreamsGroupDescribeRequest, context: RequestContext, services: Services
) -> StreamsGroupDescribeResponse:
    """Groups that this node coordinates. Each succeeds or fails by itself."""
    groups = await describe_groups(
        request,
        context,
        services,
        StreamsGroupDescribedGroup,
        lambda group_id: DescribeStreamsGroup(group_id, request.include_topology_description),
        lambda group: _topic_names(
            (group.topology.subtopologies or ()) if group.topology is not None else ()
        ),
        is_enabled=_is_streams_protocol_enabled(services),
    )
    return StreamsGroupDescribeResponse(groups=groups)


async def handle_streams_group_topology_description_update(
    request: StreamsGroupTopologyDescriptionUpdateRequest,
    context: RequestContext,
    services: Services,
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Store the topology description that a heartbeat response requested."""
    if not _is_streams_protocol_enabled(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    authorize_member(request.group_id, (), context, services)
    if not request.member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if len(context.frame) > DESCRIPTION_BYTES_MAX:
        raise ApiError(
            ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED,
            f"The description is larger than {DESCRIPTION_BYTES_MAX} bytes.",
        )
    return await services.group_coordinator.call(request.group_id, request, context)
