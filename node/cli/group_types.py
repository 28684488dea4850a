"""Removing the members of a group of any type.

A member is removed as if it had left: by the last heartbeat of its protocol, or LeaveGroup. Its
next heartbeat is refused, and a client that still runs rejoins.
"""

from typing import Final

from odradek.node.cli.cluster_client import ClusterClient
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    LeaveGroupRequest,
    MemberIdentity,
)
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest

PartitionId = tuple[str, int]

SHARE: Final = "share"
STREAMS: Final = "streams"
CONSUMER: Final = "consumer"
LEAVE: Final = -1
REASON: Final = "removed by odradek group delete --force"


def remove_members(client: ClusterClient, coordinator: int, group: ExplainedGroup) -> None:
    """Have every member leave. Errors are ignored: the caller looks again who is still there."""
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
                client.ask_node(coordinator, consumer)
            case "share":
                share = ShareGroupHeartbeatRequest(
                    group_id=name, member_id=member.member_id, member_epoch=LEAVE
                )
                client.ask_node(coordinator, share)
            case "streams":
                streams = StreamsGroupHeartbeatRequest(
                    group_id=name,
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=LEAVE,
                )
                client.ask_node(coordinator, streams)
            case _:
                identity = MemberIdentity(
                    member_id=member.member_id, group_instance_id=member.instance_id, reason=REASON
                )
                request = LeaveGroupRequest(group_id=name, members=[identity])
                client.ask_node(coordinator, request)
