"""Internal topics get the replicas that they lack when brokers join."""

from collections import Counter

from odradek.cluster.controller.commands import AlterPartition, InSyncChange, InSyncReplica
from odradek.cluster.controller.internal_topics import CHECK_INTERVAL_MS
from odradek.cluster.metadata.image import PartitionImage
from tests.support.controller_harness import ControllerHarness

OFFSETS = "__consumer_offsets"
ADAPTIVE = {"internal.topics.replication.adaptive": "true"}


def cluster(*brokers: int, static: dict[str, str] = ADAPTIVE) -> ControllerHarness:
    """Active brokers; the first one has all replicas of an internal topic with 6 partitions."""
    harness = ControllerHarness(brokers=0, static=static)
    harness.activate()
    harness.join(*brokers)
    first = brokers[0]
    harness.place(OFFSETS, 1, *(PartitionImage((first,), (first,), first) for _ in range(6)))
    return harness


def pass_check(harness: ControllerHarness) -> None:
    """Let the time of a check pass, during which all active brokers send heartbeats."""
    for _ in range(4):
        harness.pass_time(CHECK_INTERVAL_MS // 4)
        for broker in harness.image.brokers:
            harness.send_heartbeat(broker)
    harness.pass_time(1)


def catch_up(harness: ControllerHarness) -> None:
    """The leaders report all replicas as in sync."""
    topic = harness.image.topics_by_name[OFFSETS]
    for number, partition in enumerate(topic.partitions):
        change = InSyncChange(
            topic.topic_id,
            number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync=tuple(
                InSyncReplica(each, harness.image.brokers[each].broker_epoch)
                for each in partition.replicas
            ),
        )
        leader = harness.image.brokers[partition.leader]
        harness.do(AlterPartition(leader.broker_id, leader.broker_epoch, (change,)))


def test_a_topic_gets_replicas_on_brokers_that_have_joined() -> None:
    harness = cluster(1)
    pass_check(harness)
    assert {p.replicas for p in harness.partitions(OFFSETS)} == {(1,)}
    harness.join(2)
    pass_check(harness)
    for partition in harness.partitions(OFFSETS):
        assert set(partition.replicas) == {1, 2}
        assert partition.adding_replicas == (2,)
        assert (partition.leader, partition.in_sync_replicas) == (1, (1,))
    catch_up(harness)
    harness.join(3)
    pass_check(harness)
    catch_up(harness)
    partitions = harness.partitions(OFFSETS)
    for partition in partitions:
        assert set(partition.in_sync_replicas) == {1, 2, 3} == set(partition.replicas)
        assert partition.adding_replicas == ()
    assert Counter(p.replicas[0] for p in partitions) == {1: 2, 2: 2, 3: 2}
    harness.join(4)
    pass_check(harness)
    assert harness.partitions(OFFSETS) == partitions, "it has the configured factor"


def test_new_replicas_are_spread_over_the_brokers() -> None:
    harness = cluster(1, 2, 3, 4, static={**ADAPTIVE, "offsets.topic.replication.factor": "2"})
    pass_check(harness)
    added = Counter(b for p in harness.partitions(OFFSETS) for b in p.adding_replicas)
    assert added == {2: 2, 3: 2, 4: 2}


def test_without_the_config_a_topic_stays_as_it_is() -> None:
    harness = cluster(1, 2, 3, static={})
    before = harness.partitions(OFFSETS)
    pass_check(harness)
    assert harness.partitions(OFFSETS) == before


def test_other_topics_stay_as_they_are() -> None:
    harness = cluster(1, 2, 3)
    harness.place("t", 2, PartitionImage((1,), (1,), 1))
    pass_check(harness)
    assert harness.partition("t").replicas == (1,)
