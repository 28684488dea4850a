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
    LeaveGroupRequest,
    MemberIdentity,
)
from odradek.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
)
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
)

PartitionId = tuple[str, int]

SHARE: Final = "share"
STREAMS: Final = "streams"
CONSUMER: Final = "consumer"
LEAVE: Final = -1
REASON: Final = "put out by odradek group delete --force"


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
