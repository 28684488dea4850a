"""Moves replicas between the log directories of this node while they are in use (KIP-113).

    state       event                                            next
    -------------------------------------------------------------------------------------------
    (none)      AlterReplicaLogDirs names another directory      copying: a future replica is
                                                                 created there
    copying     it has all records                               caught up
    caught up   it has fallen behind                             copying, if by more than a slice
                SETTLE_MS later, and it has all records          done: it replaces the replica,
                                                                 which is deleted
    either      AlterReplicaLogDirs names the present directory  (none): it is deleted
                another directory                                copying, into that one
                the partition is deleted or moves to another
                node, or one of the two directories fails        (none)

The future replica follows the present one as a follower its leader: it copies batches, in slices
between turns, and truncates where the two differ. Both are in stores of this worker, so that
nothing is appended between the last slice and the replacement. Catalogs say which replicas are
future ones: moves continue after a restart. A request for a partition that is not on this node yet
is remembered until it is, or this process ends.
"""

from collections.abc import Callable
from typing import Final

from odradek.cluster.metadata.config_definitions import INT64_MAX
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.replication.throttle import TokenBudget
from odradek.node.structured_log import get_logger
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.moving_workers import MovingWorkers
from odradek.node.worker.read_ahead import LogSlice, ReadAhead
from odradek.node.worker.replica_fetchers import last_epoch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER, NO_EPOCH
from odradek.storage.environment import StorageError
from odradek.storage.layout import directory_of, index_of, store_number
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import NewPartition, PartitionLog
from odradek.storage.reader import StoreReader
from odradek.storage.status import ReplicaRole
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin

log = get_logger(__name__)

SLICE_BYTES: Final = 512 << 10
"""About two milliseconds of copying."""
SETTLE_MS: Final = 1_500
"""So long a future replica follows before it replaces the other one: by then most of it has been
synced, and the sync that remains is short."""
_FOLLOW_MS: Final = 20
_READ_MS: Final = 1
_RETRY_MS: Final = 1_000
_SHARE_MS: Final = 1_000
"""How often a throttled worker looks how many others move replicas."""
_PREFERRED_MAX: Final = 100_000

TopicIdPartition = tuple[bytes, int]
OnMoved = Callable[[PartitionLocation, PartitionLocation], None]
"""Called with the old and the new location when a replica has been replaced."""


class _Move:
    """One future replica, and the replica that it is to replace."""

    def __init__(self, source: PartitionLocation, target: PartitionLocation) -> None:
        self.source = source
        self.target = target
        self.caught_up_ms: int | None = None
        self.due_ms = 0


