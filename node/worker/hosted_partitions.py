"""The stores and partitions of a worker, kept up to date with the metadata image.

The image has the partitions of this node and their configs. Partitions that are not in the image
are deleted, those that are not in the store are created, so that a worker may be killed at any
point. Applying an image costs one synced change per store."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.image import (
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.cluster.metadata.settings import broker_settings, topic_settings
from odradek.cluster.metadata.throttles import (
    follower_throttle_rate,
    leader_throttle_rate,
    rates_of,
)
from odradek.cluster.metadata.topic_settings import TopicSettings
from odradek.cluster.replication.partition import check_leader, has_enough_in_sync
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid
from odradek.storage.environment import StorageError
from odradek.storage.layout import directory_of, store_folder, store_index, store_number
from odradek.storage.partition_log import NewPartition, PartitionLog
from odradek.storage.reserve import DISK_FULL
from odradek.storage.settings import Durability, LogSettings, StoreOptions, TimestampType
from odradek.storage.status import ReplicaRole
from odradek.storage.store import Store

log = get_logger(__name__)

UPDATED_MAX = 100
"""The partitions to which changed configs are applied at once, at about 50 microseconds each."""

PartitionLocation = tuple[int, int]
"""(store, store-local partition number)"""


class AppendAdmission(NamedTuple):
    """Whether a partition takes appends: the error code if it does not (which may differ for
    acks=all), the leader epoch for its batches, and whether it is replicated."""

    leader_epoch: int
    error_code: ErrorCode
    error_code_acks_all: ErrorCode
    is_replicated: bool = False


class ReplicatedPartition(NamedTuple):
    """A partition with more than one replica. Rates are in bytes per second, None if the replica is
    not throttled (KIP-73)."""

    topic_id: bytes
    partition: int
    image: PartitionImage
    min_insync_replicas: int
    leader_throttle_rate: int | None = None
    follower_throttle_rate: int | None = None


_Wanted = tuple[NewPartition, AppendAdmission, ReplicatedPartition]
"""A partition as it has to be in its store."""
_Partitions = tuple[TopicImage, Sequence[int]]
"""A topic, and some of its partitions."""
_NOT_LEADER = AppendAdmission(
    -1, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER
)


class HostedPartitions:
    """The stores of one worker: those whose index modulo the worker count is its own."""

    def __init__(
        self,
        *,
        folders: Sequence[Path],
        directory_ids: Sequence[Uuid] = (),
        offline: Collection[int] = (),
        worker: int,
        worker_count: int,
        store_count: int,
        node_id: int,
        static_configs: Mapping[str, str],
        options: StoreOptions,
        now_ms: int,
        open_store: Callable[[Path, StoreOptions, int], Store] = Store.open,
    ) -> None:
        """`folders` are the folders with stores of the log directories, `directory_ids` their ids,
        `offline` the places of those that cannot be used."""
        self._directory_count = len(folders)
        self._places: dict[Uuid | None, int] = {None: 0}
        """The places of the log directories by their ids."""
        self._directory_ids = tuple(directory_ids)
        self._places.update({each: place for place, each in enumerate(directory_ids) if place})
        self._node_id = node_id
        self._options = options
        self._worker_count = worker_count
        self._store_count = store_count
        self._static_configs = static_configs
        self._has_new_static_configs = False
        self.offline = set(offline)
        """The places of the log directories that are offline."""
        self.failed: dict[int, str] = {}
        """The places of the log directories that this worker has found to have failed, with the
        reasons. The worker reports and empties it."""
        self._failed_stores: list[Store] = []
        """Neither used nor closed: both might wait for the disk."""
        self.stores: dict[int, Store] = {}
        self._admissions: dict[PartitionLocation, AppendAdmission] = {}
        self._image = MetadataImage.empty()
        self._outdated: dict[Uuid, int] = {}
        """Topics with changed configs, and the first partition that does not have them yet."""
        self._applied_settings: BrokerSettings | None = None
        self.replicated: dict[PartitionLocation, ReplicatedPartition] = {}
        self.moved: dict[PartitionLocation, PartitionLocation] = {}
        """Where the replicas are that have been moved to other log directories."""
        self.misplaced: dict[tuple[bytes, int], Uuid] = {}
        """The log directories of replicas, by topic id and partition, that the metadata has in
        others. The controller has to be told."""
        self.changed: set[PartitionLocation] = set()
        """Partitions whose entry in `replicated` is new, different or removed. Replication empties
        it."""
        self._open_stores(folders, worker, options, now_ms, open_store)

    def _open_stores(
        self,
        folders: Sequence[Path],
        worker: int,
        options: StoreOptions,
        now_ms: int,
        open_store: Callable[[Path, StoreOptions, int], Store],
    ) -> None:
        for directory in range(len(folders)):
            first, end = store_number(directory, worker), store_number(directory, self._store_count)
            for store in range(first, end, self._worker_count):
                if directory in self.offline:
                    break
                try:
                    folder = store_folder(folders, store)
                    self.stores[store] = open_store(folder, options, now_ms)
                except StorageError as error:
                    if not directory:
                        raise
                    self._take_offline(directory, str(error))

    def admission(self, store: int, number: int) -> AppendAdmission:
        """Whether the partition takes appends, and in which leader epoch."""
        return self._admissions.get((store, number), _NOT_LEADER)

    def has_transaction(
        self, store: int, number: int, producer_id: int, producer_epoch: int
    ) -> bool:
        """Whether a transaction of the producer in this epoch is under way in the partition."""
        opened = self.stores.get(store)
        log = None if opened is None else opened.partitions().get(number)
        return log is not None and not log.transaction_error(producer_id, producer_epoch)

    def missing_store_error(self, store: int) -> ErrorCode:
        """The error for a request about a store that is not here."""
        if directory_of(store) in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def apply_image(self, image: MetadataImage) -> set[PartitionLocation]:
        """Apply the changes since the last image. Returns the deleted partitions.

        Raises StorageError if the disk is full. The same image can be applied again then.
        """
        old = self._image
        changed = list(_changed_partitions(old, image))
        vanished = (
            self._unknown_locations(image)
            if old.offset == 0
            else self._locations(_deleted_partitions(old, image))
        )
        vanished |= self._locations(
            (topic.topic_id, partition)
            for topic, partitions in changed
            for partition in partitions
            if self._node_id not in topic.partitions[partition].replicas
        )
        numbers: dict[int, list[int]] = {}
        for store, number in vanished:
            numbers.setdefault(store, []).append(number)
            self._admissions.pop((store, number), None)
            if self.replicated.pop((store, number), None) is not None:
                self.changed.add((store, number))
        for store, deleted in numbers.items():
            try:
                if store in self.stores:
                    self.stores[store].delete_partitions(deleted)
            except StorageError as error:
                if not self.take_failure(store, error):
                    raise
        if old.offset == 0 and self._directory_count > 1:
            self._delete_duplicates()
        self._create_or_update(image, changed)
        self._image = image
        if self._directory_count > 1:
            self._note_directories(changed)
        if old.offset:
            reconfigured = self._reconfigured_topics(old, image)
            self._outdated.update((topic.topic_id, 0) for topic in reconfigured)
        self._has_new_static_configs = False
        self._set_options(image)
        self.update_outdated()
        return vanished

    @property
    def is_outdated(self) -> bool:
        """Whether `update_outdated` has more to do."""
        return bool(self._outdated)

    def update_outdated(self) -> None:
        """Apply changed configs to some of the partitions that have them: a slice of milliseconds.
        Raises StorageError as `apply_image`, and can be called again then."""
        count = 0
        while self._outdated and count < UPDATED_MAX:
            topic_id, start = next(iter(self._outdated.items()))
            topic = self._image.topics_by_id.get(topic_id)
            end = start + UPDATED_MAX - count
            if topic is not None:
                end = min(end, len(topic.partitions))
                self._create_or_update(self._image, [(topic, range(start, end))])
                count += end - start
            if topic is None or end >= len(topic.partitions):
                del self._outdated[topic_id]
            else:
                self._outdated[topic_id] = end

    def _reconfigured_topics(self, old: MetadataImage, new: MetadataImage) -> Iterable[TopicImage]:
        """The topics whose configs may have changed."""
        if self._has_new_static_configs or self._has_new_defaults(old, new):
            return new.topics_by_id.values()
        if old.configs is new.configs:
            return ()
        named = (
            new.topics_by_name.get(resource.name)
            for resource in new.configs.changed_since(old.configs)
            if resource.type == ConfigResourceType.TOPIC
        )
        return [topic for topic in named if topic is not None]

    def _has_new_defaults(self, old: MetadataImage, new: MetadataImage) -> bool:
        """Whether a broker config changed that is a default of topics or limits replication."""
        if old.configs.broker_cache is new.configs.broker_cache:
            return False
        node_id, static = self._node_id, self._static_configs
        # No topic has this name, nor configs of its own.
        defaults = [topic_settings(image, node_id, static, "") for image in (old, new)]
        brokers = [broker_settings(image, node_id, static) for image in (old, new)]
        return defaults[0] != defaults[1] or rates_of(brokers[0]) != rates_of(brokers[1])

    def _delete_duplicates(self) -> None:
        """A process that ended while it moved replicas may have left two of a partition. The one
        with fewer records, or as many and fewer replacements, was in use before the other."""

        def precedence(location: PartitionLocation) -> tuple[int, int]:
            replicas = self.stores[location[0]].future_replicas
            return self.log(location).log_end_offset, replicas.replacements_of(location[1])

        kept: dict[tuple[bytes, int], PartitionLocation] = {}
        for store_id, store in self.stores.items():
            futures = set(store.future_replicas.numbers())
            for number, held in list(store.partitions().items()):
                key, location = (held.topic_id, held.partition), (store_id, number)
                other = kept.get(key)
                if number in futures:
                    continue
                if other is None:
                    kept[key] = location
                    continue
                lesser = min(other, location, key=precedence)
                kept[key] = location if lesser == other else other
                self.stores[lesser[0]].delete_partitions([lesser[1]])

    def set_static_configs(self, static_configs: Mapping[str, str]) -> None:
        """The broker's own configuration has changed: the next image that is applied, which may be
        the same as the last, applies it."""
        self._static_configs = static_configs
        self._has_new_static_configs = True

    def broker_settings(self) -> BrokerSettings:
        """The settings of this broker, as of the image that was applied last."""
        return broker_settings(self._image, self._node_id, self._static_configs)

    def _set_options(self, image: MetadataImage) -> None:
        settings = broker_settings(image, self._node_id, self._static_configs)
        if settings is not self._applied_settings:
            self._applied_settings = settings
            self._options = msgspec.structs.replace(
                self._options,
                producer_id_expiration_ms=settings.producer_id_expiration_ms,
                retention_check_interval_ms=settings.log_retention_check_interval_ms,
                durability=Durability(settings.durability),
            )
            for store in self.stores.values():
                store.set_options(self._options)

    def close(self) -> None:
        """Sync and close every store."""
        for store in self.stores.values():
            store.close()

    def _create_or_update(self, image: MetadataImage, topics: Iterable[_Partitions]) -> None:
        """Create these partitions, or update those that exist."""
        by_store: dict[int, list[_Wanted]] = {}
        broker = broker_settings(image, self._node_id, self._static_configs)
        log_settings = LogSettings()
        settings_before: TopicSettings | None = None
        for topic, partitions in topics:
            settings = topic_settings(image, self._node_id, self._static_configs, topic.name)
            if settings is not settings_before:
                log_settings, settings_before = log_settings_of(settings), settings
            for partition in partitions:
                state = topic.partitions[partition]
                if self._node_id not in state.replicas:
                    continue
                store = self._store_for(topic.topic_id, partition, state)
                if store is None:
                    continue
                role = ReplicaRole.LEADER if state.leader == self._node_id else ReplicaRole.FOLLOWER
                new = NewPartition(
                    topic.topic_id, topic.name, partition, state.leader_epoch, log_settings, role
                )
                replicated = ReplicatedPartition(
                    topic.topic_id,
                    partition,
                    state,
                    settings.min_insync_replicas,
                    self._rate_per_worker(
                        leader_throttle_rate(broker, settings, partition, self._node_id)
                    ),
                    self._rate_per_worker(
                        follower_throttle_rate(broker, settings, partition, self._node_id)
                    ),
                )
                admission = self._admission_of(state, settings)
                by_store.setdefault(store, []).append((new, admission, replicated))
        self._create_in_stores(by_store)

    def _create_in_stores(self, by_store: Mapping[int, Sequence[_Wanted]]) -> None:
        for index, partitions in by_store.items():
            store = self.stores.get(index)
            if store is None:
                continue  # its log directory has just failed
            try:
                numbers = store.create_partitions([new for new, _, _ in partitions])
            except StorageError as error:
                if not self.take_failure(index, error):
                    raise
                continue
            for number, (_, admission, replicated) in zip(numbers, partitions, strict=True):
                self._admissions[(index, number)] = admission
                if self.moved:
                    self.moved.pop((index, number), None)
                self._replicate(store, (index, number), replicated)

    def take_failure(self, store: int, error: StorageError) -> bool:
        """Whether an error of a store means that its log directory has failed. Then that is taken
        offline. The data folder never is, and a full disk can be written again."""
        directory = directory_of(store)
        if not directory:
            return False
        if directory in self.offline:
            return True
        problem = self.stores[store].disk_problem(was_full=False)
        if DISK_FULL in (problem, str(error)):
            return False
        self._take_offline(directory, problem or str(error))
        return True

    def take_offline(self, directory: int) -> None:
        """Stop to use a log directory: its partitions are hosted no more."""
        if directory not in self.offline:
            self._take_offline(directory, "")

    def _take_offline(self, directory: int, problem: str) -> None:
        self.offline.add(directory)
        if problem:
            self.failed[directory] = problem
        for store in [each for each in self.stores if directory_of(each) == directory]:
            self._failed_stores.append(self.stores.pop(store))
        for location in [each for each in self._admissions if directory_of(each[0]) == directory]:
            del self._admissions[location]
            if self.replicated.pop(location, None) is not None:
                self.changed.add(location)

    def _store_for(self, topic_id: bytes, partition: int, state: PartitionImage) -> int | None:
        """The store in which a replica is, or in which it has to be created; None if it is not in a
        store of this worker, or its log directory is offline."""
        index = store_index(topic_id, partition, self._store_count)
        if self._directory_count > 1:
            location = self.location_of(topic_id, partition)
            if location is not None:
                return location[0]
            place = self._places.get(state.directory_of(self._node_id))
            if place is None or (topic_id, partition) in self.misplaced:
                # Misplaced and not found: it is in a directory that has failed since. An empty
                # log where the metadata still has it would be one of a member of the ISR.
                return None
            index = store_number(place, index)
        return index if index in self.stores else None

    def _rate_per_worker(self, rate: int | None) -> int | None:
        """This worker's share of a rate for the whole node. None: not limited."""
        return None if rate is None else max(1, rate // self._worker_count)

    def _replicate(
        self, store: Store, location: PartitionLocation, replicated: ReplicatedPartition
    ) -> None:
        former = self.replicated.get(location)
        if len(replicated.image.replicas) > 1:
            if former is None:
                store.set_replicated(location[1], True)
            if former != replicated:
                self.replicated[location] = replicated
                self.changed.add(location)
        else:
            # This is the only replica, or it has become the only one.
            if former is not None:
                del self.replicated[location]
                self.changed.add(location)
            store.set_replicated(location[1], False)

    def _admission_of(self, state: PartitionImage, settings: TopicSettings) -> AppendAdmission:
        if check_leader(state, self._node_id):
            return _NOT_LEADER
        has_enough = has_enough_in_sync(state, settings.min_insync_replicas)
        return AppendAdmission(
            state.leader_epoch,
            ErrorCode.NONE,
            ErrorCode.NONE if has_enough else ErrorCode.NOT_ENOUGH_REPLICAS,
            len(state.replicas) > 1,
        )

    def location_of(self, topic_id: bytes, partition: int) -> PartitionLocation | None:
        """The location of a partition. None if it is not in a store of this worker."""
        index = store_index(topic_id, partition, self._store_count)
        for directory in range(self._directory_count):
            at = store_number(directory, index)
            store = self.stores.get(at)
            number = store.number_of(topic_id, partition) if store is not None else None
            if number is not None:
                return at, number
        return None

    def relocate(self, old: PartitionLocation, new: PartitionLocation) -> None:
        """A replica has been moved to another log directory. Requests that are on their way to the
        old location go to the new one."""
        admission = self._admissions.pop(old, None)
        if admission is not None:
            self._admissions[new] = admission
        replicated = self.replicated.pop(old, None)
        if replicated is not None:
            self.replicated[new] = replicated
            self.changed |= {old, new}
        self.moved = {key: at for key, at in self.moved.items() if key != new}
        self.moved[old] = new
        held = self.log(new)
        self._note_directory(held.topic_id, held.partition, new[0])

    def _note_directories(self, changed: Iterable[_Partitions]) -> None:
        """Note where the replicas of these partitions are, once `_image` has them."""
        for topic, partitions in changed:
            for partition in partitions:
                location = self.location_of(topic.topic_id, partition)
                if location is not None:
                    self._note_directory(topic.topic_id, partition, location[0])
        for (topic_id, partition), directory in list(self.misplaced.items()):
            state = self._image.partition(topic_id, partition)
            if (
                state is None
                or self._node_id not in state.replicas
                or state.directory_of(self._node_id) == directory
            ):
                del self.misplaced[topic_id, partition]

    def _note_directory(self, topic_id: bytes, partition: int, store: int) -> None:
        """Note where a replica is, if the metadata has it in another log directory."""
        state = self._image.partition(topic_id, partition)
        known = None if state is None else self._places.get(state.directory_of(self._node_id))
        place = directory_of(store)
        if state is not None and known != place and place < len(self._directory_ids):
            self.misplaced[topic_id, partition] = self._directory_ids[place]
        else:
            self.misplaced.pop((topic_id, partition), None)

    def log(self, location: PartitionLocation) -> PartitionLog:
        """The log of a partition of this worker."""
        store, number = location
        return self.stores[store].partitions()[number]

    def partition_name(self, store: int, number: int) -> tuple[str, int] | None:
        """Topic and partition of a log; None if this worker does not have it."""
        hosted = self.stores.get(store)
        log = None if hosted is None else hosted.partitions().get(number)
        return None if log is None else (log.topic_name, log.partition)

    def _locations(self, partitions: Iterable[tuple[bytes, int]]) -> set[PartitionLocation]:
        """Those of these partitions that are in a store of this worker."""
        locations = (self.location_of(*partition) for partition in partitions)
        return {location for location in locations if location is not None}

    def _unknown_locations(self, image: MetadataImage) -> set[PartitionLocation]:
        """Partitions in the stores that are not in the first image: deleted in the meantime."""
        locations: set[PartitionLocation] = set()
        for index, store in self.stores.items():
            for number, held in store.partitions().items():
                state = image.partition(held.topic_id, held.partition)
                if state is None or self._node_id not in state.replicas:
                    log.info(
                        "deleting a partition that is not assigned to this node any more",
                        topic=held.topic_name,
                        partition=held.partition,
                    )
                    locations.add((index, number))
        return locations


def _deleted_partitions(old: MetadataImage, new: MetadataImage) -> Iterator[tuple[bytes, int]]:
    """(topic id, partition) of the deleted topics."""
    if old.topics_by_id is not new.topics_by_id:
        for topic_id, topic in old.topics_by_id.items():
            if topic_id not in new.topics_by_id:
                for partition in range(len(topic.partitions)):
                    yield topic_id, partition


def _changed_partitions(old: MetadataImage, new: MetadataImage) -> Iterator[_Partitions]:
    """The new partitions and those in another state, with their topics."""
    if old.topics_by_id is new.topics_by_id:
        return
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is None:
            yield topic, range(len(topic.partitions))
        elif before is not topic:
            known = before.partitions
            yield (
                topic,
                [
                    partition
                    for partition, state in enumerate(topic.partitions)
                    if partition >= len(known) or known[partition] is not state
                ],
            )


def log_settings_of(settings: TopicSettings) -> LogSettings:
    """The topic configs that apply to storage: the fields that both have, and three."""
    return LogSettings(
        cleanup_delete="delete" in settings.cleanup_policy,
        cleanup_compact="compact" in settings.cleanup_policy,
        message_timestamp_type=TimestampType(settings.message_timestamp_type),
        **{name: getattr(settings, name) for name in _COPIED_FIELDS},
    )


_COPIED_FIELDS = frozenset(LogSettings.__struct_fields__) - {
    "cleanup_delete",
    "cleanup_compact",
    "message_timestamp_type",
}
