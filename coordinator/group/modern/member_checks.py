"""Checks of a member's identity that are the same for all newer types of groups, and their errors.

Called by the modules that let members in.
"""

from typing import Protocol

from odradek.protocol.errors import ApiError, ErrorCode


class MemberTable(Protocol):
    """What is asked of a group."""

    group_id: str

    def static_member_id(self, instance_id: str) -> str | None:
        """The holder of the instance id."""

    def member(self, member_id: str) -> object | None:
        """The member of that id."""


def check_member(group: MemberTable, member_id: str, instance_id: str | None) -> None:
    """Whether there is such a member and the instance id, if there is one, is its own; else
    ApiError."""
    check_instance_id(group, member_id, instance_id)
    if group.member(member_id) is None:
        raise unknown_member(group.group_id, member_id)


def check_instance_id(group: MemberTable, member_id: str, instance_id: str | None) -> None:
    """Whether the instance id, if there is one, is the member's.

    ApiError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if it is another one's.
    """
    if instance_id is None:
        return
    holder = group.static_member_id(instance_id)
    if holder is None:
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown to the group."
        )
    if holder != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member"
            f" {holder}.",
        )


def fenced_epoch(kind: str, belongings: str, why: str) -> ApiError:
    """A member that must rejoin; the type of its group, and what members own there."""
    return ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member {why}. The member must abandon all its {belongings} and rejoin.",
    )


def epoch_mismatch(epoch: int, known: int) -> str:
    """Why a member is fenced that names another epoch than it is in."""
    return (
        f"has a {'greater' if epoch > known else 'smaller'} member epoch ({epoch}) than the one"
        f" known by the group coordinator ({known})"
    )


def unknown_member(group_id: str, member_id: str) -> ApiError:
    """The group has no member of that id."""
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )
