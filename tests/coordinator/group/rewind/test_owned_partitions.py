"""Owned partitions of members, and assignments without some partitions."""

import pytest

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.classic.records import GroupMetadata, MemberMetadata
from odradek.coordinator.group.rewind.owned_partitions import (
    members_without_owned_field,
    owners,
    without_partitions,
)
from odradek.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    encode_assignment,
)
from odradek.protocol.messages.groups import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.protocol.messages.partitions import TopicPartitions
from tests.support.subscriptions import encode_subscription


def group_of(**subscriptions: bytes) -> ClassicGroup:
    members = tuple(
        MemberMetadata(
            member_id=member_id,
            rebalance_timeout_ms=1,
            session_timeout_ms=1,
            subscription=subscription,
        )
        for member_id, subscription in subscriptions.items()
    )
    return ClassicGroup.of_metadata("g", GroupMetadata(protocol_name="p", members=members))


def owning(*partitions: int, version: int = 1) -> bytes:
    owned = [TopicPartitions(name="a", partitions=list(partitions))]
    return encode_subscription(
        ConsumerProtocolSubscription(topics=["a"], owned_partitions=owned), version
    )


def sync_of(*assignments: bytes) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id="g",
        generation_id=3,
        member_id="0",
        assignments=[
            SyncGroupRequestAssignment(member_id=str(at), assignment=assignment)
            for at, assignment in enumerate(assignments)
        ],
    )


def giving(*partitions: int, user_data: bytes | None = None, version: int = 1) -> bytes:
    assigned = [TopicPartitions(name="a", partitions=list(partitions))]
    return encode_assignment(
        ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data), version
    )


def test_a_member_owns_the_partitions_of_its_subscription() -> None:
    group = group_of(m=owning(0, 1), n=owning(2), o=owning(0, version=0), p=b"nonsense")
    assert owners(group, {("a", 1), ("b", 2)}) == {"m"}
    assert owners(group, {("b", 0)}) == frozenset()


def test_a_subscription_of_version_0_has_no_owned_partitions() -> None:
    group = group_of(m=owning(0), n=owning(2, version=0), o=b"", p=b"nonsense")
    assert members_without_owned_field(group) == {"n"}


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_removed_from_every_assignment(version: int) -> None:
    request = sync_of(giving(0, 1, version=version), giving(2, version=version), b"")
    reduced = without_partitions(group_of(), request, {("a", 1), ("a", 2)})
    assert reduced is not None
    first, second, third = reduced.assignments
    assert [
        list(t.partitions) for t in decode_assignment(first.assignment).assigned_partitions
    ] == [[0]]
    assert first.assignment[:2] == version.to_bytes(2, "big")
    assert decode_assignment(second.assignment).assigned_partitions == []
    assert third.assignment == b""
    assert (reduced.group_id, reduced.generation_id, reduced.member_id) == ("g", 3, "0")


@pytest.mark.parametrize("other", [giving(0, user_data=b"tasks"), b"nonsense"])
def test_an_assignment_with_user_data_of_the_assignor_is_not_changed(other: bytes) -> None:
    assert without_partitions(group_of(), sync_of(giving(1), other), {("a", 1)}) is None


def test_user_data_of_the_subscription_may_stay() -> None:
    """librdkafka's leader sends it back with the assignment."""
    subscription = ConsumerProtocolSubscription(topics=["a"], user_data=b"mine")
    group = group_of(**{"0": encode_subscription(subscription, 1)})
    request = sync_of(giving(0, 1, user_data=b"mine"))
    reduced = without_partitions(group, request, {("a", 1)})
    assert reduced is not None
    assert decode_assignment(reduced.assignments[0].assignment).user_data == b"mine"
    assert without_partitions(group, sync_of(b"", giving(1, user_data=b"mine")), set()) is None
