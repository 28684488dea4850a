"""An image as records: applied to the empty image they give the same image."""

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import Record, decode_records, encode_records
from odradek.cluster.metadata.snapshot import image_records
from tests.support.metadata_history import have_same_content, history


def replayed(records: list[Record]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for record in records:
        delta.replay(record)
    return delta.apply(7)


def test_the_empty_image_needs_no_records() -> None:
    assert image_records(MetadataImage.empty()) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_snapshot_replays_to_the_same_image(seed: int) -> None:
    image = replayed(list(history(seed, 250)))
    records = decode_records(encode_records(image_records(image)))
    assert have_same_content(replayed(records), image)


def test_a_snapshot_contains_no_history() -> None:
    records = list(history(3, 2000))
    image = replayed(records)
    snapshot = image_records(image)
    assert len(snapshot) < len(records) / 3
    assert len(image_records(replayed(snapshot))) == len(snapshot)
