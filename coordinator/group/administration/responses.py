"""Responses of DescribeGroups, ConsumerGroupDescribe and ListGroups. Called by
`group_directory`."""

from typing import Final

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    ListGroupsRequest,
)

DEAD: Final = "Dead"
"""The state of a group that does not exist, in DescribeGroups."""
_ERRORS_SINCE: Final = 6


def described(group: ClassicGroup) -> DescribedGroup:
    """A classic group. Only a Stable one shows metadata and assignments of its members."""
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members
        ],
    )


def described_dead(group_id: str, version: int, message: str) -> DescribedGroup:
    """DescribeGroups of an id without a classic group: Dead, from v6 on an error (KIP-1043)."""
    unknown = DescribedGroup(group_id=group_id, group_state=DEAD)
    if version >= _ERRORS_SINCE:
        unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        unknown.error_message = message
    return unknown


def no_consumer_group(group_id: str, *, exists: bool) -> ConsumerGroupDescribedGroup:
    """ConsumerGroupDescribe of an id without a consumer group."""
    kind = "is not a consumer group" if exists else "not found"
    return ConsumerGroupDescribedGroup(
        group_id=group_id,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} {kind}.",
    )


def matches_filters(group: ListedGroup, request: ListGroupsRequest) -> bool:
    """Whether the group matches the filters of ListGroups, which ignore case."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return (not states or group.group_state.lower() in states) and (
        not types or group.group_type in types
    )
