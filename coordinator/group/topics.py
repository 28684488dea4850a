"""The topics of one metadata image for groups: ids, partition counts, and the racks of replicas.

A shard has no other part of the image. Digests are made on demand, so that a catalog costs nothing
for topics that no group reads.

A topic that is not in the catalog was deleted: the catalog of a shard is never older than the one
under which its log was written. The host has applied the metadata that made it the leader, and a
restarted node first applies all metadata (node/controller/broker_lifecycle.py). Called by all
assignors; made by node/router/shards/group_coordinator_type.py.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from odradek.cluster.metadata.image import MetadataImage, TopicImage
from odradek.protocol.types import Uuid

Partitions: TypeAlias = Mapping[Uuid, frozenset[int]]
"""Partitions by topic; a topic without partitions has no entry."""
NO_PARTITIONS: Final[Partitions] = {}


class TopicDigest(msgspec.Struct, frozen=True, gc=False):
    """A topic for assignors. `racks` has one set per partition, or is empty if no rack is known."""

    name: str
    topic_id: Uuid
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()


class TopicCatalog:
    """The topics of one image, by name and by id."""

    __slots__ = ("_by_id", "_by_name", "_digests", "_racks", "version")

    def __init__(self, image: MetadataImage) -> None:
        self._by_name: Mapping[str, TopicImage] = image.topics_by_name
        self._by_id: Mapping[Uuid, TopicImage] = image.topics_by_id
        self._racks = racks_of(image)
        self._digests: dict[str, TopicDigest] = {}
        self.version = image.offset

    def topic(self, name: str) -> TopicDigest | None:
        """The topic of that name, None if it does not exist."""
        digest = self._digests.get(name)
        if digest is None:
            topic = self._by_name.get(name)
            if topic is None:
                return None
            digest = self._digests[name] = self._digest(topic)
        return digest

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of a topic that exists."""
        topic = self._by_id.get(topic_id)
        return None if topic is None else topic.name

    def existing(self, names: Iterable[str]) -> dict[str, TopicDigest]:
        """The existing ones of these topics, by name."""
        topics = ((name, self.topic(name)) for name in names)
        return {name: topic for name, topic in topics if topic is not None}

    def named(
        self, partitions: Mapping[Uuid, Iterable[int]]
    ) -> Iterator[tuple[Uuid, str, list[int]]]:
        """Topic id, name and sorted partitions of the topics that exist."""
        for topic_id, indexes in partitions.items():
            name = self.name_of(topic_id)
            if name is not None:
                yield topic_id, name, sorted(indexes)

    def _digest(self, topic: TopicImage) -> TopicDigest:
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            racks = tuple(
                frozenset(
                    self._racks[broker] for broker in partition.replicas if broker in self._racks
                )
                for partition in topic.partitions
            )
        return TopicDigest(topic.name, topic.topic_id, len(topic.partitions), racks)


def racks_of(image: MetadataImage) -> dict[int, str]:
    """The racks of the brokers that have one."""
    return {
        broker_id: broker.rack
        for broker_id, broker in image.brokers.items()
        if broker.rack is not None
    }


NO_TOPICS: Final = TopicCatalog(MetadataImage.empty())


def changed_topic_names(old: MetadataImage, new: MetadataImage) -> frozenset[str]:
    """Topics that changed for groups: created, deleted, with more partitions, or on other racks.

    Changes of leaders and of ISRs do not count. Costs a comparison by identity for every topic.
    """
    before, after = old.topics_by_id, new.topics_by_id
    if before is after and old.brokers is new.brokers:
        return frozenset()
    racks = racks_of(new)
    if racks_of(old) != racks:
        return frozenset((*old.topics_by_name, *new.topics_by_name))
    names = {topic.name for topic_id, topic in before.items() if topic_id not in after}
    for topic_id, topic in after.items():
        known = before.get(topic_id)
        if known is not topic and (known is None or _is_topic_changed(known, topic, racks)):
            names.add(topic.name)
    return frozenset(names)


def _is_topic_changed(old: TopicImage, new: TopicImage, racks: Mapping[int, str]) -> bool:
    if len(old.partitions) != len(new.partitions):
        return True
    return bool(racks) and any(
        known is not partition and known.replicas != partition.replicas
        for known, partition in zip(old.partitions, new.partitions, strict=True)
    )


def metadata_hash(topics: Iterable[TopicDigest], *, with_racks: bool) -> int:
    """A number (int64, not 0) that differs when one of the topics does (KIP-1101).

    Racks count only `with_racks`: a group whose members have no racks is not assigned again when
    replicas move. Without topics it is 0.
    """
    digest = hashlib.blake2b(digest_size=8)
    is_empty = True
    for topic in sorted(topics, key=lambda topic: topic.topic_id):
        is_empty = False
        digest.update(topic.topic_id + topic.partition_count.to_bytes(4))
        if with_racks:
            digest.update(repr([sorted(racks) for racks in topic.racks]).encode())
    return 0 if is_empty else int.from_bytes(digest.digest(), signed=True) or 1
