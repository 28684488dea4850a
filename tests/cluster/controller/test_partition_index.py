"""The index compared with a search of the image."""

import random
from collections.abc import Callable

import pytest

from odradek.cluster.controller.partition_index import PartitionIndex, TopicIdPartition
from odradek.cluster.controller.state import ControllerState
from odradek.cluster.metadata.image import MetadataImage, PartitionImage
from odradek.cluster.metadata.records import PartitionsAdded, Record, TopicCreated, TopicDeleted
from tests.support.metadata_history import history

ID = bytes(16)


def searched(
    image: MetadataImage, is_it: Callable[[PartitionImage], bool]
) -> set[TopicIdPartition]:
    return {
        (topic_id, number)
        for topic_id, topic in image.topics_by_id.items()
        for number, partition in enumerate(topic.partitions)
        if is_it(partition)
    }


def check(index: PartitionIndex, image: MetadataImage) -> None:
    for broker in range(-1, 7):
        assert set(index.in_sync_on(broker)) == searched(
            image,
            lambda p, b=broker: b in p.in_sync_replicas,  # type: ignore[misc] # bound now
        )
        assert set(index.eligible_on(broker)) == searched(
            image,
            lambda p, b=broker: b in p.elr,  # type: ignore[misc] # bound now
        )
        assert set(index.led_by(broker)) == searched(
            image,
            lambda p, b=broker: p.leader == b,  # type: ignore[misc] # bound now
        )
    assert set(index.leaderless()) == searched(image, lambda p: p.leader == -1)
    assert set(index.with_eligible_leaders()) == searched(image, lambda p: bool(p.elr))
    assert set(index.imbalanced()) == searched(image, lambda p: p.leader != p.replicas[0])


@pytest.mark.parametrize("seed", range(12))
def test_the_index_equals_a_search_of_the_image(seed: int) -> None:
    chance = random.Random(seed)
    state = ControllerState(MetadataImage.empty(), node_id=0, static={})
    assert not state.index.leaderless()
    records = list(history(seed, 400))
    offset = 0
    while records:
        size = chance.randint(1, 9)
        entry, records = records[:size], records[size:]
        offset += 1
        state.replay(entry, offset)
        check(state.index, state.image)
    check(PartitionIndex.of(state.image), state.image)


def test_a_topic_created_and_deleted_in_one_entry_is_not_in_the_index() -> None:
    entry: list[Record] = [
        TopicCreated("t", ID),
        PartitionsAdded(ID, 0, (PartitionImage((1, 2), (1,), -1, elr=(2,)),)),
        TopicDeleted(ID),
    ]
    state = ControllerState(MetadataImage.empty(), node_id=0, static={})
    assert not state.index.leaderless()
    state.replay(entry, 1)
    check(state.index, state.image)
    state.replay(entry[:2], 2)
    state.replay([entry[2], *entry[:2]], 3)
    check(state.index, state.image)
    assert state.index.leaderless()
