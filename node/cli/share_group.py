"""What `odradek group` says of share groups, and how it moves them: librdkafka does not know them.

Their coordinators are asked by hand, over PLAINTEXT; where that cannot be had, or no broker serves
share groups, there are none. Called by `group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.node.cli import offsets
from odradek.node.cli.connection import ClusterConnection
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Row
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribedGroup,
    ShareGroupDescribeMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka.admin import AdminClient

_FAILURES = (OSError, NotABrokerError, ProtocolError)


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group as its coordinator tells it. `positions` are start offsets and lags; a lag is
    None as long as nobody has said what was delivered."""

    told: ShareGroupDescribedGroup
    node_id: int
    address: tuple[str, int]
    positions: Mapping[PartitionId, tuple[int, int | None]]

    def starts(self) -> dict[PartitionId, int]:
        """Where the group begins, of partitions that it has begun with."""
        return {
            partition_id: start for partition_id, (start, _) in self.positions.items() if start >= 0
        }


def describe_share_groups(
    admin: AdminClient, names: Iterable[str], connection: ClusterConnection
) -> dict[str, ShareGroupDescription]:
    """Those of the groups that are share groups."""
    request = ShareGroupDescribeRequest(group_ids=list(names))
    found: dict[str, ShareGroupDescription] = {}
    for broker in admin.list_topics(timeout=connection.timeout_s).brokers.values():
        address = str(broker.host), broker.port
        try:
            with connection.connect(*address) as asker:
                if not asker.serves(ApiKey.SHARE_GROUP_DESCRIBE):
                    continue
                for told in asker.ask(request, ShareGroupDescribeResponse).groups:
                    if not told.error_code:
                        positions = _positions(asker, told.group_id)
                        found[told.group_id] = ShareGroupDescription(
                            told, broker.id, address, positions
                        )
        except _FAILURES:
            continue
    return found


def _positions(asker: BlockingClient, name: str) -> dict[PartitionId, tuple[int, int | None]]:
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    return {
        (topic.topic_name, each.partition_index): (
            each.start_offset,
            each.lag if each.lag >= 0 else None,
        )
        for group in asker.ask(request, DescribeShareGroupOffsetsResponse).groups
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code
    }


def document(admin: AdminClient, group: ShareGroupDescription) -> dict[str, Json]:
    """The group as `group describe` shows any group; several members may read a partition."""
    readers = _readers(group.told.members)
    partition_ids = sorted({*readers, *group.positions})
    ends = offsets.known_ends(admin, partition_ids)
    rows: list[Row] = []
    for partition_id in partition_ids:
        start, lag = group.positions.get(partition_id, (-1, None))
        members = readers.get(partition_id, [])
        rows.append(
            {
                "topic": partition_id[0],
                "partition": partition_id[1],
                "committed": start if start >= 0 else None,
                "end_offset": ends[partition_id],
                "lag": lag,
                "member": ", ".join(member.member_id for member in members) or None,
                "client": ", ".join(member.client_id for member in members) or None,
                "host": ", ".join(member.client_host for member in members) or None,
            }
        )
    told = group.told
    return {
        "group": told.group_id,
        "state": told.group_state,
        "type": "share",
        "assignor": told.assignor_name,
        "coordinator": group.node_id,
        "group_epoch": told.group_epoch,
        "assignment_epoch": told.assignment_epoch,
        "total_lag": sum(lag or 0 for _, lag in group.positions.values()),
        "members": [_member(member) for member in told.members],
        "offsets": rows,
    }


def _readers(
    members: Iterable[ShareGroupDescribeMember],
) -> dict[PartitionId, list[ShareGroupDescribeMember]]:
    readers: dict[PartitionId, list[ShareGroupDescribeMember]] = {}
    for member in members:
        for topic in member.assignment.topic_partitions:
            for index in topic.partitions:
                readers.setdefault((topic.topic_name, index), []).append(member)
    return readers


def _member(member: ShareGroupDescribeMember) -> Row:
    return {
        "member": member.member_id,
        "instance": None,
        "client": member.client_id,
        "host": member.client_host,
        "epoch": member.member_epoch,
        "assigned": [
            f"{topic.topic_name}-{index}"
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        ],
        "target": [],
    }


def alter_start_offsets(
    group: ShareGroupDescription, targets: Mapping[PartitionId, int], connection: ClusterConnection
) -> None:
    """Set where the group begins. ClickException if it is refused: whoever reads must stop."""
    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for (name, index), offset in targets.items():
        topic = topics.setdefault(name, AlterShareGroupOffsetsRequestTopic(topic_name=name))
        topic.partitions.append(
            AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        )
    name = group.told.group_id
    request = AlterShareGroupOffsetsRequest(group_id=name, topics=list(topics.values()))
    try:
        with connection.connect(*group.address) as asker:
            answer = asker.ask(request, AlterShareGroupOffsetsResponse)
    except _FAILURES as error:
        raise click.ClickException(f"group {name!r}: {error}") from None
    if answer.error_code:
        said = answer.error_message or ErrorCode(answer.error_code).message
        raise click.ClickException(f"group {name!r}: {said} Are its consumers stopped?")
    refused = [
        (topic.topic_name, each)
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code
    ]
    if refused:
        first, partition = refused[0]
        raise click.ClickException(
            f"{len(refused)} of {len(targets)} offsets were refused, {first}-"
            f"{partition.partition_index}: {partition.error_message}"
        )
