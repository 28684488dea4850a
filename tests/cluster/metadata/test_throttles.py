"""Throttles: which replicas they apply to, and at which rate (KIP-73)."""

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.cluster.metadata.settings import broker_settings, topic_settings
from odradek.cluster.metadata.throttles import (
    follower_throttle_rate,
    leader_throttle_rate,
    rates_of,
)

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def image_with(*configs: tuple[int, str, str, str]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for config in configs:
        delta.replay(ConfigChanged(*config))
    return delta.apply(1)


def rates(image: MetadataImage, partition: int, node: int) -> tuple[int | None, int | None]:
    broker = broker_settings(image, node, {})
    topic = topic_settings(image, node, {}, "t")
    return leader_throttle_rate(broker, topic, partition, node), follower_throttle_rate(
        broker, topic, partition, node
    )


def test_only_replicas_listed_by_their_topic_are_throttled() -> None:
    image = image_with((BROKER, "1", "leader.replication.throttled.rate", "10"))
    assert rates(image, 0, 1) == (None, None)


@pytest.mark.parametrize(
    ("partition", "node", "expected"),
    [(0, 1, (10, None)), (0, 2, (None, 30)), (1, 1, (None, 20)), (10, 1, (None, None))],
)
def test_leaders_and_followers_have_separate_lists_and_rates(
    partition: int, node: int, expected: tuple[int | None, int | None]
) -> None:
    image = image_with(
        (TOPIC, "t", "leader.replication.throttled.replicas", "0:1"),
        (TOPIC, "t", "follower.replication.throttled.replicas", "0:2,1:1"),
        (BROKER, "1", "leader.replication.throttled.rate", "10"),
        (BROKER, "1", "follower.replication.throttled.rate", "20"),
        (BROKER, "2", "follower.replication.throttled.rate", "30"),
    )
    assert rates(image, partition, node) == expected


def test_a_star_stands_for_every_replica() -> None:
    image = image_with(
        (TOPIC, "t", "leader.replication.throttled.replicas", "*"),
        (BROKER, "", "leader.replication.throttled.rate", "7"),
    )
    assert [rates(image, partition, 3) for partition in (0, 99)] == [(7, None), (7, None)]


def test_a_throttle_without_a_rate_is_unlimited() -> None:
    image = image_with((TOPIC, "t", "follower.replication.throttled.replicas", "*"))
    assert rates(image, 0, 1) == (None, 2**63 - 1)


def test_the_rates_of_a_broker_are_those_that_were_set_for_it() -> None:
    image = image_with(
        (BROKER, "1", "leader.replication.throttled.rate", "10"),
        (BROKER, "1", "follower.replication.throttled.rate", "20"),
    )
    assert rates_of(broker_settings(image, 1, {})) == (10, 20)
