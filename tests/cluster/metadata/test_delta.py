"""From image to image: the same as a simple model, and only changed parts are copied."""

import random
from collections.abc import Iterator, Mapping

import pytest

from odradek.cluster.metadata.delta import MetadataDelta, MetadataInvariantError
from odradek.cluster.metadata.image import (
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.cluster.metadata.records import (
    BrokerChanged,
    ConfigChanged,
    PartitionChanged,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
)
from tests.support.metadata_history import ModelImage, have_same_content, history

PARTITION = PartitionImage((1,), (1,), 1)


def applied(image: MetadataImage, *records: Record) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.offset + 1)


def topic_id(number: int) -> bytes:
    return number.to_bytes(16)


def image_of(topic_count: int) -> MetadataImage:
    records: list[Record] = []
    for number in range(topic_count):
        records.append(TopicCreated(f"t{number}", topic_id(number)))
        records.append(PartitionsAdded(topic_id(number), 0, (PARTITION, PARTITION)))
    return applied(MetadataImage.empty(), *records)


@pytest.mark.parametrize("seed", range(40))
def test_images_equal_those_of_a_simple_model(seed: int) -> None:
    chance = random.Random(seed)
    twin, image = ModelImage(), MetadataImage.empty()
    records = list(history(seed, 300))
    at = 0
    while at < len(records):
        batch = records[at : at + chance.choice([1, 1, 2, 10, 60])]
        at += len(batch)
        before = image
        image = applied(image, *batch)
        for record in batch:
            twin.replay(record)
        assert have_same_content(image, twin.image(at)), f"seed {seed} after {at} records"
        assert image.offset == before.offset + 1


@pytest.mark.parametrize("seed", range(10))
def test_an_image_stays_as_it_was_when_later_records_are_applied(seed: int) -> None:
    records = list(history(seed, 200))
    twin = ModelImage()
    for record in records[:100]:
        twin.replay(record)
    image = applied(MetadataImage.empty(), *records[:100])
    applied(image, *records[100:])
    assert have_same_content(image, twin.image(0))


def test_unchanged_parts_of_an_image_are_shared() -> None:
    before = image_of(10)
    after = applied(before, PartitionChanged(topic_id(3), 1, PartitionImage((2,), (2,), 2, 1)))
    assert after.brokers is before.brokers
    assert after.configs is before.configs
    assert after.features is before.features
    shared = [
        after.topics_by_id[topic_id(number)] is before.topics_by_id[topic_id(number)]
        for number in range(10)
    ]
    assert shared == [number != 3 for number in range(10)]
    changed = after.topics_by_name["t3"]
    assert changed is after.topics_by_id[topic_id(3)]
    assert changed.partitions[0] is before.topics_by_name["t3"].partitions[0]
    assert changed.partitions[1].leader == 2


def test_a_config_change_shares_the_topics() -> None:
    before = image_of(3)
    after = applied(before, ConfigChanged(ConfigResourceType.TOPIC, "t1", "retention.ms", "1"))
    assert after.topics_by_name is before.topics_by_name
    assert after.topics_by_id is before.topics_by_id
    assert after.configs is not before.configs


def test_deleting_a_topic_without_configs_keeps_the_configs_image() -> None:
    before = image_of(3)
    after = applied(before, TopicDeleted(topic_id(1)))
    assert after.configs is before.configs


class CountingTopics(Mapping[str, TopicImage]):
    """A table that counts how often it is iterated."""

    def __init__(self, topics: Mapping[str, TopicImage]) -> None:
        self._topics = topics
        self.walks = 0
        self.lookups = 0

    def __getitem__(self, name: str) -> TopicImage:
        self.lookups += 1
        return self._topics[name]

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)


@pytest.mark.parametrize("batch", [1, 1000])
def test_a_batch_copies_the_table_of_topics_once(batch: int) -> None:
    image = image_of(2000)
    counting = CountingTopics(image.topics_by_name)
    watched = MetadataImage(
        offset=image.offset,
        cluster_id=image.cluster_id,
        brokers=image.brokers,
        topics_by_name=counting,
        topics_by_id=image.topics_by_id,
        configs=image.configs,
        features=image.features,
        next_producer_id=image.next_producer_id,
    )
    applied(watched, *(PartitionChanged(topic_id(n), 0, PARTITION) for n in range(batch)))
    assert counting.walks == 1
    # The one copy looks at each topic once; the records look at none of them by name.
    assert counting.lookups == len(image.topics_by_name)


def test_a_batch_without_topic_records_copies_no_topics() -> None:
    image = image_of(10)
    counting = CountingTopics(image.topics_by_name)
    watched = MetadataImage(
        offset=1,
        cluster_id="",
        brokers={},
        topics_by_name=counting,
        topics_by_id=image.topics_by_id,
        configs=image.configs,
        features={},
        next_producer_id=0,
    )
    applied(watched, ConfigChanged(ConfigResourceType.BROKER, "", "num.partitions", "2"))
    assert (counting.walks, counting.lookups) == (0, 0)


def test_a_topic_may_be_deleted_and_created_again_in_one_batch() -> None:
    before = applied(
        image_of(2), ConfigChanged(ConfigResourceType.TOPIC, "t1", "retention.ms", "1")
    )
    after = applied(
        before,
        TopicDeleted(topic_id(1)),
        TopicCreated("t1", topic_id(99)),
        PartitionsAdded(topic_id(99), 0, (PARTITION,)),
    )
    assert after.topics_by_name["t1"].topic_id == topic_id(99)
    assert topic_id(1) not in after.topics_by_id
    # The configs belonged to the topic that is gone.
    assert after.configs.of(ConfigResourceType.TOPIC, "t1") == {}


@pytest.mark.parametrize(
    "record",
    [
        PartitionChanged(topic_id(7), 0, PARTITION),
        PartitionsAdded(topic_id(7), 0, (PARTITION,)),
        PartitionsAdded(topic_id(0), 1, (PARTITION,)),
        TopicDeleted(topic_id(7)),
        BrokerChanged(5, is_fenced=True, is_in_controlled_shutdown=False),
    ],
)
def test_a_record_that_contradicts_the_image_raises_an_invariant_error(record: Record) -> None:
    delta = MetadataDelta(image_of(1))
    with pytest.raises(MetadataInvariantError):
        delta.replay(record)


def test_a_deleted_topic_cannot_be_changed() -> None:
    delta = MetadataDelta(image_of(1))
    delta.replay(TopicDeleted(topic_id(0)))
    with pytest.raises(MetadataInvariantError):
        delta.replay(PartitionChanged(topic_id(0), 0, PARTITION))


def test_client_metrics_subscriptions_stay_the_same_object_while_none_changes() -> None:
    metrics, group = ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP
    key = "consumer.session.timeout.ms"
    image = applied(
        MetadataImage.empty(),
        ConfigChanged(metrics, "s", "metrics", "*"),
        ConfigChanged(group, "g", key, "50000"),
    )
    subscriptions = image.configs.client_metrics
    assert subscriptions == {"s": {"metrics": "*"}}
    image = applied(image, ConfigChanged(group, "g", key, None))
    assert image.configs.client_metrics is subscriptions
    image = applied(image, ConfigChanged(metrics, "s", "metrics", None))
    assert image.configs.client_metrics == {}
