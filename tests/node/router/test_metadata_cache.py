"""What the metadata cache derives from the newest image and the static configuration."""

from pathlib import Path

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.node.router.metadata_cache import MetadataCache
from tests.support.router_harness import RouterHarness


def test_settings_and_partitions_are_those_of_the_newest_image(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path)
    cache = MetadataCache(0, {"group.max.size": "7"})
    assert cache.image.offset == MetadataImage.empty().offset
    assert cache.partition("t", 0) is None
    harness.controller.has("t", 1, 2)
    harness.follow()
    cache.image = harness.image
    topic = harness.image.topics_by_name["t"]
    assert cache.partition("t", 1) is topic.partitions[1]
    assert cache.partition("t", 2) is None
    assert cache.partition("t", -1) is None
    assert cache.leader_of(topic.topic_id, 1) == 0
    assert cache.leader_of(topic.topic_id, 2) == NO_LEADER
    assert cache.broker_settings().group_max_size == 7
    assert cache.topic_settings("t").max_message_bytes == 1_048_588
    harness.close()
