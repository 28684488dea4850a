"""A store in memory with a disk below it: a kill keeps the writes, a power loss does not.

The state of a log is the real code (`storage.partition_log` with leader epochs and producers); a
list of batches replaces LMDB. A turn is written at once and synced within `sync_interval_ms`, as
with the durability `interval`: a killed process loses nothing, and a power loss removes unsynced
batches from the end of each log. A truncation is synced, and with it all earlier appends
(`storage.truncation`). Opening finds what `Store.open` finds: epochs and producers of the batches,
and the high watermark only if no batch can be missing.
"""

from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple, Protocol

from odradek.protocol.control_records import read_control_batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import LEADER_EPOCH_AT, unpack_header
from odradek.protocol.types import Uuid
from odradek.storage.append import AppendResult, Commit
from odradek.storage.catalog import PartitionRow
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import NewPartition, PartitionLog
from odradek.storage.producer_state import ActiveProducer, describe_producers
from odradek.storage.reader import BATCHES_PER_READ_MAX, ReadResult
from odradek.storage.settings import LogSettings, StoreOptions
from odradek.storage.status import ReplicaRole
from odradek.storage.validation import (
    AppendOrigin,
    BatchRejectedError,
    check_coordinator_batch,
    check_producer,
)

HEADER_BYTES = 61
Identity = tuple[Uuid, int]


class SimulatedBatch(NamedTuple):
    """A stored batch, identified by its CRC, which no broker changes."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    crc: int
    appended_ms: int
    data: bytes


class StoreWatcher(Protocol):
    """Observes everything that happens to the logs of a node. It must not change anything."""

    def appended(
        self, node_id: int, log: "DiskLog", batch: SimulatedBatch, *, leads: bool
    ) -> None: ...

    def cut(self, node_id: int, log: "DiskLog", end_offset: int) -> None: ...

    def deleted(self, node_id: int, log: "DiskLog") -> None: ...

    def committed(self, node_id: int, log: "DiskLog", high_watermark: int) -> None: ...


class DiskLog:
    """One log on the disk, or in the kernel's cache of it."""

    def __init__(self, number: int, new: NewPartition) -> None:
        self.number = number
        self.identity: Identity = (new.topic_id, new.partition)
        self.topic_name = new.topic_name
        self.settings: LogSettings = new.settings
        self.log_start_offset = 0
        self.batches: list[SimulatedBatch] = []
        self.high_watermark = 0
        self.synced_count = 0

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.log_start_offset

    def index_of(self, offset: int) -> int:
        """The index of the batch that contains or follows `offset`."""
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].end_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def batch_at(self, offset: int) -> SimulatedBatch | None:
        """The batch that contains `offset`."""
        index = self.index_of(offset)
        if index == len(self.batches) or self.batches[index].base_offset > offset:
            return None
        return self.batches[index]


class StoreDisk:
    """A store on the disk while no process has it open."""

    def __init__(self, random: Random) -> None:
        self.logs: dict[Identity, DiskLog] = {}
        self.dropped: dict[Identity, int] = {}
        """Coordinators have deleted what is below. It is kept here, because the checker compares
        whole logs."""
        self.next_number = 0
        self.sync_interval_ms = 1_000
        self.is_torn = False
        self._random = random

    def lose_power(self, now_ms: int) -> list[tuple[Identity, SimulatedBatch]]:
        """Returns the lost batches."""
        lost: list[tuple[Identity, SimulatedBatch]] = []
        self.is_torn = True
        synced_ms = now_ms - now_ms % self.sync_interval_ms
        for identity, log in self.logs.items():
            kept = log.synced_count
            while kept < len(log.batches) and log.batches[kept].appended_ms < synced_ms:
                kept += 1
            if kept < len(log.batches):
                kept = self._random.randint(kept, len(log.batches))
            lost += ((identity, batch) for batch in log.batches[kept:])
            del log.batches[kept:]
            log.synced_count = kept
        return lost


class Status:
    """The status table, without watchers."""

    def take_watch(self, _number: int) -> bool:
        return False


class SimulatedLogStarts:
    """As `storage.log_starts.LogStarts`."""

    def __init__(self, store: "SimulatedStore") -> None:
        self._store = store

    def move(self, starts: Mapping[int, int]) -> None:
        for number, offset in starts.items():
            log = self._store.by_number[number]
            self._store.partitions()[number].log_start_offset = log.log_start_offset = offset

    def take_moved(self) -> tuple[int, ...]:
        """No retention deletes anything here."""
        return ()


