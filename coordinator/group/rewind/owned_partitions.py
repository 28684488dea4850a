"""Which members of a classic group go on with partitions that they had: what a rewind must know.

A member that has given up everything before it joined (the eager protocol) says so in its
subscription, and reads committed offsets anew. One that keeps what it had (cooperative, KIP-429)
names it there, and does not. In subscriptions of version 0 neither can be said. So partitions that
are rewound are first left out of everybody's assignment: their owners give them up, as the protocol
wants it, and join again without them. Called by `rewind.rounds`.
"""

from collections.abc import Set as AbstractSet
from typing import TypeAlias

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.protocol.consumer_protocol import (
    VERSION_MAX,
    ConsumerProtocolAssignment,
    ConsumerProtocolPartitions,
    can_name_owned,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.groups import SyncGroupRequest, SyncGroupRequestAssignment

PartitionKeys: TypeAlias = AbstractSet[tuple[str, int]]
"""Partitions by topic and index."""


def owners(group: ClassicGroup, keys: PartitionKeys) -> frozenset[str]:
    """The members that keep one of these partitions, by what they joined with."""
    found = set()
    for member in group.members:
        try:
            subscription = decode_subscription(member.metadata_for(group.protocol_name))
        except ProtocolError:
            # Whatever that is, it has no place for partitions that are kept.
            continue
        if any(
            (owned.topic, index) in keys
            for owned in subscription.owned_partitions
            for index in owned.partitions
        ):
            found.add(member.member_id)
    return frozenset(found)


def members_without_owned_field(group: ClassicGroup) -> frozenset[str]:
    """The members whose subscriptions have no place for partitions that are kept (version 0).

    Most have given up everything, as all members did when that version was new. But from 3.0 on
    kafka-python goes on where it was in a partition that it is given again.
    """
    return frozenset(
        member.member_id
        for member in group.members
        if not can_name_owned(member.metadata_for(group.protocol_name))
    )


def without_partitions(
    group: ClassicGroup, request: SyncGroupRequest, keys: PartitionKeys
) -> SyncGroupRequest | None:
    """The leader's assignments with these partitions left to nobody.

    None if they cannot be left out: an assignment that cannot be read, or one with data of the
    assignor's own, which may count on them (Kafka Streams'). librdkafka gives members back what
    they said of themselves; that counts on nothing.
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
            ConsumerProtocolPartitions(
                topic=topic.topic,
                partitions=[
                    index for index in topic.partitions if (topic.topic, index) not in keys
                ],
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
    return SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=assignments,
    )


def _own_data(group: ClassicGroup, member_id: str) -> bytes | None:
    member = group.members.get(member_id)
    try:
        return (
            None
            if member is None
            else decode_subscription(member.metadata_for(group.protocol_name)).user_data
        )
    except ProtocolError:
        return None
