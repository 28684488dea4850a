"""The owned partitions of members of classic groups, for rewinds.

A member that revokes all partitions before it joins (eager) has no owned partitions in its
subscription, and fetches committed offsets again. A cooperative member (KIP-429) keeps its
partitions, names them there, and does not. Subscriptions of version 0 cannot tell. So rewound
partitions are first left out of the assignment: their owners revoke them, as the protocol requires,
and join again without them. Called by `revocation_rounds`.
"""

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeAlias

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.protocol.consumer_protocol import (
    VERSION_MAX,
    ConsumerProtocolAssignment,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    has_owned_partitions,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.groups import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.protocol.messages.partitions import TopicPartitions

PartitionKeys: TypeAlias = AbstractSet[tuple[str, int]]
"""Partitions by topic and index."""


def owners(group: ClassicGroup, keys: PartitionKeys) -> frozenset[str]:
    """The members whose subscriptions own one of these partitions."""
    found = set()
    for member in group.members:
        try:
            subscription = decode_subscription(member.metadata_for(group.protocol_name))
        except ProtocolError:
            # It is not a subscription, so it has no owned partitions.
            continue
        if any(
            (owned.name, index) in keys
            for owned in subscription.owned_partitions
            for index in owned.partitions
        ):
            found.add(member.member_id)
    return frozenset(found)


def members_without_owned_field(group: ClassicGroup) -> frozenset[str]:
    """The members whose subscriptions have no field for owned partitions (version 0).

    Most have revoked all partitions. But kafka-python, from 3.0 on, keeps its position in a
    partition that is assigned to it again.
    """
    return frozenset(
        member.member_id
        for member in group.members
        if not has_owned_partitions(member.metadata_for(group.protocol_name))
    )


def without_partitions(
    group: ClassicGroup, request: SyncGroupRequest, keys: PartitionKeys
) -> SyncGroupRequest | None:
    """The leader's assignments without these partitions.

    None if they cannot be left out: if an assignment cannot be decoded, or has user data of the
    assignor, which may depend on them (Kafka Streams). librdkafka returns the user data of the
    subscriptions, which does not.
    """
    assignments = []
    for given in request.assignments:
        if not given.assignment:
            assignments.append(given)
            continue
        try:
            assignment = decode_assignment(given.assignment)
        except ProtocolError:
            return None
        if assignment.user_data and assignment.user_data != _own_data(group, given.member_id):
            return None
        left = [
            TopicPartitions(
                name=topic.name,
                partitions=[index for index in topic.partitions if (topic.name, index) not in keys],
            )
            for topic in assignment.assigned_partitions
        ]
        reduced = ConsumerProtocolAssignment(
            assigned_partitions=[topic for topic in left if topic.partitions],
            user_data=assignment.user_data,
        )
        version = int.from_bytes(given.assignment[:2], "big")
        encoded = encode_assignment(reduced, min(version, VERSION_MAX))
        assignments.append(
            SyncGroupRequestAssignment(member_id=given.member_id, assignment=encoded)
        )
    return replace(request, assignments=assignments)


def _own_data(group: ClassicGroup, member_id: str) -> bytes | None:
    member = group.members.get(member_id)
    if member is None:
        return None
    try:
        return decode_subscription(member.metadata_for(group.protocol_name)).user_data
    except ProtocolError:
        return None
