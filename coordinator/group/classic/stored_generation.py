"""The stored generation of a classic group while its next one forms.

A generation is stored with the leader's SyncGroup. Members that leave before that, whose sessions
expire, or that restart with a new id (KIP-345), would come back if the coordinator moved: the
others would wait for the missing until their sessions expire, and a restarted static member would
be fenced. Apache Kafka's next coordinator does so. Here the stored generation is written again,
with the members that are left and their newest ids. It has no leader, which means that a rebalance
was under way: the next coordinator continues it.

The record is written with the response, in larger groups within LARGE_GROUP_DELAY_MS: a record has
all members, and many may leave at once. Called by `groups`.
"""

from typing import Final

import msgspec

from odradek.coordinator.group.classic.members import ClassicMembers
from odradek.coordinator.group.classic.records import GroupMetadata, MemberMetadata

LARGE_GROUP_SIZE: Final = 100
LARGE_GROUP_DELAY_MS: Final = 1_000


def is_rebalancing(stored: GroupMetadata) -> bool:
    """Whether the next generation was forming when this one was written."""
    return bool(stored.members) and stored.leader_id is None


def remaining_generation(stored: GroupMetadata, members: ClassicMembers) -> GroupMetadata | None:
    """The stored generation with the members that are left; None if it has no others."""
    remaining = tuple(
        known for member in stored.members if (known := _remaining(member, members)) is not None
    )
    if remaining == stored.members:
        return None
    return msgspec.structs.replace(
        stored,
        leader_id=None,
        protocol_name=stored.protocol_name if remaining else None,
        members=remaining,
    )


def _remaining(member: MemberMetadata, members: ClassicMembers) -> MemberMetadata | None:
    """The member with its newest id, None if it is gone."""
    if member.group_instance_id is None:
        return member if member.member_id in members else None
    member_id = members.static_member_id(member.group_instance_id)
    if member_id is None or member_id == member.member_id:
        return None if member_id is None else member
    return msgspec.structs.replace(member, member_id=member_id)
