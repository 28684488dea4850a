"""Partitions follow the image: created, renewed, dropped, admitted by leadership and by the ISR's
size."""

from pathlib import Path

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import (
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    ReplicaDirectory,
)
from odradek.cluster.metadata.records import (
    ConfigChanged,
    PartitionChanged,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
)
from odradek.cluster.metadata.topic_settings import TopicSettings
from odradek.node.worker.hosted_partitions import UPDATED_MAX, HostedPartitions, log_settings_of
from odradek.protocol.errors import ErrorCode
from odradek.storage.layout import store_index
from odradek.storage.settings import Durability, LogSettings, StoreOptions

TOPIC_ID = bytes(15) + b"\x01"
OTHER_ID = bytes(15) + b"\x02"


def image_after(image: MetadataImage, *records: Record) -> MetadataImage:
    """The image one entry later."""
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.offset + 1)


def topic(
    name: str,
    topic_id: bytes,
    *leaders: int,
    isr: tuple[int, ...] = (0,),
    replicas: tuple[int, ...] = (0, 1),
) -> tuple[Record, ...]:
    """A topic whose partitions are led by `leaders`; every partition has a replica on node 0."""
    return (
        TopicCreated(name, topic_id),
        PartitionsAdded(
            topic_id,
            0,
            tuple(
                PartitionImage(
                    replicas=replicas, in_sync_replicas=isr, leader=leader, leader_epoch=4
                )
                for leader in leaders
            ),
        ),
    )


def open_partitions(folder: Path, worker: int = 0, worker_count: int = 1) -> HostedPartitions:
    """The partitions of one worker of node 0, with four stores in the node."""
    return HostedPartitions(
        folders=(folder,),
        worker=worker,
        worker_count=worker_count,
        store_count=4,
        node_id=0,
        static_configs={},
        options=StoreOptions(),
        now_ms=0,
    )


def place(partitions: HostedPartitions, topic_id: bytes, partition: int) -> tuple[int, int]:
    """The location of a partition, which must exist."""
    store = store_index(topic_id, partition, 4)
    number = partitions.stores[store].number_of(topic_id, partition)
    assert number is not None
    return store, number


def test_every_partition_of_the_image_is_created_in_its_store(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    partitions.apply_image(image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0, 0, 0)))
    for index in range(3):
        admission = partitions.admission(*place(partitions, TOPIC_ID, index))
        assert admission == (4, ErrorCode.NONE, ErrorCode.NONE, True)
    partitions.close()


def test_a_worker_opens_only_its_own_stores(tmp_path: Path) -> None:
    first = open_partitions(tmp_path, worker=0, worker_count=2)
    second = open_partitions(tmp_path, worker=1, worker_count=2)
    assert sorted(first.stores) == [0, 2]
    assert sorted(second.stores) == [1, 3]
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0, 0, 0, 0))
    for partitions in (first, second):
        partitions.apply_image(image)
        held = [len(store.partitions()) for store in partitions.stores.values()]
        assert held == [1, 1]
        partitions.close()


DIRECTORY_IDS = (bytes(16), bytes(range(16)))


def open_in_two_directories(tmp_path: Path, *offline: int, worker: int = 0) -> HostedPartitions:
    """The first of two workers of node 0, which has two log directories."""
    return HostedPartitions(
        folders=(tmp_path / "a", tmp_path / "b"),
        directory_ids=DIRECTORY_IDS,
        offline=offline,
        worker=worker,
        worker_count=2,
        store_count=4,
        node_id=0,
        static_configs={},
        options=StoreOptions(),
        now_ms=0,
    )


def two_places() -> tuple[Record, ...]:
    """A topic with a partition in the first log directory of node 0 and one in the second."""
    second = (ReplicaDirectory(0, DIRECTORY_IDS[1]), ReplicaDirectory(1, bytes(16)))
    states = [PartitionImage((0,), (0,), 0, 4, directories=each) for each in ((), second)]
    return TopicCreated("a", TOPIC_ID), PartitionsAdded(TOPIC_ID, 0, tuple(states))


