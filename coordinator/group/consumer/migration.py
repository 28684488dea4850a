"""Conversion of a group with members between the classic and the consumer protocol (KIP-848).

Upgrade: a member of the consumer protocol joins a classic group. The classic members become members
of a consumer group, with the generation as epoch and with their assignments; they speak the classic
protocol (`classic_members`) until each of them is restarted.
Downgrade: the last member of the consumer protocol leaves. The others become a classic group, with
the group epoch as generation, and must join again.

Either conversion is one atomic write: the records of one type, and tombstones for the other. All
functions are pure. Called by `groups` and `classic_members`.
"""

from collections.abc import Collection

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.classic.members import ClassicGroupMember
from odradek.coordinator.group.classic.records import GroupMetadata, MemberMetadata
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import (
    ClassicMemberMetadata,
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
)
from odradek.coordinator.group.modern.records import (
    GroupEpoch,
    MemberState,
    ModernRecord,
    TargetEpoch,
)
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.topics import Partitions, TopicCatalog
from odradek.coordinator.timeline import Timeline
from odradek.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.types import Uuid

ASSIGNMENT_VERSION = 0
"""All versions of an assignment have the same layout, and all clients read version 0."""


def can_upgrade(classic: ClassicGroup, settings: GroupSettings) -> bool:
    """Whether the classic group may become a consumer group with its members."""
    return (
        settings.consumer.migration_policy.allows_upgrade
        and classic.uses_consumer_protocol
        and len(classic.members) <= settings.consumer.max_size
    )


def consumer_group_of(
    classic: ClassicGroup, topics: TopicCatalog
) -> tuple[ConsumerGroup, list[ModernRecord]]:
    """The classic group as a consumer group, and the records that create it.

    The group is as the records will make it, and in no table yet. ProtocolError if a member's
    subscription or assignment cannot be read.
    """
    group_id, epoch = classic.group_id, classic.generation_id
    records: list[ModernRecord] = []
    owned_by = {member.member_id: _assigned(member, topics) for member in classic.members}
    records += (
        ConsumerMemberRecord(group_id, member.member_id, _consumer_member(member))
        for member in classic.members
    )
    records.append(ConsumerEpochRecord(group_id, GroupEpoch(epoch)))
    records += (ConsumerTargetRecord(group_id, id_, owned) for id_, owned in owned_by.items())
    records.append(ConsumerTargetEpochRecord(group_id, TargetEpoch(epoch)))
    for member_id, owned in owned_by.items():
        assigned = {
            topic_id: dict.fromkeys(sorted(indexes), epoch) for topic_id, indexes in owned.items()
        }
        current = ConsumerCurrentAssignment(epoch, epoch, MemberState.STABLE, assigned, {})
        records.append(ConsumerCurrentRecord(group_id, member_id, current))
    group = ConsumerGroup(group_id, Timeline())
    for record in records:
        group.replay(record)
    return group, records


def _consumer_member(member: ClassicGroupMember) -> ConsumerGroupMember:
    subscription = decode_subscription(member.metadata_for(member.protocols[0][0]))
    return ConsumerGroupMember(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata.of(member.session_timeout_ms, member.protocols),
    )


def _assigned(member: ClassicGroupMember, topics: TopicCatalog) -> Partitions:
    if not member.assignment:
        return {}
    return by_id(decode_assignment(member.assignment).assigned_partitions, topics)


def by_id(partitions: Collection[TopicPartitions], topics: TopicCatalog) -> Partitions:
    """Partitions by topic id, of those named by topic; deleted topics are left out."""
    found: dict[Uuid, frozenset[int]] = {}
    for named in partitions:
        topic = topics.topic(named.name)
        if topic is not None and named.partitions:
            known = found.get(topic.topic_id, frozenset())
            found[topic.topic_id] = known | frozenset(named.partitions)
    return found


def assignment_bytes(current: ConsumerCurrentAssignment, topics: TopicCatalog) -> bytes:
    """The assignment that SyncGroup returns to a classic member."""
    named = [
        TopicPartitions(name=name, partitions=partitions)
        for _, name, partitions in topics.named(current.assigned)
    ]
    named.sort(key=lambda topic: topic.name)
    assignment = ConsumerProtocolAssignment(assigned_partitions=named)
    return encode_assignment(assignment, ASSIGNMENT_VERSION)


def classic_generation_of(
    group: ConsumerGroup, leaving: Collection[str], topics: TopicCatalog, now_ms: int
) -> GroupMetadata:
    """The consumer group as a classic group's generation, without the leaving members.

    All remaining members must speak the classic protocol.
    """
    remaining = [(id_, member) for id_, member in group.members() if id_ not in leaving]
    protocol_name = _common_protocol([member for _, member in remaining])
    members = []
    for member_id, member in remaining:
        assert member.classic is not None
        members.append(
            MemberMetadata(
                member_id=member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                subscription=member.classic.by_name()[protocol_name],
                assignment=assignment_bytes(group.current(member_id), topics),
            )
        )
    return GroupMetadata(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation_id=group.epoch,
        protocol_name=protocol_name,
        leader_id=members[0].member_id,
        state_timestamp_ms=now_ms,
        members=tuple(members),
    )


def _common_protocol(members: list[ConsumerGroupMember]) -> str:
    """The first of the first member's protocols that all members support; JoinGroup has checked
    that there is one."""
    offers = [member.classic.by_name() for member in members if member.classic is not None]
    return next(name for name in offers[0] if all(name in offer for offer in offers))
