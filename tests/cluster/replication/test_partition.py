"""A partition replica: leader checks, ISR and high watermark."""

import random

import pytest

from odradek.cluster.metadata.image import PartitionImage
from odradek.cluster.replication.partition import (
    PartitionReplica,
    check_leader,
    check_read,
    has_enough_in_sync,
)
from odradek.protocol.errors import ErrorCode


def image(
    *in_sync: int, leader: int = 1, epoch: int = 5, replicas: tuple[int, ...] = (1, 2, 3)
) -> PartitionImage:
    return PartitionImage(replicas, in_sync or replicas, leader, epoch)


ALONE = PartitionImage((1,), (1,), 1, 5)


def replica(state: PartitionImage, *, min_isr: int = 1, broker: int = 1) -> PartitionReplica:
    return PartitionReplica(broker, state, min_insync_replicas=min_isr)


@pytest.mark.parametrize(
    ("broker", "epoch", "code"),
    [
        (1, -1, ErrorCode.NONE),
        (1, 5, ErrorCode.NONE),
        (1, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (1, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (2, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (2, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_clients_epoch_is_checked_before_the_leader(
    broker: int, epoch: int, code: ErrorCode
) -> None:
    # KIP-320: a client with an old epoch must refresh, one with a newer epoch must wait for us.
    assert check_leader(image(), broker, epoch) is code


def test_a_partition_without_leader_has_no_leader_on_any_broker() -> None:
    assert check_leader(image(leader=-1), 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("broker", "epoch", "in_sync", "code"),
    [
        (1, 5, (1, 2), ErrorCode.NONE),
        (2, -1, (1, 2), ErrorCode.NONE),
        (2, 4, (1, 2), ErrorCode.FENCED_LEADER_EPOCH),
        (2, 6, (1, 2), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (3, 5, (1, 2), ErrorCode.OFFSET_NOT_AVAILABLE),
        (4, 5, (1, 2), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_consumers_may_read_from_followers_in_sync(
    broker: int, epoch: int, in_sync: tuple[int, ...], code: ErrorCode
) -> None:
    assert check_read(image(*in_sync), broker, epoch, may_follow=True) is code
    if broker != 1 and code not in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH):
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert check_read(image(*in_sync), broker, epoch, may_follow=False) is code


def test_without_followers_the_high_watermark_is_the_log_end() -> None:
    alone = replica(ALONE)
    assert alone.log_appended(7) == 7
    assert alone.check_appended(7) is ErrorCode.NONE


def test_a_partition_with_one_replica_needs_only_this_one() -> None:
    # A Kafka 4.3.1 accepts acks=all on a topic of replication factor 1 with min.insync.replicas=2.
    assert has_enough_in_sync(ALONE, 2)
    assert replica(ALONE, min_isr=2).log_appended(3) == 3
    assert not has_enough_in_sync(image(1), 2)


def test_the_high_watermark_is_the_smallest_end_in_the_isr() -> None:
    leader = replica(image(1, 2), min_isr=2)
    assert leader.log_appended(10) == 0
    assert leader.follower_fetched(2, 6) == 6
    assert leader.follower_fetched(3, 1) == 6, "3 is not in sync and holds nobody back"
    assert leader.check_appended(6) is ErrorCode.NONE
    assert leader.check_appended(7) is None
    assert leader.follower_fetched(2, 10) == 10


def test_another_broker_does_not_move_the_high_watermark() -> None:
    leader = replica(image(1, 2))
    leader.log_appended(10)
    assert leader.follower_fetched(9, 10) == 0


def test_an_isr_that_shrank_below_the_minimum_fails_the_append() -> None:
    # B.1: NOT_ENOUGH_REPLICAS_AFTER_APPEND (20).
    leader = replica(image(1, 2), min_isr=2)
    leader.log_appended(10)
    assert leader.check_appended(10) is None
    assert leader.update(image(1), min_insync_replicas=2) == 0
    assert leader.check_appended(10) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert leader.update(image(1), min_insync_replicas=1) == 10
    assert leader.check_appended(10) is ErrorCode.NONE


def test_waiting_appends_fail_when_the_lead_is_lost() -> None:
    leader = replica(image(1, 2))
    leader.log_appended(10)
    leader.update(image(1, 2, leader=2, epoch=6), min_insync_replicas=1)
    assert leader.check_appended(10) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_epoch_drops_the_reported_offsets() -> None:
    leader = replica(image(1, 2))
    leader.follower_fetched(2, 8)
    leader.update(image(1, 2, epoch=6), min_insync_replicas=1)
    assert leader.log_appended(8) == 0


def test_a_follower_commits_nothing() -> None:
    follower = replica(image(), broker=2)
    assert follower.log_appended(5) == 0
    assert follower.check_appended(5) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("seed", range(30))
def test_the_high_watermark_keeps_its_invariants(seed: int) -> None:
    chance = random.Random(seed)
    leader = replica(image(1, 2, 3), min_isr=chance.randint(1, 3))
    log_end, reached = 0, {2: 0, 3: 0}
    for step in range(200):
        before = leader.high_watermark
        match chance.randrange(3):
            case 0:
                log_end += chance.randrange(4)
                leader.log_appended(log_end)
            case 1:
                follower = chance.choice([2, 3])
                reached[follower] = chance.randint(reached[follower], log_end)
                leader.follower_fetched(follower, reached[follower])
            case _:
                in_sync = [1] + [node for node in (2, 3) if chance.random() < 0.7]
                caught_up = [
                    node for node in in_sync if node == 1 or reached[node] >= leader.high_watermark
                ]
                leader.update(image(*caught_up), min_insync_replicas=chance.randint(1, 3))
        after = leader.high_watermark
        assert before <= after <= log_end, (seed, step)
        for node in leader.image.in_sync_replicas:
            assert node == 1 or reached[node] >= after, (seed, step)