def test_partitions_are_created_in_the_directories_of_the_image_and_stay_there(
    tmp_path: Path,
) -> None:
    image = image_after(MetadataImage.empty(), *two_places())
    for worker, partition, directory in ((0, 0, 0), (1, 1, 1)):
        partitions = open_in_two_directories(tmp_path, worker=worker)
        assert sorted(partitions.stores) == [worker, worker + 2, 1024 + worker, 1026 + worker]
        partitions.apply_image(image)
        location = partitions.location_of(TOPIC_ID, partition)
        index = store_index(TOPIC_ID, partition, 4)
        assert location is not None
        assert location[0] == 1024 * directory + index
        assert partitions.admission(*location).error_code == ErrorCode.NONE
        partitions.close()


def test_a_partition_that_exists_is_not_created_again_elsewhere(tmp_path: Path) -> None:
    partitions = open_in_two_directories(tmp_path, worker=1)
    partitions.apply_image(image_after(MetadataImage.empty(), *two_places()))
    before = partitions.location_of(TOPIC_ID, 1)
    assert before is not None
    partitions.close()
    again = open_in_two_directories(tmp_path, worker=1)
    again.apply_image(image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0, 0)))
    assert again.location_of(TOPIC_ID, 1) == before
    again.close()


def test_nothing_is_created_in_an_offline_directory_or_instead_of_it(tmp_path: Path) -> None:
    partitions = open_in_two_directories(tmp_path, 1, worker=1)
    assert sorted(partitions.stores) == [1, 3]
    partitions.apply_image(image_after(MetadataImage.empty(), *two_places()))
    assert partitions.location_of(TOPIC_ID, 1) is None
    assert not (tmp_path / "b").exists()
    partitions.close()


def test_a_partition_that_another_node_leads_refuses_appends(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    partitions.apply_image(image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 1)))
    admission = partitions.admission(*place(partitions, TOPIC_ID, 0))
    assert admission.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    partitions.close()


def test_an_isr_below_min_insync_replicas_refuses_only_acks_all(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0))
    partitions.apply_image(image)
    image = image_after(
        image, ConfigChanged(ConfigResourceType.TOPIC, "a", "min.insync.replicas", "2")
    )
    partitions.apply_image(image)
    admission = partitions.admission(*place(partitions, TOPIC_ID, 0))
    assert admission.error_code == ErrorCode.NONE
    assert admission.error_code_acks_all == ErrorCode.NOT_ENOUGH_REPLICAS
    partitions.close()


def test_changed_topic_config_reaches_the_log(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0))
    partitions.apply_image(image)
    partitions.apply_image(
        image_after(image, ConfigChanged(ConfigResourceType.TOPIC, "a", "retention.ms", "1234"))
    )
    store, number = place(partitions, TOPIC_ID, 0)
    assert partitions.stores[store].partitions()[number].settings.retention_ms == 1234
    partitions.close()


def test_configs_of_many_partitions_are_applied_in_slices(tmp_path: Path) -> None:
    def with_new_settings() -> int:
        logs = (log for store in partitions.stores.values() for log in store.partitions().values())
        return sum(log.settings.retention_ms == 1234 for log in logs)

    partitions = open_partitions(tmp_path)
    leaders = [0] * (2 * UPDATED_MAX + 1)
    image = image_after(
        MetadataImage.empty(), *topic("a", TOPIC_ID, *leaders), *topic("b", OTHER_ID, *leaders)
    )
    partitions.apply_image(image)
    assert with_new_settings() == 0

    default = ConfigChanged(ConfigResourceType.BROKER, "", "log.retention.ms", "1234")
    image = image_after(image, default)
    partitions.apply_image(image)
    assert with_new_settings() == UPDATED_MAX
    # What is not about configs goes on beside that.
    partitions.apply_image(image_after(image, TopicDeleted(TOPIC_ID)))
    while partitions.is_outdated:
        before = with_new_settings()
        partitions.update_outdated()
        assert with_new_settings() - before <= UPDATED_MAX
    assert with_new_settings() == len(leaders)
    partitions.close()


def test_configs_that_are_not_about_topics_leave_the_partitions_alone(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, *[0] * (UPDATED_MAX + 1)))
    partitions.apply_image(image)
    partitions.apply_image(
        image_after(image, ConfigChanged(ConfigResourceType.BROKER, "", "max.connections", "9"))
    )
    assert not partitions.is_outdated
    partitions.close()


