"""Topics for groups: digests, changes, and the metadata hash."""

import pytest

from odradek.coordinator.group.topics import (
    NO_TOPICS,
    TopicCatalog,
    changed_topic_names,
    metadata_hash,
)
from tests.support.consumer_playbook import id_of, image_of

RACKS = ("r0", "r1")


def test_a_catalog_has_the_topics_of_its_image() -> None:
    catalog = TopicCatalog(image_of({"a": 3}, racks=RACKS))
    digest = catalog.topic("a")
    assert digest is not None
    assert (digest.topic_id, digest.partition_count) == (id_of("a"), 3)
    assert digest.racks == (frozenset({"r0"}), frozenset({"r1"}), frozenset({"r0"}))
    assert catalog.topic("a") is digest
    assert catalog.name_of(id_of("a")) == "a"
    assert catalog.topic("b") is None
    assert catalog.name_of(id_of("b")) is None
    assert NO_TOPICS.topic("a") is None


def test_without_racks_a_digest_has_none() -> None:
    digest = TopicCatalog(image_of({"a": 3})).topic("a")
    assert digest is not None
    assert digest.racks == ()


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"a": 1}, {"a": 1}, set()),
        ({"a": 1}, {"a": 2}, {"a"}),
        ({"a": 1}, {}, {"a"}),
        ({}, {"a": 1}, {"a"}),
        ({"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b", "c"}),
    ],
)
def test_created_deleted_and_grown_topics_have_changed(
    before: dict[str, int], after: dict[str, int], changed: set[str]
) -> None:
    assert changed_topic_names(image_of(before), image_of(after)) == changed


def test_every_topic_changes_when_a_broker_changes_its_rack() -> None:
    before = image_of({"a": 1, "b": 1}, racks=RACKS)
    assert changed_topic_names(before, image_of({"a": 1, "b": 1}, racks=("r0", "r2"))) == {"a", "b"}
    assert changed_topic_names(before, before) == frozenset()


def test_the_hash_depends_on_the_topics_and_not_on_their_order() -> None:
    def hash_of(sizes: dict[str, int], *, with_racks: bool = False) -> int:
        catalog = TopicCatalog(image_of(sizes, racks=RACKS))
        digests = [digest for name in sizes if (digest := catalog.topic(name)) is not None]
        return metadata_hash(digests, with_racks=with_racks)

    assert hash_of({}) == 0
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1}) != 0
    different = [{"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}]
    assert len({hash_of(sizes) for sizes in different}) == len(different)
    assert hash_of({"a": 1}) != hash_of({"a": 1}, with_racks=True)
    assert -(2**63) <= hash_of({"a": 1}) < 2**63
