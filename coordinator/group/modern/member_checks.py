"""Who a member of a newer kind of group is: checks that are the same for all of these kinds.

Called by the modules that let members in, and by `classic_members`.
"""

from typing import Protocol

from odradek.protocol.errors import ApiError, ErrorCode


class StaticMemberTable(Protocol):
    """A group whose members may have instance ids."""

    def static_member_id(self, instance_id: str) -> str | None:
        """Who holds the instance id."""


def check_instance_id(group: StaticMemberTable, member_id: str, instance_id: str | None) -> None:
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
    """A member that must begin anew; `kind` of group, and what members have there."""
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
    """Nobody of that id is in the group."""
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )
