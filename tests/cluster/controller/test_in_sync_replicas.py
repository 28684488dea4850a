"""AlterPartition: the checks and their order; ResignReplicas."""

import pytest

from odradek.cluster.controller import in_sync_replicas
from odradek.cluster.controller.commands import (
    AlterPartition,
    InSyncChange,
    InSyncReplica,
    InSyncReply,
    InSyncResult,
    PartitionsReply,
    ResignReplicas,
)
from odradek.cluster.metadata.image import ConfigResourceType, PartitionImage
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import ControllerHarness, topic_id


def harness_with(*partitions: PartitionImage) -> ControllerHarness:
    harness = ControllerHarness(brokers=4)
    harness.place("t", 1, *partitions)
    return harness


def led_by_one(*in_sync: int) -> PartitionImage:
    return PartitionImage((1, 2, 3), in_sync, 1, 5, 9)


def change(
    *in_sync: int | InSyncReplica,
    partition: int = 0,
    leader_epoch: int = 5,
    partition_epoch: int = 9,
    topic: int = 1,
) -> InSyncChange:
    return InSyncChange(
        topic_id(topic),
        partition,
        leader_epoch,
        partition_epoch,
        tuple(InSyncReplica(r) if isinstance(r, int) else r for r in in_sync),
    )


def alter(
    harness: ControllerHarness, *changes: InSyncChange, broker: int = 1
) -> tuple[InSyncResult, ...]:
    epoch = harness.image.brokers[broker].broker_epoch
    reply = harness.do(AlterPartition(broker, epoch, changes))
    assert isinstance(reply, InSyncReply)
    return reply.results


def code(harness: ControllerHarness, wanted: InSyncChange, broker: int = 1) -> int:
    before = harness.image
    (result,) = alter(harness, wanted, broker=broker)
    if result.error_code:
        assert result.state is None
        assert harness.image is before
    return result.error_code


def test_a_leader_shrinks_and_widens_its_isr() -> None:
    harness = harness_with(led_by_one(1, 2, 3))
    (result,) = alter(harness, change(3, 1))
    assert result.state == harness.partition("t")
    assert (result.state.in_sync_replicas, result.state.partition_epoch) == ((1, 3), 10)
    assert result.state.leader_epoch == 5, "a change of the ISR is no change of leader"
    (result,) = alter(harness, change(1, 2, 3, partition_epoch=10))
    assert harness.partition("t").in_sync_replicas == (1, 2, 3)


