"""Reassignments: started, redirected, cancelled, completed, listed (KIP-455)."""

import pytest

from odradek.cluster.controller.commands import (
    AlterPartition,
    AlterPartitionReassignments,
    InSyncChange,
    InSyncReplica,
    PartitionsReply,
    Reassignment,
)
from odradek.cluster.controller.reassignment import ongoing_reassignments
from odradek.cluster.metadata.image import ConfigResourceType, PartitionImage
from odradek.protocol.errors import ErrorCode
from tests.support.controller_harness import ControllerHarness, topic_id


def harness_with(*partitions: PartitionImage, brokers: int = 5) -> ControllerHarness:
    harness = ControllerHarness(brokers=brokers)
    harness.place("t", 1, *partitions)
    return harness


def reassign(
    harness: ControllerHarness,
    replicas: tuple[int, ...] | None,
    *,
    partition: int = 0,
    topic: str = "t",
    may_change_factor: bool = True,
) -> int:
    command = AlterPartitionReassignments(
        (Reassignment(topic, partition, replicas),), may_change_factor
    )
    reply = harness.do(command)
    assert isinstance(reply, PartitionsReply)
    (result,) = reply.results
    assert (result.topic, result.partition) == (topic, partition)
    assert bool(result.error_message) == bool(result.error_code)
    return result.error_code


def in_sync(harness: ControllerHarness, *replicas: int) -> None:
    """The leader changes the ISR."""
    state = harness.partition("t")
    change = InSyncChange(
        topic_id(1),
        0,
        state.leader_epoch,
        state.partition_epoch,
        tuple(InSyncReplica(replica) for replica in replicas),
    )
    epoch = harness.image.brokers[state.leader].broker_epoch
    harness.do(AlterPartition(state.leader, epoch, (change,)))


def shape(partition: PartitionImage) -> tuple[tuple[int, ...], ...]:
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def test_a_replica_moves_when_the_new_one_is_in_sync() -> None:
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    assert reassign(harness, (2, 1)) == ErrorCode.NONE
    moving = harness.partition("t")
    assert shape(moving) == ((2, 1, 0), (2,), (0,))
    assert (moving.leader, moving.in_sync_replicas) == (0, (0, 1))
    in_sync(harness, 0, 1, 2)
    done = harness.partition("t")
    assert shape(done) == ((2, 1), (), ())
    assert (done.leader, done.in_sync_replicas) == (2, (2, 1))


def test_no_replica_is_removed_before_all_added_ones_are_in_sync() -> None:
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    reassign(harness, (2, 3))
    in_sync(harness, 0, 1, 2)
    assert shape(harness.partition("t")) == ((2, 3, 0, 1), (2, 3), (0, 1))
    in_sync(harness, 0, 1, 2, 3)
    assert shape(harness.partition("t")) == ((2, 3), (), ())


def test_removing_replicas_completes_at_once() -> None:
    harness = harness_with(PartitionImage((0, 1, 2), (0, 1, 2), 0))
    assert reassign(harness, (1,)) == ErrorCode.NONE
    partition = harness.partition("t")
    assert shape(partition) == ((1,), (), ())
    assert (partition.leader, partition.leader_epoch, partition.in_sync_replicas) == (1, 1, (1,))


def test_the_last_in_sync_replica_is_not_removed() -> None:
    harness = harness_with(PartitionImage((0, 1), (0,), 0))
    reassign(harness, (1,))
    assert shape(harness.partition("t")) == ((1, 0), (), (0,))
    in_sync(harness, 0, 1)
    assert shape(harness.partition("t")) == ((1,), (), ())


def test_another_order_of_replicas_changes_the_preferred_leader() -> None:
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    assert reassign(harness, (1, 0)) == ErrorCode.NONE
    assert (harness.partition("t").replicas, harness.partition("t").leader) == ((1, 0), 0)


def test_the_current_replicas_as_target_make_no_record() -> None:
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    written = len(harness.records)
    assert reassign(harness, (0, 1)) == ErrorCode.NONE
    assert len(harness.records) == written


def test_a_reassignment_in_progress_may_be_redirected() -> None:
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    reassign(harness, (2, 3))
    in_sync(harness, 0, 1, 2)
    assert reassign(harness, (2, 4)) == ErrorCode.NONE
    assert shape(harness.partition("t")) == ((2, 4, 3, 0, 1), (2, 4), (3, 0, 1))
    in_sync(harness, 0, 1, 2, 4)
    assert shape(harness.partition("t")) == ((2, 4), (), ())


def test_a_redirected_reassignment_still_waits_for_added_replicas() -> None:
    harness = harness_with(PartitionImage((0,), (0,), 0))
    reassign(harness, (0, 1))
    reassign(harness, (1, 2))
    in_sync(harness, 0, 2)
    assert shape(harness.partition("t"))[1] == (1, 2), "1 has not caught up yet"