class ReplicaMoves:
    """The moves of one worker. Times are milliseconds of a clock that does not go back."""

    def __init__(
        self,
        partitions: HostedPartitions,
        open_reader: Callable[[int], StoreReader],
        on_moved: OnMoved,
        is_preparing: Callable[[PartitionLocation], bool] = lambda _location: False,
        *,
        workers: MovingWorkers,
        now_ms: int,
    ) -> None:
        """`is_preparing` says whether appends to a partition wait outside of the turns: it is not
        replaced then, because they must not be overtaken. The rate of the node is divided among
        those of its `workers` that move replicas."""
        self._workers = workers
        self._rate: int | None = None
        self._is_preparing = is_preparing
        self._partitions = partitions
        self._open_reader = open_reader
        self._on_moved = on_moved
        self._moves: dict[TopicIdPartition, _Move] = {}
        self._readers: dict[int, StoreReader] = {}
        self._ahead = ReadAhead(open_reader)
        self._preferred: dict[TopicIdPartition, int] = {}
        """The directories for partitions that are not on this node yet."""
        self._budget = TokenBudget(now_ms)
        self.moved_bytes = 0

    @property
    def count(self) -> int:
        """The moves in progress."""
        return len(self._moves)

    @property
    def is_reading(self) -> bool:
        """Whether the thread is reading what the next slice copies."""
        return self._ahead.is_busy

    def begin(self, topic_id: bytes, partition: int, directory: int) -> ErrorCode:
        """Move a partition's replica to the log directory at this place. Moves to another
        directory end; a move to the present one has nothing to do.

        REPLICA_NOT_AVAILABLE if it is not on this node yet; it is moved when it is.
        KAFKA_STORAGE_ERROR if a future replica cannot be created or deleted.
        """
        if directory in self._partitions.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        key = topic_id, partition
        source = self._partitions.location_of(topic_id, partition)
        if source is None:
            if len(self._preferred) < _PREFERRED_MAX:
                self._preferred[key] = directory
            return ErrorCode.REPLICA_NOT_AVAILABLE
        target_store = store_number(directory, index_of(source[0]))
        move = self._moves.get(key)
        if move is not None and move.target[0] == target_store:
            return ErrorCode.NONE
        try:
            if move is not None:
                self._delete_future(key, move)
            if target_store != source[0]:
                self._create_future(key, source, target_store)
        except StorageError as error:
            log.warning("a replica cannot be moved between log directories", reason=str(error))
            self._partitions.take_failure(target_store, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        finally:
            self._tell_workers()
        return ErrorCode.NONE

    def apply_image(self, image: MetadataImage) -> None:
        """Continue what a former process has begun, and end what has no replica any more. To be
        called after `HostedPartitions.apply_image`."""
        partitions = self._partitions
        rate = partitions.broker_settings().replica_alter_log_dirs_io_max_bytes_per_second
        self._set_rate(rate if rate < INT64_MAX else None)
        for store_id, store in list(partitions.stores.items()):
            for number in store.future_replicas.numbers():
                held = store.partitions()[number]
                key = held.topic_id, held.partition
                source = partitions.location_of(*key)
                known = self._moves.get(key)
                if source is None or (known is not None and known.target != (store_id, number)):
                    self._delete(store_id, number)
                elif known is None or known.source != source:
                    # After a restart nothing says that it must not be retained by itself.
                    store.set_leader_epoch(number, NO_EPOCH, ReplicaRole.FOLLOWER)
                    store.set_replicated(number, True)
                    self._moves[key] = _Move(source, (store_id, number))
        for key, move in list(self._moves.items()):
            stored = partitions.stores.get(move.target[0])
            is_there = stored is not None and move.target[1] in stored.partitions()
            if not is_there or partitions.location_of(*key) != move.source:
                del self._moves[key]
        for key, directory in list(self._preferred.items()):
            if partitions.location_of(*key) is not None:
                del self._preferred[key]
                self.begin(*key, directory)
            elif image.partition(*key) is None and key[0] not in image.topics_by_id:
                del self._preferred[key]
        self._tell_workers()

    def _tell_workers(self) -> None:
        self._workers.tell(is_moving=bool(self._moves))
        if not self._moves:
            # They would keep files open that were deleted, and their space in use.
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()
            self._ahead.close()

    def _set_rate(self, rate: int | None) -> None:
        """The bytes per second of the whole node; None: not limited."""
        if rate != self._rate:
            self._rate = self._budget.rate = rate
            for move in self._moves.values():
                move.due_ms = 0  # it may wait for tokens that come sooner now

    def run_slice(self, now_ms: int, wall_ms: int) -> None:
        """Copy a slice of one future replica, or let it replace the other. Not inside a turn.
        `wall_ms` is the time since the epoch."""
        due = next((key for key, each in self._moves.items() if now_ms >= each.due_ms), None)
        if due is None:
            return
        # The next slice is that of another one.
        move = self._moves.pop(due)
        stores = self._partitions.stores
        if move.source[0] not in stores or move.target[0] not in stores:
            self._tell_workers()
            return  # a log directory has failed
        self._moves[due] = move
        try:
            is_complete = self._follow(move, now_ms, wall_ms)
            if is_complete:
                self._promote(move)
        except StorageError as error:
            log.warning("a replica cannot be moved between log directories yet", reason=str(error))
            move.due_ms = now_ms + _RETRY_MS
            if not self._partitions.take_failure(move.target[0], error):
                self._partitions.take_failure(move.source[0], error)
            return
        if is_complete:
            self._replace(due, move)

    def next_ms(self) -> int:
        """When `run_slice` has something to do."""
        return min((move.due_ms for move in self._moves.values()), default=NEVER)

    def _follow(self, move: _Move, now_ms: int, wall_ms: int) -> bool:
        """Copy a slice. Whether the future replica may replace the other one now."""
        source = self._partitions.log(move.source)
        target = self._partitions.log(move.target)
        self._align(move, source, target, wall_ms)
        if target.log_end_offset < source.log_end_offset:
            if not self._ahead.has_read(_next_slice(move, source, target)):
                move.due_ms = now_ms + _READ_MS
                return False
            if self._rate is not None and not self._has_tokens(self._rate, now_ms):
                # Not later: other workers may end their moves, whose share this one gets then.
                move.due_ms = min(self._budget.next_ms(now_ms), now_ms + _SHARE_MS)
                return False
            copied = self._copy(move, source, target, wall_ms)
            self.moved_bytes += copied
            self._budget.spend(copied, now_ms)
            if target.log_end_offset < source.log_end_offset:
                self._ahead.has_read(_next_slice(move, source, target))
        if target.log_end_offset < source.log_end_offset:
            move.caught_up_ms = None
            move.due_ms = now_ms
            return False
        if move.caught_up_ms is None:
            move.caught_up_ms = now_ms
        if now_ms < move.caught_up_ms + SETTLE_MS or self._is_preparing(move.source):
            move.due_ms = now_ms + _FOLLOW_MS
            return False
        return True

    def _has_tokens(self, rate: int, now_ms: int) -> bool:
        share = max(1, rate // self._workers.count)
        if share != self._budget.rate:
            self._budget.available(now_ms)  # until now with the former share
            self._budget.rate = share
        return self._budget.available(now_ms)

    def _align(self, move: _Move, source: PartitionLog, target: PartitionLog, wall_ms: int) -> None:
        """Let the future replica be a part of the other one, which may have been truncated or have
        another log start."""
        store, number = self._partitions.stores[move.target[0]], move.target[1]
        epoch = last_epoch(target)
        if epoch != NO_EPOCH:
            found, end = self._partitions.stores[move.source[0]].end_offset_for_epoch(
                move.source[1], epoch
            )
            if found == NO_EPOCH:
                store.truncate_fully_and_start_at(number, source.log_start_offset, wall_ms)
            elif found != epoch or end < target.log_end_offset:
                own = store.end_offset_for_epoch(number, found)[1]
                store.truncate({number: min(end, own)}, wall_ms)
        if source.log_start_offset > target.log_end_offset or (
            target.log_end_offset == target.log_start_offset != source.log_start_offset
        ):
            store.truncate_fully_and_start_at(number, source.log_start_offset, wall_ms)
        elif source.log_start_offset > target.log_start_offset:
            store.log_starts.move({number: source.log_start_offset})

    def _copy(self, move: _Move, source: PartitionLog, target: PartitionLog, wall_ms: int) -> int:
        """The bytes that were copied."""
        found = self._reader(move.source[0]).read(
            move.source[1],
            target.log_end_offset,
            max_bytes=SLICE_BYTES,
            end_offset=source.log_end_offset,
        )
        if not found.buffers:
            raise StorageError(f"no batch at offset {target.log_end_offset}")
        store, number = self._partitions.stores[move.target[0]], move.target[1]
        turn = store.begin(wall_ms)
        batches = LogAppend.of_bytes(b"".join(found.buffers), AppendOrigin.REPLICATION)
        result = turn.append(number, batches)
        turn.commit()
        if result.error_code:
            raise StorageError(f"{result.error_code.name}: {result.error_message}")
        return found.byte_count

    def _promote(self, move: _Move) -> None:
        source = self._partitions.log(move.source)
        store, number = self._partitions.stores[move.target[0]], move.target[1]
        store.set_settings(number, source.settings)
        replaced = self._partitions.stores[move.source[0]].future_replicas
        store.future_replicas.promote(number, source, replaced.replacements_of(move.source[1]) + 1)

    def _replace(self, key: TopicIdPartition, move: _Move) -> None:
        """The future replica has become the replica: delete the other one. If the process ends
        before, `HostedPartitions` deletes it. Raises StorageError if the other one cannot be
        deleted: then the process must end, because both would be found."""
        del self._moves[key]
        self._partitions.relocate(move.source, move.target)
        topic_name = self._partitions.log(move.target).topic_name
        try:
            self._partitions.stores[move.source[0]].delete_partitions([move.source[1]])
        except StorageError as error:
            if not self._partitions.take_failure(move.source[0], error):
                raise
        self._tell_workers()
        self._on_moved(move.source, move.target)
        log.info(
            "a replica has been moved to another log directory", topic=topic_name, partition=key[1]
        )

    def _create_future(
        self, key: TopicIdPartition, source: PartitionLocation, target_store: int
    ) -> None:
        held = self._partitions.log(source)
        store = self._partitions.stores[target_store]
        new = NewPartition(
            held.topic_id,
            held.topic_name,
            held.partition,
            NO_EPOCH,
            held.settings,
            ReplicaRole.FOLLOWER,
            is_future=True,
        )
        (number,) = store.create_partitions([new])
        store.set_replicated(number, True)
        self._partitions.moved.pop((target_store, number), None)
        self._moves[key] = _Move(source, (target_store, number))
        log.info(
            "a replica is copied to another log directory",
            topic=held.topic_name,
            partition=held.partition,
            log_dir=directory_of(target_store),
        )

    def _delete_future(self, key: TopicIdPartition, move: _Move) -> None:
        self._store_of(move).delete_partitions([move.target[1]])
        del self._moves[key]

    def _delete(self, store_id: int, number: int) -> None:
        try:
            self._partitions.stores[store_id].delete_partitions([number])
        except StorageError as error:
            # It is tried again with the next image.
            log.info("a future replica cannot be deleted yet", reason=str(error))

    def _store_of(self, move: _Move) -> Store:
        return self._partitions.stores[move.target[0]]

    def _reader(self, store: int) -> StoreReader:
        reader = self._readers.get(store)
        if reader is None:
            reader = self._readers[store] = self._open_reader(store)
        return reader


def _next_slice(move: _Move, source: PartitionLog, target: PartitionLog) -> LogSlice:
    return LogSlice(move.source, target.log_end_offset, source.log_end_offset, SLICE_BYTES)
