"""Streams groups (KIP-1071): StreamsGroupHeartbeat (88, 0-1), StreamsGroupDescribe (89, 0-1),
StreamsGroupTopologyDescriptionUpdate (93, 0).

v1 of the heartbeat asks a member for the description of the whole topology, which comes by 93 and
is shown by v1 of StreamsGroupDescribe (KIP-1331). Kafka has a plugin to keep it; here the
coordinator does, in memory, and asks again when it has moved. StreamsGroupDescribe v1 also names
the assignor.

What a group does is decided in coordinator.group; here stand who may ask and see which topics, and
how the internal topics come into being that a topology lacks. They are made with the rights of the
member that asks, as if it had made them itself; what keeps them from being made stands in the
answer, whose status says that they are missing until they are there.
"""

from collections.abc import Iterator
from typing import Final

from odradek.cluster.controller.commands import CreateTopics, NewTopic, TopicsReply
from odradek.cluster.metadata.features import STREAMS_VERSION
from odradek.coordinator.group.requests import DescribeStreamsGroup, StreamsHeartbeatResult
from odradek.coordinator.group.streams.records import InternalTopic
from odradek.coordinator.group.streams.topology import StatusCode
from odradek.node.router.authorizer import AclOperation, ResourceType
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.group_descriptions import GroupDescriber
from odradek.node.router.handlers.groups import member_error
from odradek.node.router.handlers.topics import can_create_topic, fresh_topic_id
from odradek.node.router.shards.coordinator_service import CREATE_TIMEOUT_MS
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

DESCRIPTION_BYTES_MAX: Final = 1 << 20
"""Of a request with the description of a topology, which stays in memory."""


async def handle_streams_group_heartbeat(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, services: Services
) -> StreamsGroupHeartbeatResponse:
    """A member joins, goes on or leaves."""
    if not _is_streams_protocol_enabled(services):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    authorizer = services.authorizer
    if not authorizer.is_allowed(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    for name in _topics_of(request):
        if not authorizer.is_allowed(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        answer = await services.group_coordinator.call_for_heartbeat(
            request.group_id, request, context
        )
    except ApiError as error:
        return _refused(member_error(error.code), error.message)
    assert isinstance(answer, StreamsHeartbeatResult)
    if answer.missing:
        await _create_internal_topics(answer, context, services)
    return answer.response


def _is_streams_protocol_enabled(services: Services) -> bool:
    return services.image.features.get(STREAMS_VERSION, 0) >= 1


def _refused(code: ErrorCode, message: str | None = None) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(error_code=code, error_message=message or code.message)


def _topics_of(request: StreamsGroupHeartbeatRequest) -> set[str]:
    names: set[str] = set()
    for part in () if request.topology is None else request.topology.subtopologies:
        names.update(part.source_topics)
        names.update(part.repartition_sink_topics)
        names.update(topic.name for topic in part.repartition_source_topics)
        names.update(topic.name for topic in part.state_changelog_topics)
    return names


async def _create_internal_topics(
    answer: StreamsHeartbeatResult, context: RequestContext, services: Services
) -> None:
    """Make the topics that are missing, or say why they cannot be made."""
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
    assert isinstance(reply, TopicsReply)
    failed = [
        f"{result.name} ({result.error_message or ErrorCode(result.error_code).name})"
        for result in reply.results
        # Another member's heartbeat may have been quicker.
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    ]
    if failed:
        _append_detail(answer, f"; Creation failed: {', '.join(failed)}.")


def _new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        fresh_topic_id(),
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor or -1,
        configs=topic.configs,
    )


def _append_detail(answer: StreamsHeartbeatResult, why: str) -> None:
    for status in answer.response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += why


async def handle_streams_group_describe(
    request: StreamsGroupDescribeRequest, context: RequestContext, services: Services
) -> StreamsGroupDescribeResponse:
    """Groups of which this node is the coordinator; each succeeds or fails by itself."""
    describing = GroupDescriber(
        description=StreamsGroupDescribedGroup,
        command=lambda group_id: DescribeStreamsGroup(
            group_id, request.include_topology_description
        ),
        topic_names=_topic_names,
        asks_for_operations=request.include_authorized_operations,
    )
    if not _is_streams_protocol_enabled(services):
        code = ErrorCode.UNSUPPORTED_VERSION
        groups = [describing.refused(group_id, code) for group_id in request.group_ids]
    else:
        groups = await describing.describe(request.group_ids, context, services)
    return StreamsGroupDescribeResponse(groups=groups)


def _topic_names(described: StreamsGroupDescribedGroup) -> Iterator[str]:
    """Every topic of the topology."""
    topology = described.topology
    for part in () if topology is None else topology.subtopologies or ():
        yield from part.source_topics
        yield from part.repartition_sink_topics
        yield from (topic.name for topic in part.repartition_source_topics)
        yield from (topic.name for topic in part.state_changelog_topics)


async def handle_streams_group_topology_description_update(
    request: StreamsGroupTopologyDescriptionUpdateRequest,
    context: RequestContext,
    services: Services,
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """A member describes its topology, as it was asked to."""
    authorizer = services.authorizer
    if not _is_streams_protocol_enabled(services):
        return _update_refused(ErrorCode.UNSUPPORTED_VERSION)
    if not authorizer.is_allowed(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
        return _update_refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id or not request.member_id:
        what = "MemberId" if request.group_id else "GroupId"
        return _update_refused(ErrorCode.INVALID_REQUEST, f"{what} can't be empty.")
    if len(context.frame) > DESCRIPTION_BYTES_MAX:
        return _update_refused(
            ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED,
            f"A description of more than {DESCRIPTION_BYTES_MAX} bytes is not kept.",
        )
    try:
        response = await services.group_coordinator.call(request.group_id, request, context)
    except ApiError as error:
        return _update_refused(error.code, error.message)
    assert isinstance(response, StreamsGroupTopologyDescriptionUpdateResponse)
    return response


def _update_refused(
    code: ErrorCode, message: str | None = None
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    return StreamsGroupTopologyDescriptionUpdateResponse(
        error_code=code, error_message=message or code.message
    )
