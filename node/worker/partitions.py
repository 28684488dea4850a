"""What a worker owns, kept in step with the metadata: its stores, and the partitions in them.

The image says which partitions this node has and with which configs; the stores follow. A partition
that the image does not know is deleted, one that the store does not know is created, so that it does not
matter where a worker was when it died. Partitions of one commit are created in one transaction per store.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster.metadata.image import MetadataImage, PartitionImage, TopicImage
from cluster.metadata.settings import TopicSettings, topic_settings
from storage.layout import store_folder, store_index
from storage.settings import LogSettings, StoreOptions, TimestampType
from storage.store import PartitionSpec, Store

log = logging.getLogger(__name__)

Place = tuple[int, int]


class Partitions:
    """The stores of one worker: `store % worker_count == worker`. `images` tells a place's partition."""

    def __init__(
        self,
        *,
        folder: Path,
        worker: int,
        worker_count: int,
        store_count: int,
        node_id: int,
        static_configs: Mapping[str, str],
        options: StoreOptions,
        now_ms: int,
    ) -> None:
        self._node_id = node_id
        self._store_count = store_count
        self._static_configs = static_configs
        self.stores: dict[int, Store] = {}
        for index in range(worker, store_count, worker_count):
            self.stores[index] = Store.open(store_folder(folder, index), options, now_ms)
        self.leading: dict[Place, tuple[TopicSettings, PartitionImage]] = {}
        self._topics: dict[Place, str] = {}
        self._image = MetadataImage.empty()

    def follow(self, image: MetadataImage, now_ms: int) -> set[Place]:
        """Carry out what changed since the last image. Returns the places that vanished."""
        old, self._image = self._image, image
        if old.offset == 0:
            vanished = self._drop_unknown(image)
            topics: Iterable[TopicImage] = image.topics_by_id.values()
        else:
            gone = [
                topic
                for topic_id, topic in old.topics_by_id.items()
                if topic_id not in image.topics_by_id
            ]
            vanished = self._drop(gone)
            topics = (
                topic
                for topic_id, topic in image.topics_by_id.items()
                if old.topics_by_id.get(topic_id) is not topic or old.configs is not image.configs
            )
        self._create(topics, now_ms)
        return vanished

    def place_of(self, topic_id: bytes, partition: int) -> tuple[int, Store] | None:
        """The store that holds a partition, when it is one of ours."""
        index = store_index(topic_id, partition, self._store_count)
        store = self.stores.get(index)
        return None if store is None else (index, store)

    def _create(self, topics: Iterable[TopicImage], now_ms: int) -> None:
        new: dict[int, list[PartitionSpec]] = {}
        known: list[tuple[int, int, TopicImage, int, TopicSettings, LogSettings]] = []
        for topic in topics:
            settings = topic_settings(self._image, self._node_id, self._static_configs, topic.name)
            log_settings = log_settings_of(settings)
            for partition, image in enumerate(topic.partitions):
                if self._node_id not in image.replicas:
                    continue
                place = self.place_of(topic.topic_id, partition)
                if place is None:
                    continue
                index, store = place
                number = store.number_of(topic.topic_id, partition)
                if number is None:
                    new.setdefault(index, []).append(
                        PartitionSpec(
                            topic_id=topic.topic_id,
                            topic_name=topic.name,
                            partition=partition,
                            leader_epoch=image.leader_epoch,
                            settings=log_settings,
                        )
                    )
                else:
                    store.set_settings(number, log_settings)
                    store.set_leader_epoch(number, image.leader_epoch)
                known.append((index, partition, topic, partition, settings, log_settings))
        for index, partitions in new.items():
            self.stores[index].create_partitions(partitions, now_ms)
        for index, partition, topic, _, settings, _ in known:
            number = self.stores[index].number_of(topic.topic_id, partition)
            assert number is not None
            self.leading[(index, number)] = (settings, topic.partitions[partition])
            self._topics[(index, number)] = topic.name

    def _drop(self, topics: Iterable[TopicImage]) -> set[Place]:
        vanished: set[Place] = set()
        for topic in topics:
            for partition in range(len(topic.partitions)):
                place = self.place_of(topic.topic_id, partition)
                number = place[1].number_of(topic.topic_id, partition) if place else None
                if place is not None and number is not None:
                    self._delete(place[0], number)
                    vanished.add((place[0], number))
        return vanished

    def _drop_unknown(self, image: MetadataImage) -> set[Place]:
        vanished: set[Place] = set()
        for index, store in self.stores.items():
            for number, partition in list(store.partitions().items()):
                topic = image.topics_by_id.get(partition.topic_id)
                if (
                    topic is None
                    or partition.partition >= len(topic.partitions)
                    or self._node_id not in topic.partitions[partition.partition].replicas
                ):
                    log.info("dropping %s-%d", partition.topic_name, partition.partition)
                    self._delete(index, number)
                    vanished.add((index, number))
        return vanished

    def _delete(self, store: int, number: int) -> None:
        self.stores[store].delete_partition(number)
        self.leading.pop((store, number), None)
        self._topics.pop((store, number), None)

    def close(self) -> None:
        """Sync and close every store."""
        for store in self.stores.values():
            store.close()


def log_settings_of(settings: TopicSettings) -> LogSettings:
    """The part of a topic's configs that storage acts on."""
    return LogSettings(
        cleanup_delete="delete" in settings.cleanup_policy,
        cleanup_compact="compact" in settings.cleanup_policy,
        compression_type=settings.compression_type,
        compression_gzip_level=settings.compression_gzip_level,
        compression_lz4_level=settings.compression_lz4_level,
        compression_zstd_level=settings.compression_zstd_level,
        delete_retention_ms=settings.delete_retention_ms,
        file_delete_delay_ms=settings.file_delete_delay_ms,
        flush_messages=settings.flush_messages,
        flush_ms=settings.flush_ms,
        max_compaction_lag_ms=settings.max_compaction_lag_ms,
        max_message_bytes=settings.max_message_bytes,
        message_timestamp_type=TimestampType(settings.message_timestamp_type),
        message_timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        retention_bytes=settings.retention_bytes,
        retention_ms=settings.retention_ms,
        segment_bytes=settings.segment_bytes,
        segment_jitter_ms=settings.segment_jitter_ms,
        segment_ms=settings.segment_ms,
    )
