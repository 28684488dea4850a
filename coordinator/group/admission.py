"""Which protocols a group lets in: group.protocol.allow.

A member that comes to join by another protocol is refused with INCONSISTENT_GROUP_PROTOCOL, and
with a sentence where the protocol has room for one. Who is in stays in, until it joins again: for
classic members that is the next rebalance. Called by `shard`, before anything else is looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from odradek.coordinator.group.classic.group import join_error
from odradek.coordinator.group.requests import Heartbeat, StreamsAnswer
from odradek.coordinator.group.rules import Rules
from odradek.coordinator.outcome import Command
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ConsumerGroupHeartbeatResponse, JoinGroupRequest
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

_REFUSAL: Final = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class Joining(NamedTuple):
    """A request by which members join: the protocol they come by, and how to read and refuse it.

    `group_id` is None of a request that does not join.
    """

    protocol: str
    group_id: Callable[[Any], str | None]
    refused: Callable[[Command, str], object]


def _joined_by_heartbeat(request: Heartbeat) -> str | None:
    return request.request.group_id if request.request.member_epoch == 0 else None


def _refused_join(command: Command, _message: str) -> object:
    assert isinstance(command.request, JoinGroupRequest)
    return join_error(command, _REFUSAL, command.request.member_id)


def _refused_heartbeat(_command: Command, message: str) -> object:
    return ConsumerGroupHeartbeatResponse(error_code=_REFUSAL, error_message=message)


def _joined_streams(request: StreamsGroupHeartbeatRequest) -> str | None:
    return request.group_id if request.member_epoch == 0 else None


def _refused_streams(_command: Command, message: str) -> object:
    return StreamsAnswer(StreamsGroupHeartbeatResponse(error_code=_REFUSAL, error_message=message))


def _joined_by_share_heartbeat(request: ShareGroupHeartbeatRequest) -> str | None:
    return request.group_id if request.member_epoch == 0 else None


def _refused_share_heartbeat(_command: Command, message: str) -> object:
    return ShareGroupHeartbeatResponse(error_code=_REFUSAL, error_message=message)


JOINING: Final[Mapping[type, Joining]] = {
    JoinGroupRequest: Joining("classic", lambda request: request.group_id, _refused_join),
    Heartbeat: Joining("consumer", _joined_by_heartbeat, _refused_heartbeat),
    StreamsGroupHeartbeatRequest: Joining("streams", _joined_streams, _refused_streams),
    ShareGroupHeartbeatRequest: Joining(
        "share", _joined_by_share_heartbeat, _refused_share_heartbeat
    ),
}


def refusal(command: Command, rules: Rules) -> object | None:
    """What somebody is told who comes by a protocol that the group does not take; else None."""
    joining = JOINING.get(type(command.request))
    if joining is None:
        return None
    group_id = joining.group_id(command.request)
    allowed = None if group_id is None else rules.allowed(group_id)
    if allowed is None or joining.protocol in allowed:
        return None
    message = (
        f"Group {group_id} takes members of these protocols only: {', '.join(sorted(allowed))}"
        f" (group.protocol.allow). This one came by {joining.protocol}."
    )
    return joining.refused(command, message)
