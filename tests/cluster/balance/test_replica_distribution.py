"""The replicas of a plan: where they are, which can move, and which moves best."""

import random

from odradek.cluster.balance.model import Partition, RegisteredBroker
from odradek.cluster.balance.replica_distribution import ReplicaDistribution, target_replicas


def partition(
    number: int,
    *replicas: int,
    size: int = 1,
    topic: str = "t",
    in_sync: tuple[int, ...] | None = None,
) -> Partition:
    return Partition(
        topic=topic,
        number=number,
        replicas=replicas,
        in_sync=replicas if in_sync is None else in_sync,
        leader=replicas[0],
        byte_count=size,
    )


def nodes(count: int, racks: str = "") -> list[RegisteredBroker]:
    return [RegisteredBroker(node_id=n, rack=racks[n] if racks else None) for n in range(count)]


def test_counts_are_right_after_any_moves() -> None:
    chance = random.Random(3)
    cluster = nodes(5)
    partitions = [
        partition(n, *chance.sample(range(5), 2), size=chance.randint(0, 9)) for n in range(40)
    ]
    distribution = ReplicaDistribution(cluster, partitions)
    for _ in range(300):
        index = chance.randrange(40)
        source = chance.choice(distribution.replicas[index])
        target = chance.choice([n for n in range(5) if n not in distribution.replicas[index]])
        # Asked for before, so that it is kept up and not made anew.
        list(distribution.movable_replicas(chance.randrange(5), target))
        distribution.move(index, source, target)
    for source in range(5):
        held = [n for n in range(40) if source in distribution.replicas[n]]
        assert distribution.counts[source] == len(held)
        assert distribution.bytes[source] == sum(partitions[n].byte_count for n in held)
        for target in set(range(5)) - {source}:
            may_go = {n for n in held if target not in distribution.replicas[n]}
            found = list(distribution.movable_replicas(source, target))
            assert set(found) == may_go
            sizes = [partitions[n].byte_count for n in found]
            assert sizes == sorted(sizes)


def test_a_replica_keeps_its_place_in_the_order_of_preference() -> None:
    distribution = ReplicaDistribution(nodes(4), [partition(0, 0, 1, 2)])
    distribution.move(0, 1, 3)
    assert distribution.replicas == [(0, 3, 2)]


def test_the_replica_of_the_closest_size_below_the_limit_moves() -> None:
    distribution = ReplicaDistribution(
        nodes(2), [partition(n, 0, size=size) for n, size in enumerate((1, 50, 90))]
    )
    assert distribution.best_replica(0, 1, wanted=60, limit=60) == 1
    assert distribution.best_replica(0, 1, wanted=80, limit=100) == 2
    assert distribution.best_replica(0, 1, wanted=40, limit=49) == 0


def test_the_smallest_replica_moves_if_all_are_above_the_limit() -> None:
    distribution = ReplicaDistribution(
        nodes(2), [partition(n, 0, size=size) for n, size in enumerate((70, 50, 90))]
    )
    assert distribution.best_replica(0, 1, wanted=10, limit=10) == 1


def test_of_equal_sizes_the_topic_least_present_at_the_target_moves() -> None:
    held = [partition(n, 0, topic="a") for n in range(3)] + [partition(0, 0, topic="b")]
    there = [partition(3, 1, topic="a"), partition(4, 1, topic="a"), partition(5, 1, topic="a")]
    distribution = ReplicaDistribution(nodes(2), [*held, *there])
    assert distribution.best_replica(0, 1, wanted=1, limit=1) == 3


def test_replicas_already_moved_by_the_plan_are_preferred() -> None:
    distribution = ReplicaDistribution(nodes(3), [partition(0, 1), partition(1, 0)])
    distribution.move(1, 0, 1)
    assert distribution.copy_cost(1, 1, 2) == 0
    assert distribution.copy_cost(1, 1, 0) == -1
    assert distribution.copy_cost(0, 1, 2) == 1
    assert distribution.best_replica(1, 2, wanted=1, limit=1) == 1


def test_moves_never_worsen_the_spread_over_racks() -> None:
    distribution = ReplicaDistribution(nodes(4, "aabb"), [partition(0, 0, 2), partition(1, 0, 1)])
    assert not distribution.can_move(0, 0, 3)
    assert distribution.can_move(0, 0, 1)
    assert distribution.rack_change(1, 0, 2) < 0


def test_fenced_cordoned_and_drained_brokers_get_no_replicas() -> None:
    cluster = [
        RegisteredBroker(node_id=0),
        RegisteredBroker(node_id=1, is_fenced=True),
        RegisteredBroker(node_id=2, is_cordoned=True),
        RegisteredBroker(node_id=3, is_draining=True),
    ]
    distribution = ReplicaDistribution(cluster, [partition(0, 1, 2, 3)])
    assert distribution.members == [0, 2]
    assert distribution.receivers == [0]
    assert distribution.counts == {0: 0, 2: 1}


def test_a_partition_without_in_sync_replicas_is_not_movable() -> None:
    cluster = [
        RegisteredBroker(node_id=0, is_fenced=True),
        RegisteredBroker(node_id=1),
        RegisteredBroker(node_id=2),
    ]
    distribution = ReplicaDistribution(
        cluster, [partition(0, 1, 0, in_sync=(0,)), partition(1, 1, 0)]
    )
    assert list(distribution.movable_replicas(1, 2)) == [1]


def test_a_reassignment_in_progress_counts_as_completed() -> None:
    moving = Partition(
        topic="t", number=0, replicas=(2, 1, 0), in_sync=(0, 1), adding=(2,), removing=(0,)
    )
    assert target_replicas(moving) == (2, 1)
    distribution = ReplicaDistribution(nodes(4), [moving])
    assert distribution.counts == {0: 0, 1: 1, 2: 1, 3: 0}
    # The removed one still has everything, the added one has begun to copy.
    assert distribution.copy_cost(0, 1, 0) == 0
    assert distribution.copy_cost(0, 2, 3) == 1