class SimulatedStore:
    """As `storage.store.Store` and `storage.reader.StoreReader`, as far as workers and routers
    use them."""

    def __init__(self, node_id: int, disk: StoreDisk, watcher: StoreWatcher) -> None:
        self.status = Status()
        self.log_starts = SimulatedLogStarts(self)
        self.node_id = node_id
        self.disk = disk
        self.watcher = watcher
        self.by_number: dict[int, DiskLog] = {}
        self._logs: dict[int, PartitionLog] = {}
        self._proven: dict[int, int] = {}
        for log in disk.logs.values():
            state = self._open(log)
            proven = log.log_start_offset if disk.is_torn else log.high_watermark
            proven = max(log.log_start_offset, min(proven, state.log_end_offset))
            self._proven[log.number] = log.high_watermark = proven
            if not disk.is_torn:
                state.high_watermark = proven
        disk.is_torn = False

    def _open(self, log: DiskLog) -> PartitionLog:
        row = PartitionRow(
            log.number,
            log.identity[0],
            log.topic_name,
            log.identity[1],
            log.settings,
            log.log_start_offset,
            log.log_start_offset,
        )
        state = PartitionLog(row)
        for batch in log.batches:
            _advance(state, batch.data, batch.base_offset, batch.leader_epoch)
        state.high_watermark = state.log_end_offset
        self._logs[log.number] = state
        self.by_number[log.number] = log
        return state

    # -- partitions --------------------------------------------------------------------------------

    def partitions(self) -> Mapping[int, PartitionLog]:
        return self._logs

    def number_of(self, topic_id: Uuid, partition: int) -> int | None:
        log = self.disk.logs.get((topic_id, partition))
        return None if log is None else log.number

    def create_partitions(self, wanted: Iterable[NewPartition]) -> list[int]:
        numbers = []
        for new in wanted:
            identity = new.topic_id, new.partition
            log = self.disk.logs.get(identity)
            if log is None:
                log = self.disk.logs[identity] = DiskLog(self.disk.next_number, new)
                self.disk.next_number += 1
                state = self._open(log)
                if new.role is ReplicaRole.LEADER and new.leader_epoch >= 0:
                    state.epochs.assign(new.leader_epoch, 0)
            self._logs[log.number].settings = log.settings = new.settings
            self.set_leader_epoch(log.number, new.leader_epoch, new.role)
            numbers.append(log.number)
        return numbers

    def delete_partitions(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            log = self.by_number.pop(number, None)
            if log is not None:
                self.watcher.deleted(self.node_id, log)
                del self.disk.logs[log.identity]
                del self._logs[number]

    def set_leader_epoch(self, number: int, leader_epoch: int, role: ReplicaRole) -> None:
        state = self._logs[number]
        state.role = role
        if leader_epoch > state.leader_epoch:
            state.leader_epoch = leader_epoch
            if role is ReplicaRole.LEADER:
                state.epochs.assign(leader_epoch, state.log_end_offset)

    def set_replicated(self, number: int, is_replicated: bool) -> None:
        state = self._logs[number]
        state.is_replicated = is_replicated
        proven = self._proven.pop(number, None)
        if not is_replicated:
            self.set_high_watermark(number, state.log_end_offset)
        elif proven is not None:
            state.high_watermark = min(state.high_watermark, proven)

    def set_high_watermark(self, number: int, offset: int) -> None:
        state = self._logs[number]
        state.high_watermark = max(state.high_watermark, min(offset, state.log_end_offset))
        state.undecided.on_high_watermark_updated(state.high_watermark)
        log = self.by_number[number]
        log.high_watermark = state.high_watermark
        self.watcher.committed(self.node_id, log, state.high_watermark)

    def truncate(self, ends: Mapping[int, int], _now_ms: int) -> None:
        for number, end in ends.items():
            log = self.by_number[number]
            if end >= log.log_end_offset:
                continue
            del log.batches[log.index_of(end) :]
            self._cut(log, log.log_start_offset)

    def truncate_fully_and_start_at(self, number: int, start_offset: int, _now_ms: int) -> None:
        log = self.by_number[number]
        log.batches.clear()
        self._cut(log, start_offset)

    def _cut(self, log: DiskLog, start_offset: int) -> None:
        """Truncate the log to its batches, and sync it."""
        before = self._logs[log.number]
        log.log_start_offset = start_offset
        log.synced_count = len(log.batches)
        state = self._open(log)
        state.role, state.leader_epoch = before.role, before.leader_epoch
        state.is_replicated = before.is_replicated
        end = log.log_end_offset
        state.high_watermark = log.high_watermark = max(
            start_offset, min(before.high_watermark, end)
        )
        self.watcher.cut(self.node_id, log, end)

    def set_options(self, options: StoreOptions) -> None:
        """None is simulated: no producer is idle for a day, nothing is deleted, and syncs are
        those of the simulated disk."""

    def producers(self, number: int) -> list[ActiveProducer]:
        return describe_producers(self._logs[number].producers)

    def end_offset_for_epoch(self, number: int, leader_epoch: int) -> tuple[int, int]:
        state = self._logs[number]
        return state.epochs.end_offset(leader_epoch, state.log_end_offset)

    def close(self) -> None:
        """Sync everything."""
        for log in self.disk.logs.values():
            log.synced_count = len(log.batches)

    # -- reading and writing -----------------------------------------------------------------------

    def refresh(self) -> None:
        """There are no files that a reader could keep open."""

    def read(
        self,
        number: int,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        min_one_batch: bool = True,
        batches_max: int = BATCHES_PER_READ_MAX,
    ) -> ReadResult:
        return read_log(
            self.by_number[number],
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            min_one_batch=min_one_batch,
            batches_max=batches_max,
        )

    def begin(self, now_ms: int) -> "SimulatedTurn":
        return SimulatedTurn(self, now_ms)


def read_log(
    log: DiskLog,
    offset: int,
    *,
    max_bytes: int,
    end_offset: int,
    min_one_batch: bool,
    batches_max: int = BATCHES_PER_READ_MAX,
) -> ReadResult:
    """As `StoreReader.read`."""
    batches, size = log.batches, 0
    buffers: list[memoryview | bytes] = []
    first = index = log.index_of(offset)
    last = min(len(batches), first + batches_max)
    while index < last and batches[index].base_offset < end_offset:
        data = batches[index].data
        if size + len(data) > max_bytes and (buffers or not min_one_batch):
            break
        buffers.append(data)
        size += len(data)
        index += 1
    if not buffers:
        return ReadResult([], 0, offset, offset, None)
    start, end = batches[first].base_offset, batches[index - 1].end_offset
    return ReadResult(buffers, size, start, end, None, index - first)


class SimulatedTurn:
    """As `storage.append.Turn`."""

    def __init__(self, store: SimulatedStore, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._grown: set[int] = set()

    def append_plain(self, _number: int, _append: LogAppend) -> AppendResult | None:
        """No batch takes the short way."""
        return None

    def append(
        self,
        number: int,
        append: LogAppend,
    ) -> AppendResult:
        arena, origin = append.arena, append.origin
        store = self._store
        log = store.by_number.get(number)
        if log is None:
            return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        state = store.partitions()[number]
        result = AppendResult(ErrorCode.NONE)
        at, end = append.start, append.start + append.length
        while at < end:
            header = unpack_header(arena, at)
            size = header.batch_length + 12
            data = bytes(arena[at : at + size])
            at += size
            epoch = append.leader_epoch
            if origin is AppendOrigin.REPLICATION:
                if header.base_offset < state.log_end_offset:
                    text = "the batch lies before the log's end"
                    return AppendResult(ErrorCode.OFFSET_OUT_OF_RANGE, error_message=text)
                base_offset, epoch = header.base_offset, header.partition_leader_epoch
            else:
                if origin is AppendOrigin.CLIENT and header.producer_id >= 0:
                    try:
                        known = check_producer(state, header)
                    except BatchRejectedError as refused:
                        return AppendResult(refused.code, error_message=refused.message)
                    if known is not None:
                        return AppendResult(
                            ErrorCode.NONE, known.base_offset, known.last_offset + 1
                        )
                if origin is AppendOrigin.COORDINATOR:
                    try:
                        check_coordinator_batch(state, memoryview(data), header)
                    except BatchRejectedError as refused:
                        return AppendResult(refused.code, error_message=refused.message)
                base_offset = state.log_end_offset
                head = base_offset.to_bytes(8, "big")
                rest = data[LEADER_EPOCH_AT + 4 :]
                data = b"".join((head, data[8:12], epoch.to_bytes(4, "big", signed=True), rest))
            _advance(state, data, base_offset, epoch)
            batch = SimulatedBatch(
                base_offset, state.log_end_offset, epoch, header.crc, self._now_ms, data
            )
            log.batches.append(batch)
            store.watcher.appended(
                store.node_id, log, batch, leads=origin is not AppendOrigin.REPLICATION
            )
            self._grown.add(number)
            result = AppendResult(ErrorCode.NONE, base_offset, state.log_end_offset)
        return result

    def commit(self) -> Commit:
        store = self._store
        for number in self._grown:
            state = store.partitions()[number]
            if not state.is_replicated:
                store.set_high_watermark(number, state.log_end_offset)
        return Commit(self._grown, False)


def _advance(state: PartitionLog, data: bytes, base_offset: int, leader_epoch: int) -> None:
    header = unpack_header(data)
    marker = read_control_batch(memoryview(data), header) if header.is_control else None
    state.advance(
        header,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        size=len(data),
        append_ms=0,
        marker=marker,
    )