def test_an_unchanged_isr_gets_a_new_partition_epoch() -> None:
    harness = harness_with(led_by_one(1, 2))
    (result,) = alter(harness, change(2, 1))
    assert result.state == PartitionImage((1, 2, 3), (1, 2), 1, 5, 10)
    assert harness.partition("t") == result.state
    assert code(harness, change(1, 2, 3)) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (change(1, topic=9), ErrorCode.UNKNOWN_TOPIC_ID),
        (change(1, partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (change(1, partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (change(1, leader_epoch=6), ErrorCode.NOT_CONTROLLER),
        (change(1, partition_epoch=10), ErrorCode.NOT_CONTROLLER),
        (change(1, leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (change(1, leader_epoch=4, partition_epoch=8), ErrorCode.FENCED_LEADER_EPOCH),
        (change(1, partition_epoch=8), ErrorCode.INVALID_UPDATE_VERSION),
        (change(), ErrorCode.INVALID_REQUEST),
        (change(2, 3), ErrorCode.INVALID_REQUEST),
        (change(1, 0), ErrorCode.INVALID_REQUEST),
        (change(1, 1), ErrorCode.INVALID_REQUEST),
    ],
    ids=[
        "no such topic",
        "no such partition",
        "negative partition",
        "leader epoch to come",
        "partition epoch to come",
        "leader epoch that is over",
        "the leader epoch counts before the partition epoch",
        "partition epoch that is over",
        "nobody",
        "without the leader",
        "no replica",
        "twice",
    ],
)
def test_isr_changes_are_refused_with_these_codes(
    wanted: InSyncChange, expected: ErrorCode
) -> None:
    assert code(harness_with(led_by_one(1, 2)), wanted) == expected


def test_only_the_leader_changes_its_isr() -> None:
    assert (
        code(harness_with(led_by_one(1, 2)), change(1, 2, 3), broker=2) == ErrorCode.INVALID_REQUEST
    )


def test_a_fenced_broker_cannot_join_an_isr() -> None:
    harness = harness_with(led_by_one(1))
    harness.fence(2)
    assert code(harness, change(1, 2)) == ErrorCode.INELIGIBLE_REPLICA
    assert code(harness, change(1, 3)) == ErrorCode.NONE


def test_a_broker_in_controlled_shutdown_cannot_join_an_isr() -> None:
    harness = ControllerHarness(brokers=0)
    harness.activate()
    harness.join(1, 2, 3)
    harness.place("t", 1, led_by_one(1, 3))
    harness.place("u", 2, PartitionImage((2,), (2,), 2))
    harness.send_heartbeat(2, wants_shut_down=True)
    assert code(harness, change(1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_with_an_old_broker_epoch_cannot_join_an_isr() -> None:
    # KIP-903: it may have lost since then what the leader believes it to have.
    harness = harness_with(led_by_one(1))
    epoch = harness.image.brokers[2].broker_epoch
    assert code(harness, change(1, InSyncReplica(2, epoch - 1))) == ErrorCode.INELIGIBLE_REPLICA
    assert code(harness, change(1, InSyncReplica(2, epoch))) == ErrorCode.NONE


def test_a_leader_must_use_its_current_broker_epoch() -> None:
    harness = harness_with(led_by_one(1, 2))
    with pytest.raises(ApiError) as caught:
        harness.do(AlterPartition(1, 1, (change(1),)))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(ApiError) as caught:
        harness.do(AlterPartition(9, 1, (change(1),)))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_each_partition_has_its_own_result_in_one_entry() -> None:
    harness = harness_with(led_by_one(1, 2), led_by_one(1, 2), led_by_one(1, 2))
    offset = harness.image.offset
    results = alter(
        harness,
        change(1, partition=0),
        change(1, partition=1, leader_epoch=4),
        change(1, 2, 3, partition=2),
        change(1, 2, partition=0),
    )
    assert [result.error_code for result in results] == [
        ErrorCode.NONE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NONE,
        ErrorCode.INVALID_UPDATE_VERSION,
    ]
    assert [p.in_sync_replicas for p in harness.partitions("t")] == [(1,), (1, 2), (1, 2, 3)]
    assert harness.image.offset == offset + 1


def test_changes_beyond_the_limit_are_not_attempted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_sync_replicas, "CHANGES_MAX", 1)
    harness = harness_with(led_by_one(1, 2), led_by_one(1, 2))
    results = alter(harness, change(1), change(1, partition=1))
    assert [result.error_code for result in results] == [0, ErrorCode.OPERATION_NOT_ATTEMPTED]


def test_an_isr_below_the_minimum_keeps_the_others_eligible() -> None:
    harness = harness_with(led_by_one(1, 2))
    harness.set_config(ConfigResourceType.TOPIC, "t", min_insync_replicas="2")
    harness.with_elr()
    alter(harness, change(1))
    assert harness.partition("t").elr == (2,)
    alter(harness, change(1, 3, partition_epoch=10))
    assert harness.partition("t").elr == ()


def test_completing_a_reassignment_may_elect_another_leader() -> None:
    moving = PartitionImage((2, 1), (1,), 1, 5, 9, adding_replicas=(2,), removing_replicas=(1,))
    harness = harness_with(moving)
    (result,) = alter(harness, change(1, 2))
    assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = harness.partition("t")
    assert result.state == partition
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((2,), 2, 6)


def resign(harness: ControllerHarness, broker: int, *partitions: tuple[int, int]) -> None:
    epoch = harness.image.brokers[broker].broker_epoch
    named = tuple((topic_id(topic), partition) for topic, partition in partitions)
    assert harness.do(ResignReplicas(broker, epoch, named)) == PartitionsReply(())


def test_a_resigning_leader_leaves_the_isr_and_another_replica_leads() -> None:
    harness = harness_with(led_by_one(1, 2, 3))
    resign(harness, 1, (1, 0))
    after = harness.partition("t")
    assert (after.leader, after.in_sync_replicas) == (2, (2, 3))
    assert (after.leader_epoch, after.partition_epoch) == (6, 10)


def test_a_resigning_follower_leaves_the_isr() -> None:
    harness = harness_with(led_by_one(1, 2, 3))
    resign(harness, 3, (1, 0))
    after = harness.partition("t")
    assert (after.leader, after.in_sync_replicas, after.leader_epoch) == (1, (1, 2), 5)
    before = harness.image
    resign(harness, 3, (1, 0))
    assert harness.image is before, "it has resigned already"


def test_the_only_member_of_an_isr_does_not_resign() -> None:
    harness = harness_with(led_by_one(1), led_by_one(1, 3))
    harness.fence(3)
    before = harness.image
    resign(harness, 1, (1, 0), (1, 1), (1, 7), (9, 0))
    assert harness.image is before, "nobody else could lead, or there is no such partition"


def test_a_resignation_with_an_old_epoch_is_refused() -> None:
    harness = harness_with(led_by_one(1, 2, 3))
    with pytest.raises(ApiError) as refused:
        harness.do(
            ResignReplicas(1, harness.image.brokers[1].broker_epoch - 1, ((topic_id(1), 0),))
        )
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
