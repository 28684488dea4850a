"""What is particular to a kind of group, for commands that take any: where a share group stands,
and how a member is put out.

A member is put out as if it had left: by its own protocol's last heartbeat, or LeaveGroup. It is
told so with its next heartbeat, and a client that still runs joins again.
"""

from typing import Final

from odradek.node.cli.cluster_client import ClusterClient
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from odradek.protocol.messages.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

PartitionId = tuple[str, int]

SHARE: Final = "share"
STREAMS: Final = "streams"
CONSUMER: Final = "consumer"
LEAVE: Final = -1
REASON: Final = "put out by odradek group delete --force"


def share_offsets(
    client: ClusterClient, coordinator: int, name: str
) -> dict[PartitionId, tuple[int, int]]:
    """Where a share group begins to read, and how many records it has before it (KIP-1226)."""
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    answer = client.ask_node(
        coordinator,
        DescribeShareGroupOffsetsRequest(groups=[asked]),
        DescribeShareGroupOffsetsResponse,
    )
    return {
        (topic.topic_name, partition.partition_index): (partition.start_offset, partition.lag)
        for group in (answer.groups if answer is not None else ())
        for topic in group.topics
        for partition in topic.partitions
        if not partition.error_code and partition.start_offset >= 0
    }


def remove_members(client: ClusterClient, coordinator: int, group: ExplainedGroup) -> None:
    """Have every member leave, whatever comes of it: who looks again sees who is still there."""
    name = group.group_id
    for member in group.members:
        match group.group_type:
            case "consumer":
                consumer = ConsumerGroupHeartbeatRequest(
                    group_id=name,
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=LEAVE,
                )
                client.ask_node(coordinator, consumer, ConsumerGroupHeartbeatResponse)
            case "share":
                share = ShareGroupHeartbeatRequest(
                    group_id=name, member_id=member.member_id, member_epoch=LEAVE
                )
                client.ask_node(coordinator, share, ShareGroupHeartbeatResponse)
            case "streams":
                streams = StreamsGroupHeartbeatRequest(
                    group_id=name,
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=LEAVE,
                )
                client.ask_node(coordinator, streams, StreamsGroupHeartbeatResponse)
            case _:
                identity = MemberIdentity(
                    member_id=member.member_id, group_instance_id=member.instance_id, reason=REASON
                )
                request = LeaveGroupRequest(group_id=name, members=[identity])
                client.ask_node(coordinator, request, LeaveGroupResponse)
