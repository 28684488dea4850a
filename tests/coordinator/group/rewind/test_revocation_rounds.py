"""The partitions that a generation lacks during a rewind, and for how many rebalances."""

from collections.abc import Mapping

import pytest

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.records import GroupMetadata, MemberMetadata
from odradek.coordinator.group.rewind.revocation_rounds import (
    UNCHANGED_ROUNDS_MAX,
    RevocationRounds,
)
from odradek.coordinator.group.step import GroupStep
from odradek.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    encode_assignment,
)
from odradek.protocol.messages.groups import (
    HeartbeatRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from odradek.protocol.messages.partitions import TopicPartitions
from tests.support.consumer_playbook import NO_INTERVAL
from tests.support.subscriptions import encode_subscription

KEYS = {("a", 1)}


def owning(*partitions: int, version: int = 1) -> bytes:
    owned = [TopicPartitions(name="a", partitions=list(partitions))]
    subscription = ConsumerProtocolSubscription(topics=["a"], owned_partitions=owned)
    return encode_subscription(subscription, version)


SILENT = owning(version=0)


def group_of(subscriptions: Mapping[str, bytes]) -> ClassicGroup:
    members = tuple(
        MemberMetadata(
            member_id=member_id,
            rebalance_timeout_ms=1,
            session_timeout_ms=1,
            subscription=subscription,
        )
        for member_id, subscription in subscriptions.items()
    )
    metadata = GroupMetadata(protocol_type="consumer", protocol_name="p", members=members)
    return ClassicGroup.of_metadata("g", metadata)


def sync_of(user_data: bytes | None = None) -> SyncGroupRequest:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(name="a", partitions=[0, 1])],
        user_data=user_data,
    )
    given = SyncGroupRequestAssignment(member_id="m", assignment=encode_assignment(assignment, 0))
    return SyncGroupRequest(group_id="g", member_id="m", assignments=[given])


def heartbeat_of(generation_id: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", member_id="m", generation_id=generation_id)


def assigned(request: SyncGroupRequest) -> list[int]:
    (given,) = request.assignments
    (topic,) = decode_assignment(given.assignment).assigned_partitions
    return list(topic.partitions)


@pytest.fixture
def step() -> GroupStep:
    return GroupStep(0, NO_INTERVAL)


@pytest.fixture
def rounds() -> RevocationRounds:
    return RevocationRounds()


def test_eager_members_get_all_partitions_in_the_first_generation(
    rounds: RevocationRounds, step: GroupStep
) -> None:
    group = group_of({"m": owning(), "n": owning(0)})
    assert assigned(rounds.before_sync(group, sync_of(), KEYS, step)) == [0, 1]
    assert not rounds.has_reduced_assignment("g")


@pytest.mark.parametrize("subscription", [SILENT, owning(1)])
def test_an_owner_gets_a_generation_without_the_partition_first(
    rounds: RevocationRounds, step: GroupStep, subscription: bytes
) -> None:
    group = group_of({"m": subscription})
    assert assigned(rounds.before_sync(group, sync_of(), KEYS, step)) == [0]
    assert rounds.has_reduced_assignment("g")
    rounds.after_sync(group, step)
    assert group.state is not GroupState.STABLE


def test_a_member_with_version_0_is_in_a_generation_with_its_heartbeat(
    rounds: RevocationRounds, step: GroupStep
) -> None:
    group = group_of({"m": SILENT})
    rounds.before_sync(group, sync_of(), KEYS, step)
    reduced_generation_id = group.generation_id
    # The group rebalances before its heartbeat, which has the generation before.
    rounds.on_heartbeat(heartbeat_of(reduced_generation_id - 1))
    assert assigned(rounds.before_sync(group, sync_of(), KEYS, step)) == [0]
    rounds.on_heartbeat(heartbeat_of(reduced_generation_id))
    assert assigned(rounds.before_sync(group, sync_of(), KEYS, step)) == [0, 1]
    # Another rewind begins.
    rounds.forget("g")
    assert assigned(rounds.before_sync(group, sync_of(), KEYS, step)) == [0]


def test_the_next_rebalance_waits_until_all_members_have_synced(
    rounds: RevocationRounds, step: GroupStep
) -> None:
    group = group_of({"m": SILENT})
    rounds.before_sync(group, sync_of(), KEYS, step)
    group.pending_sync.add("m")
    rounds.after_sync(group, step)
    assert rounds.has_reduced_assignment("g")
    group.pending_sync.clear()
    rounds.after_sync(group, step)
    assert not rounds.has_reduced_assignment("g")


def test_a_member_that_keeps_owning_the_partition_is_removed(
    rounds: RevocationRounds, step: GroupStep
) -> None:
    group = group_of({"m": owning(1), "n": owning(0)})
    for _ in range(UNCHANGED_ROUNDS_MAX):
        rounds.before_sync(group, sync_of(), KEYS, step)
    assert group.members.get("m")
    rounds.before_sync(group, sync_of(), KEYS, step)
    assert not group.members.get("m")
    assert group.members.get("n")


def test_an_owner_is_removed_if_the_assignment_cannot_be_changed(
    rounds: RevocationRounds, step: GroupStep
) -> None:
    group = group_of({"m": SILENT, "n": owning(0)})
    rounds.before_sync(group, sync_of(b"tasks"), KEYS, step)
    assert not group.members.get("m")
    assert not rounds.has_reduced_assignment("g")