def test_a_cancelled_reassignment_restores_the_replicas() -> None:
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    reassign(harness, (2, 1))
    assert reassign(harness, None) == ErrorCode.NONE
    partition = harness.partition("t")
    assert shape(partition) == ((1, 0), (), ())
    assert (partition.leader, partition.in_sync_replicas) == (0, (0, 1))


def test_cancelling_elects_a_leader_if_an_added_replica_leads() -> None:
    harness = harness_with(PartitionImage((2, 3, 0), (2, 0), 2, 5, 9, (), (), (2, 3), (0,)))
    assert reassign(harness, None) == ErrorCode.NONE
    partition = harness.partition("t")
    assert (partition.leader, partition.leader_epoch, partition.in_sync_replicas) == (0, 6, (0,))


def test_cancelling_is_refused_if_only_added_replicas_are_in_sync() -> None:
    only_added = PartitionImage((2, 0), (2,), 2, 5, 9, (), (), (2,), (0,))
    harness = harness_with(only_added)
    assert reassign(harness, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert harness.partition("t") == only_added
    harness.set_config(ConfigResourceType.TOPIC, "t", unclean_leader_election_enable="true")
    assert reassign(harness, None) == ErrorCode.NONE
    assert (harness.partition("t").leader, harness.partition("t").in_sync_replicas) == (0, (0,))


def test_cancelling_without_a_reassignment_is_an_error() -> None:
    harness = harness_with(PartitionImage((0,), (0,), 0))
    assert reassign(harness, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(
    ("topic", "partition"), [("nope", 0), ("t", 1), ("t", -1)], ids=["topic", "number", "negative"]
)
def test_an_unknown_partition_is_not_reassigned(topic: str, partition: int) -> None:
    harness = harness_with(PartitionImage((0,), (0,), 0))
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(harness, (1,), topic=topic, partition=partition) == code
    assert reassign(harness, None, topic=topic, partition=partition) == code


@pytest.mark.parametrize("replicas", [(), (1, 1), (9,), (-1,)], ids=str)
def test_an_invalid_target_is_refused(replicas: tuple[int, ...]) -> None:
    harness = harness_with(PartitionImage((0,), (0,), 0))
    assert reassign(harness, replicas) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_replica_may_be_assigned_to_a_fenced_broker() -> None:
    harness = harness_with(PartitionImage((0,), (0,), 0))
    harness.fence(3)
    assert reassign(harness, (3,)) == ErrorCode.NONE
    assert shape(harness.partition("t")) == ((3, 0), (3,), (0,))


def test_the_replication_factor_changes_only_if_it_may() -> None:
    # B.11: v1 AllowReplicationFactorChange=false refuses size changes (38).
    harness = harness_with(PartitionImage((0, 1), (0, 1), 0))
    code = ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(harness, (0, 1, 2), may_change_factor=False) == code
    assert reassign(harness, (1, 2), may_change_factor=False) == ErrorCode.NONE
    assert reassign(harness, (3, 4), may_change_factor=False) == ErrorCode.NONE, "of the original"
    assert reassign(harness, (0, 1, 2), may_change_factor=True) == ErrorCode.NONE


def test_each_entry_has_its_own_result_in_their_order() -> None:
    harness = harness_with(*(PartitionImage((0,), (0,), 0) for _ in range(3)))
    command = AlterPartitionReassignments(
        (
            Reassignment("t", 0, (1,)),
            Reassignment("t", 1, (9,)),
            Reassignment("t", 2, (1,)),
            Reassignment("t", 2, (2,)),
        )
    )
    offset = harness.image.offset
    reply = harness.do(command)
    assert isinstance(reply, PartitionsReply)
    assert [(r.partition, r.error_code) for r in reply.results] == [
        (0, 0),
        (1, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (2, 0),
        (2, 0),
    ]
    assert [p.adding_replicas for p in harness.partitions("t")] == [(1,), (), (2,)]
    assert harness.image.offset == offset + 1


def test_reassignments_in_progress_are_listed() -> None:
    harness = harness_with(*(PartitionImage((0,), (0,), 0) for _ in range(3)))
    harness.place("u", 2, PartitionImage((0,), (0,), 0))
    reassign(harness, (1,), partition=1)
    reassign(harness, (2,), topic="u")

    def listed(wanted: dict[str, list[int]] | None) -> list[tuple[str, int, tuple[int, ...]]]:
        return [
            (entry.topic.name, entry.partition, entry.state.adding_replicas)
            for entry in ongoing_reassignments(harness.image, wanted)
        ]

    assert listed(None) == [("t", 1, (1,)), ("u", 0, (2,))]
    assert listed({"t": [0, 1, 1, 7, -1], "nope": [0]}) == [("t", 1, (1,))]
    assert listed({}) == []
    reassign(harness, None, partition=1)
    assert listed(None) == [("u", 0, (2,))]
