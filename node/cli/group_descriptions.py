"""What `odradek group describe` shows of a group of any type, as its coordinator describes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import click

from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import ClusterClient, raise_on_error
from odradek.node.cli.group_offsets import committed_offsets, share_positions
from odradek.node.cli.offsets import PartitionId, ids_of
from odradek.node.cli.output import Json, Row
from odradek.protocol.consumer_protocol import decode_assignment
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeRequest,
    DescribedAssignment,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from odradek.protocol.messages.share import (
    ShareGroupDescribedGroup,
    ShareGroupDescribeMember,
    ShareGroupDescribeRequest,
)
from odradek.protocol.messages.streams import (
    StreamsGroupDescribeAssignment,
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeMember,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeSubtopology,
)

AnyDescribedGroup: TypeAlias = (
    ConsumerGroupDescribedGroup
    | StreamsGroupDescribedGroup
    | ShareGroupDescribedGroup
    | DescribedGroup
)
_TYPES = {
    ConsumerGroupDescribedGroup: "consumer",
    StreamsGroupDescribedGroup: "streams",
    ShareGroupDescribedGroup: "share",
    DescribedGroup: "classic",
}
_OTHER_TYPE = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})


class DescribedMember(NamedTuple):
    """A member of any type of group, and the partitions that it reads."""

    row: dict[str, Json]
    partitions: list[PartitionId]


def find_group(client: ClusterClient, name: str) -> tuple[int, AnyDescribedGroup]:
    """A group's coordinator, and the group as it describes it: one that does not exist is Dead.
    ClickException if the coordinator does not answer, or refuses."""
    coordinator = client.coordinators([name]).get(name)
    if coordinator is None:
        raise click.ClickException(f"group {name!r}: its coordinator is not available")
    answers = (
        client.ask_node(coordinator, ConsumerGroupDescribeRequest(group_ids=[name])),
        client.ask_node(coordinator, StreamsGroupDescribeRequest(group_ids=[name])),
        client.ask_node(coordinator, ShareGroupDescribeRequest(group_ids=[name])),
    )
    for answer in answers:
        found = None if answer is None else answer.groups[0]
        if found is not None and found.error_code not in _OTHER_TYPE:
            raise_on_error(found, f"group {name!r}")
            return coordinator, found
    classic = client.ask_broker(coordinator, DescribeGroupsRequest(groups=[name])).groups[0]
    if classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        classic.group_state = "Dead"
    else:
        raise_on_error(classic, f"group {name!r}")
    return coordinator, classic


def describe_group(client: ClusterClient, name: str) -> dict[str, Json] | None:
    """The document of a group; None if there is no such group."""
    coordinator, group = find_group(client, name)
    if isinstance(group, StreamsGroupDescribedGroup):
        sources = {part.subtopology_id: _sources(part) for part in _subtopologies(group)}
        members = [_streams_member(member, sources) for member in group.members]
    else:
        members = [_member(member) for member in group.members]
    committed, lags = group_positions(client, coordinator, group)
    if group.group_state == "Dead" and not members and not committed:
        return None
    rows = _offset_rows(client, members, committed, lags)
    behind = [lag for row in rows if isinstance(lag := row["lag"], int)]
    document: dict[str, Json] = {
        "group": name,
        "state": group.group_state,
        **_heading(group, coordinator),
        "total_lag": sum(behind) if behind or not rows or lags is not None else None,
        "members": [member.row for member in members],
        "offsets": rows,
    }
    if isinstance(group, StreamsGroupDescribedGroup):
        document["subtopologies"] = [
            {
                "subtopology": part.subtopology_id,
                "sources": _sources(part),
                "sinks": list(part.repartition_sink_topics),
                "changelogs": [topic.name for topic in part.state_changelog_topics],
            }
            for part in _subtopologies(group)
        ]
    return document


def group_positions(
    client: ClusterClient, coordinator: int, group: AnyDescribedGroup
) -> tuple[dict[PartitionId, int], dict[PartitionId, int | None] | None]:
    """Committed offsets, or the start offsets of a share group; and the lags that a share group
    reports."""
    if not isinstance(group, ShareGroupDescribedGroup):
        return committed_offsets(client, group.group_id), None
    positions = share_positions(client, coordinator, group.group_id)
    starts = {each: start for each, (start, _) in positions.items() if start >= 0}
    return starts, {each: lag for each, (_, lag) in positions.items()}


def _heading(group: AnyDescribedGroup, coordinator: int) -> dict[str, Json]:
    assignor = group.protocol_data if isinstance(group, DescribedGroup) else group.assignor_name
    heading: dict[str, Json] = {
        "type": _TYPES[type(group)],
        "assignor": assignor or None,
        "coordinator": coordinator,
    }
    if isinstance(group, StreamsGroupDescribedGroup | ShareGroupDescribedGroup):
        heading["group_epoch"] = group.group_epoch
        heading["assignment_epoch"] = group.assignment_epoch
    if isinstance(group, StreamsGroupDescribedGroup):
        heading["topology_epoch"] = None if group.topology is None else group.topology.epoch
    return heading


def _offset_rows(
    client: ClusterClient,
    members: Iterable[DescribedMember],
    committed: Mapping[PartitionId, int],
    lags: Mapping[PartitionId, int | None] | None,
) -> list[Row]:
    """A row for each partition that has an offset or a reader; several members of a share group may
    read the same one. `lags` are those that a share group reports."""
    readers: dict[PartitionId, list[DescribedMember]] = {}
    for member in members:
        for partition_id in member.partitions:
            readers.setdefault(partition_id, []).append(member)
    partition_ids = sorted({*readers, *committed, *(lags or ())})
    ends = offsets.known_offsets(client, partition_ids, offsets.LATEST)
    rows: list[Row] = []
    for partition_id in partition_ids:
        offset, end = committed.get(partition_id), ends[partition_id]
        lag = None if offset is None or end is None else max(0, end - offset)
        members_there = readers.get(partition_id, [])
        rows.append(
            {
                "topic": partition_id[0],
                "partition": partition_id[1],
                "committed": offset,
                "end_offset": end,
                "lag": lag if lags is None else lags.get(partition_id),
                **{
                    key: ", ".join(str(member.row[key]) for member in members_there) or None
                    for key in ("member", "client", "host")
                },
            }
        )
    return rows


def _member(member: _AnyMember) -> DescribedMember:
    instance = getattr(member, "instance_id", getattr(member, "group_instance_id", None))
    owned = _owned(member)
    target = sorted(owned)
    if isinstance(member, ConsumerGroupDescribeMember):
        target = sorted(_partitions(member.target_assignment))
    row: dict[str, Json] = {
        "member": member.member_id,
        "instance": instance,
        "client": member.client_id,
        "host": member.client_host,
        "assigned": [f"{topic}-{index}" for topic, index in owned],
        "target": [f"{topic}-{index}" for topic, index in target if target != sorted(owned)],
    }
    if isinstance(member, ShareGroupDescribeMember):
        row["epoch"] = member.member_epoch
    return DescribedMember(row, owned)


def _owned(member: _AnyMember) -> list[PartitionId]:
    if not isinstance(member, DescribedGroupMember):
        return _partitions(member.assignment)
    try:
        return ids_of(decode_assignment(member.member_assignment).assigned_partitions)
    except ProtocolError:
        return []  # not the assignment of a consumer


def _partitions(assignment: DescribedAssignment) -> list[PartitionId]:
    topics = assignment.topic_partitions
    return [(topic.topic_name, index) for topic in topics for index in topic.partitions]


# -- streams groups -------------------------------------------------------------------------------


def _subtopologies(group: StreamsGroupDescribedGroup) -> list[StreamsGroupDescribeSubtopology]:
    return [] if group.topology is None else list(group.topology.subtopologies or ())


def _sources(part: StreamsGroupDescribeSubtopology) -> list[str]:
    return [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]


def _streams_member(
    member: StreamsGroupDescribeMember, sources: Mapping[str, list[str]]
) -> DescribedMember:
    """It reads the partitions of its active tasks."""
    assigned, target = _tasks(member.assignment), _tasks(member.target_assignment)
    row: dict[str, Json] = {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "process": member.process_id,
        "epoch": member.member_epoch,
        "assigned": assigned,
        "target": [] if target == assigned else target,
    }
    read = [
        (name, index)
        for tasks in member.assignment.active_tasks
        for index in tasks.partitions
        for name in sources.get(tasks.subtopology_id, ())
    ]
    return DescribedMember(row, read)


def _tasks(assignment: StreamsGroupDescribeAssignment) -> list[str]:
    """`1_0` is partition 0 of subtopology 1, as Kafka Streams calls its tasks."""
    return [
        f"{tasks.subtopology_id}_{index}{suffix}"
        for kind, suffix in (
            (assignment.active_tasks, ""),
            (assignment.standby_tasks, " (standby)"),
            (assignment.warmup_tasks, " (warm-up)"),
        )
        for tasks in kind
        for index in tasks.partitions
    ]


_AnyMember: TypeAlias = (
    ConsumerGroupDescribeMember | ShareGroupDescribeMember | DescribedGroupMember
)
