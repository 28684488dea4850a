"""Which protocols a group lets in: group.protocol.allow.

A member that comes to join by another protocol is refused with INCONSISTENT_GROUP_PROTOCOL, and
with a sentence where the protocol has room for one. Who is in stays in, until it joins again: for
classic members that is the next rebalance. Called by `shard`, before anything else is looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from odradek.coordinator.group.classic.group import join_error
from odradek.coordinator.group.policies import GroupPolicies
from odradek.coordinator.group.requests import ConsumerHeartbeat
from odradek.coordinator.group.streams.requests import StreamsHeartbeatResult
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ConsumerGroupHeartbeatResponse, JoinGroupRequest
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

_REFUSAL: Final = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class JoinRequestKind(NamedTuple):
    """A request by which members join: the protocol they come by, and how to read and refuse it.

    `group_id` is None of a request that does not join.
    """

    protocol: str
    group_id: Callable[[Any], str | None]
    refused: Callable[[Command, str], object]


def _joined_by_heartbeat(request: ConsumerHeartbeat) -> str | None:
    return request.request.group_id if request.request.member_epoch == 0 else None


def _refused_join(command: Command, _message: str) -> object:
    assert isinstance(command.request, JoinGroupRequest)
    return join_error(command, _REFUSAL, command.request.member_id)


def _refused_heartbeat(_command: Command, message: str) -> object:
    return ConsumerGroupHeartbeatResponse(error_code=_REFUSAL, error_message=message)


def _joined_streams(request: StreamsGroupHeartbeatRequest) -> str | None:
    return request.group_id if request.member_epoch == 0 else None


def _refused_streams(_command: Command, message: str) -> object:
    return StreamsHeartbeatResult(
        StreamsGroupHeartbeatResponse(error_code=_REFUSAL, error_message=message)
    )


def _joined_by_share_heartbeat(request: ShareGroupHeartbeatRequest) -> str | None:
    return request.group_id if request.member_epoch == 0 else None


def _refused_share_heartbeat(_command: Command, message: str) -> object:
    return ShareGroupHeartbeatResponse(error_code=_REFUSAL, error_message=message)


JOIN_REQUESTS: Final[Mapping[type, JoinRequestKind]] = {
    JoinGroupRequest: JoinRequestKind("classic", lambda request: request.group_id, _refused_join),
    ConsumerHeartbeat: JoinRequestKind("consumer", _joined_by_heartbeat, _refused_heartbeat),
    StreamsGroupHeartbeatRequest: JoinRequestKind("streams", _joined_streams, _refused_streams),
    ShareGroupHeartbeatRequest: JoinRequestKind(
        "share", _joined_by_share_heartbeat, _refused_share_heartbeat
    ),
}


def protocol_refusal(command: Command, policies: GroupPolicies) -> object | None:
    """The response to a member whose protocol the group does not allow; None if it does."""
    joining = JOIN_REQUESTS.get(type(command.request))
    if joining is None:
        return None
    group_id = joining.group_id(command.request)
    allowed_protocols = None if group_id is None else policies.allowed_protocols(group_id)
    if allowed_protocols is None or joining.protocol in allowed_protocols:
        return None
    message = (
        f"Group {group_id} takes members of these protocols only:"
        f" {', '.join(sorted(allowed_protocols))}"
        f" (group.protocol.allow). This one came by {joining.protocol}."
    )
    return joining.refused(command, message)