def test_a_change_of_one_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0, 0))
    partitions.apply_image(image)
    partitions.changed.clear()
    other_isr = PartitionImage((0, 1), (0, 1), 0, leader_epoch=4, partition_epoch=1)
    partitions.apply_image(image_after(image, PartitionChanged(TOPIC_ID, 1, other_isr)))
    assert partitions.changed == {place(partitions, TOPIC_ID, 1)}
    partitions.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_worker_deletes_topics_that_were_deleted_while_it_was_down(
    tmp_path: Path, is_restarted: bool
) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0), *topic("b", OTHER_ID, 0))
    partitions.apply_image(image)
    gone = place(partitions, TOPIC_ID, 0)
    kept = place(partitions, OTHER_ID, 0)
    if is_restarted:
        partitions.close()
        partitions = open_partitions(tmp_path)
    assert partitions.apply_image(image_after(image, TopicDeleted(TOPIC_ID))) == {gone}
    assert partitions.admission(*gone).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partitions.stores[gone[0]].number_of(TOPIC_ID, 0) is None
    assert place(partitions, OTHER_ID, 0) == kept
    partitions.close()


def test_a_throttle_is_shared_by_the_workers_of_a_node_and_changes_as_they_run(
    tmp_path: Path,
) -> None:
    """KIP-73's rates hold for a broker, however many workers it has."""
    partitions = open_partitions(tmp_path, worker=0, worker_count=2)
    states = tuple(PartitionImage((0, 1), (0, 1), 0) for _ in range(4))
    image = image_after(
        MetadataImage.empty(), TopicCreated("a", TOPIC_ID), PartitionsAdded(TOPIC_ID, 0, states)
    )
    partitions.apply_image(image)
    assert partitions.replicated
    assert {each.leader_throttle_rate for each in partitions.replicated.values()} == {None}
    named = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    rates = {
        "leader.replication.throttled.rate": "1000",
        "follower.replication.throttled.rate": "1",
    }
    image = image_after(
        image,
        *(ConfigChanged(ConfigResourceType.TOPIC, "a", name, "*") for name in named),
        *(ConfigChanged(ConfigResourceType.BROKER, "0", name, rates[name]) for name in rates),
    )
    partitions.changed.clear()
    partitions.apply_image(image)
    found = {
        (each.leader_throttle_rate, each.follower_throttle_rate)
        for each in partitions.replicated.values()
    }
    assert found == {(500, 1)}
    assert partitions.changed == partitions.replicated.keys()
    partitions.close()


def test_a_log_has_the_defaults_of_topics_and_every_field_of_its_topic() -> None:
    assert log_settings_of(TopicSettings()) == LogSettings()
    changed = log_settings_of(TopicSettings(retention_ms=7, cleanup_policy=("compact",)))
    assert changed == LogSettings(retention_ms=7, cleanup_compact=True, cleanup_delete=False)


def test_intervals_and_durability_of_the_stores_are_those_of_the_broker(tmp_path: Path) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("aa", TOPIC_ID, 0))
    partitions.apply_image(image)
    expiration = ConfigChanged(ConfigResourceType.BROKER, "", "producer.id.expiration.ms", "777")
    check = ConfigChanged(ConfigResourceType.BROKER, "0", "log.retention.check.interval.ms", "888")
    durability = ConfigChanged(ConfigResourceType.BROKER, "", "durability", "commit")
    partitions.apply_image(image_after(image, expiration, check, durability))
    for store in partitions.stores.values():
        assert store.options.producer_id_expiration_ms == 777
        assert store.options.retention_check_interval_ms == 888
        assert store.options.durability is Durability.COMMIT
    partitions.close()


def test_a_changed_configuration_of_the_broker_is_applied_with_the_same_image(
    tmp_path: Path,
) -> None:
    partitions = open_partitions(tmp_path)
    image = image_after(MetadataImage.empty(), *topic("aa", TOPIC_ID, 0))
    partitions.apply_image(image)
    partitions.set_static_configs({"log.retention.ms": "5", "replica.lag.time.max.ms": "6"})
    partitions.apply_image(image)
    assert partitions.log(place(partitions, TOPIC_ID, 0)).settings.retention_ms == 5
    assert partitions.broker_settings().replica_lag_time_max_ms == 6
    partitions.close()
