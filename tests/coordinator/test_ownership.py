"""The shard of a key, in Java's arithmetic, and the shards that a router hosts."""

import pytest

from odradek.cluster.metadata.image import PartitionImage, TopicImage
from odradek.coordinator.ownership import (
    HostingChanges,
    hosting_changes,
    java_string_hash,
    shard_of,
    shards_to_host,
)


# From `"...".hashCode()` in Java; the surrogate pair counts as two units.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("console-consumer-12345", 158455506),
        ("größe", 98762257),
        ("😀", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_the_hash_is_that_of_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_the_shard_of_a_key_is_kafkas() -> None:
    # Utils.abs maps the smallest int to 0.
    assert shard_of("polygenelubricants", 50) == 0
    assert shard_of("group", 50) == 98629247 % 50
    assert all(0 <= shard_of(f"group-{index}", 50) < 50 for index in range(1_000))


def partition(leader: int, leader_epoch: int = 0) -> PartitionImage:
    return PartitionImage((0, 1), (0, 1), leader, leader_epoch)


def test_a_router_hosts_the_shards_that_its_node_leads() -> None:
    topic = TopicImage("t", bytes(16), (partition(0, 3), partition(1), partition(0), partition(-1)))
    assert shards_to_host(topic, node_id=0) == {0: 3, 2: 0}
    assert shards_to_host(topic, node_id=1) == {1: 0}
    assert shards_to_host(None, node_id=0) == {}


def test_several_routers_of_a_node_host_shards_round_robin() -> None:
    topic = TopicImage("t", bytes(16), tuple(partition(0) for _ in range(5)))
    assert set(shards_to_host(topic, node_id=0, router_index=0, router_count=2)) == {0, 2, 4}
    assert set(shards_to_host(topic, node_id=0, router_index=1, router_count=2)) == {1, 3}


def test_a_shard_is_loaded_again_after_a_new_leader_epoch() -> None:
    assert hosting_changes({1: 0, 2: 0, 3: 0}, {1: 0, 2: 1, 4: 0}) == HostingChanges(
        unload=(2, 3), load=((2, 1), (4, 0))
    )
    assert hosting_changes({1: 0}, {1: 0}) == HostingChanges((), ())
