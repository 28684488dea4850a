"""What `odradek group describe` says of streams groups: librdkafka does not know them.

Their coordinators are asked by hand, over PLAINTEXT; where that cannot be had, or no broker serves
streams groups, there are none. Called by `group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from odradek.node.blocking_client import NotABrokerError
from odradek.node.cli import offsets
from odradek.node.cli.connection import ClusterConnection
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Row
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.streams import (
    StreamsGroupDescribeAssignment,
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeMember,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TaskIds,
)

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka.admin import AdminClient


def describe_streams_groups(
    admin: AdminClient, names: Iterable[str], connection: ClusterConnection
) -> dict[str, tuple[int, StreamsGroupDescribedGroup]]:
    """Those of the groups that are streams groups, with the ids of their coordinators."""
    request = StreamsGroupDescribeRequest(group_ids=list(names))
    found: dict[str, tuple[int, StreamsGroupDescribedGroup]] = {}
    for broker in admin.list_topics(timeout=connection.timeout_s).brokers.values():
        try:
            with connection.connect(str(broker.host), broker.port) as asker:
                if not asker.serves(ApiKey.STREAMS_GROUP_DESCRIBE):
                    continue
                groups = asker.ask(request, StreamsGroupDescribeResponse).groups
        except (OSError, NotABrokerError, ProtocolError):
            continue
        found |= {g.group_id: (broker.id, g) for g in groups if not g.error_code}
    return found


def document(
    admin: AdminClient,
    group: StreamsGroupDescribedGroup,
    coordinator: int,
    committed: Mapping[PartitionId, int],
) -> dict[str, Json]:
    """The group as `group describe` shows any group, with tasks where others have partitions."""
    runners = _runners(group)
    partition_ids = sorted({*runners, *committed})
    ends = offsets.known_ends(admin, partition_ids)
    behind = {
        partition_id: max(0, end - committed[partition_id])
        for partition_id, end in ends.items()
        if partition_id in committed and end is not None
    }
    rows: list[Row] = []
    for partition_id in partition_ids:
        runner = runners.get(partition_id)
        rows.append(
            {
                "topic": partition_id[0],
                "partition": partition_id[1],
                "committed": committed.get(partition_id),
                "end_offset": ends[partition_id],
                "lag": behind.get(partition_id),
                "member": runner.member_id if runner else None,
                "client": runner.client_id if runner else None,
                "host": runner.client_host if runner else None,
            }
        )
    topology = group.topology
    return {
        "group": group.group_id,
        "state": group.group_state,
        "type": "streams",
        "assignor": group.assignor_name,
        "coordinator": coordinator,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "topology_epoch": None if topology is None else topology.epoch,
        "total_lag": sum(behind.values()),
        "members": [_member(member) for member in group.members],
        "offsets": rows,
        "subtopologies": [
            {
                "subtopology": part.subtopology_id,
                "sources": [
                    *part.source_topics,
                    *(topic.name for topic in part.repartition_source_topics),
                ],
                "sinks": list(part.repartition_sink_topics),
                "changelogs": [topic.name for topic in part.state_changelog_topics],
            }
            for part in (topology.subtopologies or () if topology is not None else ())
        ],
    }


def _runners(group: StreamsGroupDescribedGroup) -> dict[PartitionId, StreamsGroupDescribeMember]:
    """Who reads which partition: whoever runs the task of that number."""
    topology = group.topology
    sources = {
        part.subtopology_id: [
            *part.source_topics,
            *(topic.name for topic in part.repartition_source_topics),
        ]
        for part in (topology.subtopologies or () if topology is not None else ())
    }
    return {
        (name, index): member
        for member in group.members
        for tasks in member.assignment.active_tasks
        for index in tasks.partitions
        for name in sources.get(tasks.subtopology_id, ())
    }


def _member(member: StreamsGroupDescribeMember) -> Row:
    assigned, target = _tasks(member.assignment), _tasks(member.target_assignment)
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "process": member.process_id,
        "epoch": member.member_epoch,
        "assigned": assigned,
        "target": [] if target == assigned else target,
    }


def _tasks(assignment: StreamsGroupDescribeAssignment) -> list[Json]:
    """`1_0` is partition 0 of subtopology 1, as Kafka Streams calls its tasks."""
    return [
        *_named(assignment.active_tasks, ""),
        *_named(assignment.standby_tasks, " (standby)"),
        *_named(assignment.warmup_tasks, " (warm-up)"),
    ]


def _named(tasks: list[TaskIds], suffix: str) -> list[str]:
    return [f"{each.subtopology_id}_{index}{suffix}" for each in tasks for index in each.partitions]
