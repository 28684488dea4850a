"""The protocols that a group allows: group.protocol.allow.

A member that joins by another protocol is refused with INCONSISTENT_GROUP_PROTOCOL, and with a
message where the protocol has a field for it. A member of the group stays until it joins again: a
classic member joins again in the next rebalance. Called by `shard`, before all other checks.
"""

from collections.abc import Mapping
from typing import Any, Final

from odradek.coordinator.group.classic.group import join_error
from odradek.coordinator.group.modern.heartbeats import JOIN_GROUP_EPOCH
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

PROTOCOL_OF_REQUEST: Final[Mapping[type, str]] = {
    JoinGroupRequest: "classic",
    ConsumerHeartbeat: "consumer",
    ShareGroupHeartbeatRequest: "share",
    StreamsGroupHeartbeatRequest: "streams",
}
"""The protocols of the requests by which members join."""


def protocol_refusal(command: Command, policies: GroupPolicies) -> object | None:
    """The response to a member whose protocol the group does not allow; None if it does."""
    request: Any = command.request
    protocol = PROTOCOL_OF_REQUEST.get(type(request))
    if protocol is None:
        return None
    if protocol == "consumer":
        request = request.request
    allowed_protocols = policies.allowed_protocols(request.group_id)
    is_joining = protocol == "classic" or request.member_epoch == JOIN_GROUP_EPOCH
    if allowed_protocols is None or protocol in allowed_protocols or not is_joining:
        return None
    error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    message = (
        f"Group {request.group_id} takes members of these protocols only:"
        f" {', '.join(sorted(allowed_protocols))}"
        f" (group.protocol.allow). This one came by {protocol}."
    )
    match protocol:
        case "classic":
            return join_error(command, error, request.member_id)
        case "consumer":
            return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)
        case "share":
            return ShareGroupHeartbeatResponse(error_code=error, error_message=message)
        case _:
            response = StreamsGroupHeartbeatResponse(error_code=error, error_message=message)
            return StreamsHeartbeatResult(response)
