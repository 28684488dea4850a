"""The responses of StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071).

They do not change the group. Called by `streams.groups`.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import Final

from odradek.coordinator.group.modern.group import ModernGroupState
from odradek.coordinator.group.modern.heartbeats import heartbeat_interval_ms
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.heartbeats import StreamsHeartbeatOutcome
from odradek.coordinator.group.streams.records import (
    InternalTopic,
    StreamsEndpoint,
    StreamsGroupMember,
    TasksTuple,
    TasksTupleWithEpochs,
    Topology,
)
from odradek.coordinator.group.streams.topology import ConfiguredTopology, StatusCode
from odradek.coordinator.group.streams.transient_state import TransientState
from odradek.coordinator.group.topics import TopicCatalog
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.streams import (
    EndpointToPartitions,
    KeyValue,
    StreamsGroupDescribeAssignment,
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeMember,
    StreamsGroupDescribeSubtopology,
    StreamsGroupDescribeTopology,
    StreamsGroupEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatStatus,
    TaskIds,
    TopicInfo,
)

ASSIGNOR_NAME: Final = "sticky"
"""Kafka's name of the only assignor."""


class DescriptionStatus(IntEnum):
    """The status of a topology's description, with the numbers of the protocol."""

    NOT_REQUESTED = 0
    NOT_STORED = 1
    ERROR = 2
    AVAILABLE = 3


def heartbeat_response(
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest,
    result: StreamsHeartbeatOutcome,
    transient: TransientState,
    step: GroupStep,
) -> StreamsGroupHeartbeatResponse:
    """The response to a member that has joined or continues."""
    is_busy = bool(step.records) or group.state is not ModernGroupState.STABLE
    response = StreamsGroupHeartbeatResponse(
        member_id=result.resolved.member_id,
        member_epoch=result.current.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms(group, step, is_busy=is_busy),
        status=[
            StreamsGroupHeartbeatStatus(status_code=code, status_detail=text)
            for code, text in _status(result, transient)
        ],
        endpoint_information_epoch=transient.endpoint_epoch,
    )
    if result.includes_tasks(request):
        held = result.current.assigned
        response.active_tasks = _task_ids(held.active)
        response.standby_tasks = _task_ids(held.standby)
        response.warmup_tasks = _task_ids(held.warmup)
    if request.endpoint_information_epoch != transient.endpoint_epoch:
        response.partitions_by_user_endpoint = list(_endpoints(group, result, step))
    return response


def _status(
    result: StreamsHeartbeatOutcome, transient: TransientState
) -> Iterator[tuple[StatusCode, str]]:
    if result.member.topology_epoch < result.topology.epoch:
        yield (
            StatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {result.member.topology_epoch} is behind the group's"
            f" topology epoch {result.topology.epoch}.",
        )
    if result.is_delayed:
        yield (
            StatusCode.ASSIGNMENT_DELAYED,
            "Assignment delayed due to the configured initial rebalance delay or assignment"
            " interval.",
        )
    if result.topology_error is not None:
        yield result.topology_error
    if transient.shutdown_requested_by is not None:
        yield (
            StatusCode.SHUTDOWN_APPLICATION,
            f"Streams group member {transient.shutdown_requested_by} encountered a fatal error and"
            " requested a shutdown for the entire application.",
        )


def _task_ids(tasks: Mapping[str, Collection[int]]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology, partitions=sorted(indexes))
        for subtopology, indexes in sorted(tasks.items())
        if indexes
    ]


# -- interactive queries --------------------------------------------------------------------------


