"""The methods of an image; how images are made is tested with delta and snapshot."""

import pytest

from odradek.cluster.metadata.image import (
    BrokerImage,
    BrokerListener,
    ConfigResource,
    ConfigResourceType,
    ConfigsImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tests.support.metadata_history import have_same_content

TOPIC_ID = bytes(range(16))


def image_with_topic() -> MetadataImage:
    topic = TopicImage(
        "t", TOPIC_ID, (PartitionImage((1,), (1,), 1), PartitionImage((2,), (2,), 2))
    )
    empty = MetadataImage.empty()
    return MetadataImage(
        offset=3,
        cluster_id="c",
        brokers=empty.brokers,
        topics_by_name={"t": topic},
        topics_by_id={TOPIC_ID: topic},
        configs=ConfigsImage({}),
        features={},
        next_producer_id=0,
    )


def test_the_empty_image_is_empty() -> None:
    image = MetadataImage.empty()
    assert image.offset == 0
    for part in (image.brokers, image.topics_by_name, image.topics_by_id, image.configs):
        assert len(part) == 0


def test_partitions_are_found_by_topic_id_and_number() -> None:
    image = image_with_topic()
    found = image.partition(TOPIC_ID, 1)
    assert found is not None
    assert found.leader == 2


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partition_number_out_of_range_is_not_found(number: int) -> None:
    assert image_with_topic().partition(TOPIC_ID, number) is None


def test_an_unknown_topic_id_is_not_found() -> None:
    assert image_with_topic().partition(bytes(16), 0) is None


def test_an_image_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        image_with_topic().offset = 4  # type: ignore[misc]  # what the test is about


def test_a_brokers_listeners_are_found_by_name() -> None:
    plain, tls = BrokerListener("PLAINTEXT", "a", 1), BrokerListener("TLS", "b", 2, "SSL")
    broker = BrokerImage(1, 5, listeners=(plain, tls))
    assert broker.listener("TLS") == tls
    assert broker.listener("EXTERNAL") is None


def test_a_resource_without_configs_has_an_empty_mapping() -> None:
    configs = ConfigsImage({ConfigResource(ConfigResourceType.TOPIC, "t"): {"k": "v"}})
    assert configs.of(ConfigResourceType.TOPIC, "t") == {"k": "v"}
    assert configs.of(ConfigResourceType.GROUP, "t") == {}
    assert list(configs) == [(2, "t")]


def test_configs_hand_on_what_does_not_depend_on_a_change() -> None:
    topic = ConfigResource(ConfigResourceType.TOPIC, "t")
    broker = ConfigResource(ConfigResourceType.BROKER, "")
    subscription = ConfigResource(ConfigResourceType.CLIENT_METRICS, "s")
    configs = ConfigsImage({topic: {"k": "v"}, subscription: {"metrics": ""}})
    configs.cache["of"] = configs.broker_cache["of"] = None, None

    of_topic = configs.after({topic: {}})
    assert dict(of_topic) == {subscription: {"metrics": ""}}
    assert not of_topic.cache
    assert of_topic.broker_cache is configs.broker_cache
    assert of_topic.client_metrics is configs.client_metrics

    of_broker = configs.after({broker: {"b": "1"}})
    assert of_broker[broker] == {"b": "1"}
    assert not of_broker.broker_cache
    assert configs.after({subscription: {}}).client_metrics == {}
    assert topic in configs
    assert broker not in configs

    assert configs.changed_since(configs) == []
    assert of_topic.changed_since(configs) == [topic]
    assert configs.changed_since(of_topic) == [topic]
    assert of_broker.after({topic: {"k": "w"}}).changed_since(of_topic) == [topic, broker]

    copied = configs.copy()
    assert dict(copied) == dict(configs)
    assert not copied.cache
    assert not copied.broker_cache


def test_images_are_compared_by_content_only_when_asked() -> None:
    one, other = image_with_topic(), image_with_topic()
    assert one != other
    assert have_same_content(one, other)
    assert not have_same_content(one, MetadataImage.empty())
