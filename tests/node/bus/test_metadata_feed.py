"""Metadata entries are applied in order and once, also after duplicates, delays and losses."""

import random

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, Record, TopicCreated, encode_records
from odradek.cluster.metadata.snapshot import image_records
from odradek.node.bus.messages import MetadataRecords, MetadataSnapshot
from odradek.node.bus.metadata_feed import apply_metadata
from tests.support.metadata_history import have_same_content


def topic(number: int) -> Record:
    return TopicCreated(f"t{number}", number.to_bytes(16))


HISTORY: list[tuple[Record, ...]] = [
    (ClusterCreated("cluster"),),
    (topic(1), topic(2)),
    (topic(3),),
    (topic(4),),
    (topic(5), topic(6), topic(7)),
    (topic(8),),
]


def image_at(offset: int) -> MetadataImage:
    """The image after the first `offset` entries of the history."""
    delta = MetadataDelta(MetadataImage.empty())
    for entry in HISTORY[:offset]:
        for record in entry:
            delta.replay(record)
    return delta.apply(offset)


def entries(start: int, end: int) -> MetadataRecords:
    return MetadataRecords(start, tuple(encode_records(entry) for entry in HISTORY[start:end]))


def snapshot(offset: int) -> MetadataSnapshot:
    return MetadataSnapshot(offset, (encode_records(image_records(image_at(offset))),))


def applied(image: MetadataImage, message: MetadataRecords | MetadataSnapshot) -> MetadataImage:
    after = apply_metadata(image, message)
    assert after is not None
    return after


def test_entries_are_applied_in_order() -> None:
    image = applied(applied(MetadataImage.empty(), entries(0, 2)), entries(2, 4))
    assert image.offset == 4
    assert have_same_content(image, image_at(4))


def test_entries_that_overlap_are_applied_from_the_first_new_one_on() -> None:
    image = applied(image_at(3), entries(1, 5))
    assert image.offset == 5
    assert have_same_content(image, image_at(5))


def test_entries_that_were_applied_before_leave_the_same_image() -> None:
    image = image_at(4)
    assert apply_metadata(image, entries(0, 4)) is image
    assert apply_metadata(image, entries(2, 3)) is image
    assert apply_metadata(image, entries(4, 4)) is image


def test_nothing_is_applied_after_a_gap() -> None:
    assert apply_metadata(image_at(2), entries(3, 5)) is None
    assert apply_metadata(MetadataImage.empty(), entries(1, 2)) is None


def test_a_snapshot_replaces_the_image() -> None:
    image = applied(image_at(2), snapshot(5))
    assert image.offset == 5
    assert have_same_content(image, image_at(5))
    other = MetadataDelta(MetadataImage.empty())
    other.replay(TopicCreated("stray", bytes(15) + b"\xff"))
    replaced = applied(other.apply(9), snapshot(5))
    assert "stray" not in replaced.topics_by_name
    assert replaced.offset == 5


def test_a_process_that_subscribes_again_after_gaps_reaches_the_end_of_the_log() -> None:
    chance = random.Random(7)
    for _ in range(100):
        image = MetadataImage.empty()
        while image.offset < len(HISTORY):
            start = chance.randrange(len(HISTORY))
            message = entries(start, chance.randint(start, len(HISTORY)))
            after = apply_metadata(image, message)
            if after is None:
                assert start > image.offset
                after = applied(image, entries(image.offset, image.offset + 1))
            assert after.offset >= image.offset
            image = after
            assert have_same_content(image, image_at(image.offset))