def _endpoints(
    group: StreamsGroup, result: StreamsHeartbeatOutcome, step: GroupStep
) -> Iterator[EndpointToPartitions]:
    """The tasks of all members with an endpoint; the requesting member's come last."""
    gone = (result.resolved.member_id, result.resolved.replaced_id)
    held = [
        (member, group.current(member_id).assigned)
        for member_id, member in group.members()
        if member_id not in gone
    ]
    for member, assigned in (*held, (result.member, result.current.assigned)):
        if member.endpoint is not None:
            yield EndpointToPartitions(
                user_endpoint=_endpoint(member.endpoint),
                active_partitions=_partitions(result.topology, assigned.active, step),
                standby_partitions=_partitions(result.topology, assigned.standby, step),
            )


def _endpoint(endpoint: StreamsEndpoint) -> StreamsGroupEndpoint:
    return StreamsGroupEndpoint(host=endpoint.host, port=endpoint.port)


def _partitions(
    topology: Topology, tasks: Mapping[str, Collection[int]], step: GroupStep
) -> list[TopicPartitions]:
    return [
        TopicPartitions(name=name, partitions=indexes)
        for name, indexes in partitions_read_by(topology, tasks, step.topics)
    ]


def partitions_read_by(
    topology: Topology, tasks: Mapping[str, Collection[int]], topics: TopicCatalog
) -> Iterator[tuple[str, list[int]]]:
    """The partitions that the tasks read, by topic, of topics that exist."""
    for part in topology.subtopologies:
        indexes = tasks.get(part.subtopology_id, ())
        for name in part.sources() if indexes else ():
            topic = topics.topic(name)
            count = 0 if topic is None else topic.partition_count
            partitions = sorted(index for index in indexes if index < count)
            if partitions:
                yield name, partitions


# -- descriptions ---------------------------------------------------------------------------------


def described(
    group: StreamsGroup, transient: TransientState, step: GroupStep
) -> StreamsGroupDescribedGroup:
    """The group with its topology, and every member's assignment and target."""
    topology = group.topology
    return StreamsGroupDescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=ASSIGNOR_NAME,
        topology=(
            None
            if topology is None
            else _topology(topology, group.configured(topology, step.topics))
        ),
        members=[
            _member(group, member_id, member, transient) for member_id, member in group.members()
        ],
    )


def _topology(topology: Topology, configured: ConfiguredTopology) -> StreamsGroupDescribeTopology:
    """The topology; its internal topics have their numbers of partitions, if these are known."""

    def topic_infos(topics: tuple[InternalTopic, ...]) -> list[TopicInfo]:
        return [
            TopicInfo(
                name=topic.name,
                partitions=configured.topics.get(topic.name, topic).partitions,
                replication_factor=topic.replication_factor,
                topic_configs=[
                    KeyValue(key=pair.key, value=pair.value) for pair in topic.topic_configs
                ],
            )
            for topic in sorted(topics, key=lambda topic: topic.name)
        ]

    return StreamsGroupDescribeTopology(
        epoch=topology.epoch,
        subtopologies=[
            StreamsGroupDescribeSubtopology(
                subtopology_id=part.subtopology_id,
                source_topics=sorted(part.source_topics),
                repartition_sink_topics=sorted(part.repartition_sink_topics),
                state_changelog_topics=topic_infos(part.state_changelog_topics),
                repartition_source_topics=topic_infos(part.repartition_source_topics),
            )
            for part in topology.subtopologies
        ],
    )


def _member(
    group: StreamsGroup, member_id: str, member: StreamsGroupMember, transient: TransientState
) -> StreamsGroupDescribeMember:
    current = group.current(member_id)
    return StreamsGroupDescribeMember(
        member_id=member_id,
        member_epoch=current.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else _endpoint(member.endpoint),
        client_tags=[KeyValue(key=pair.key, value=pair.value) for pair in member.client_tags],
        task_offsets=transient.offsets.get(member_id, []),
        task_end_offsets=transient.end_offsets.get(member_id, []),
        assignment=_assignment(current.assigned),
        target_assignment=_assignment(group.target(member_id)),
    )


def _assignment(tasks: TasksTupleWithEpochs | TasksTuple) -> StreamsGroupDescribeAssignment:
    return StreamsGroupDescribeAssignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )
