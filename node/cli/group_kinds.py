"""What is particular to a kind of group, for commands that take any: who is in it where the
coordinator does not explain it, where a share group stands, and how a member is put out.

A member is put out as if it had left: by its own protocol's last heartbeat, or LeaveGroup. It is
told so with its next heartbeat, and a client that still runs joins again.
"""

from typing import Final

from node.cli.session import Session
from protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from protocol.messages.insight import ExplainedGroup, ExplainedMember
from protocol.messages.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from protocol.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

Place = tuple[str, int]

SHARE: Final = "share"
STREAMS: Final = "streams"
CONSUMER: Final = "consumer"
LEAVE: Final = -1
REASON: Final = "put out by odradek group delete --force"


def fill_members(session: Session, coordinator: int, groups: list[ExplainedGroup]) -> None:
    """Add the members of share and streams groups, and their states."""
    share = {group.group_id: group for group in groups if group.group_type == SHARE}
    streams = {group.group_id: group for group in groups if group.group_type == STREAMS}
    if share:
        shares = session.ask_node(
            coordinator,
            ShareGroupDescribeRequest(group_ids=list(share)),
            ShareGroupDescribeResponse,
        )
        for found in shares.groups if shares is not None else ():
            share[found.group_id].members = [
                ExplainedMember(
                    member_id=member.member_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    epoch=member.member_epoch,
                )
                for member in found.members
            ]
    if streams:
        applications = session.ask_node(
            coordinator,
            StreamsGroupDescribeRequest(group_ids=list(streams)),
            StreamsGroupDescribeResponse,
        )
        for application in applications.groups if applications is not None else ():
            streams[application.group_id].members = [
                ExplainedMember(
                    member_id=process.member_id,
                    instance_id=process.instance_id,
                    client_id=process.client_id,
                    client_host=process.client_host,
                    epoch=process.member_epoch,
                )
                for process in application.members
            ]


def share_offsets(session: Session, coordinator: int, name: str) -> dict[Place, tuple[int, int]]:
    """Where a share group begins to read, and how many records it has before it (KIP-1226)."""
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    answer = session.ask_node(
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


def put_out(session: Session, coordinator: int, group: ExplainedGroup) -> None:
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
                session.ask_node(coordinator, consumer, ConsumerGroupHeartbeatResponse)
            case "share":
                share = ShareGroupHeartbeatRequest(
                    group_id=name, member_id=member.member_id, member_epoch=LEAVE
                )
                session.ask_node(coordinator, share, ShareGroupHeartbeatResponse)
            case "streams":
                streams = StreamsGroupHeartbeatRequest(
                    group_id=name,
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=LEAVE,
                )
                session.ask_node(coordinator, streams, StreamsGroupHeartbeatResponse)
            case _:
                identity = MemberIdentity(
                    member_id=member.member_id, group_instance_id=member.instance_id, reason=REASON
                )
                request = LeaveGroupRequest(group_id=name, members=[identity])
                session.ask_node(coordinator, request, LeaveGroupResponse)
