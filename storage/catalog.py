"""The catalog of a store: its partitions, its segments, and which offsets are in which segment.

A small LMDB environment that is synced with every commit. `Catalog.change()` makes one atomic
change. The catalog has the state of all partitions as of the last roll: log start, log end, leader
epochs and producers. The active segment has everything since then. The owner keeps a copy in
memory, which changes after the commit. Readers in other processes look up rows as needed
(`CatalogFile`). The status table's generation tells them when the catalog has changed.

Databases and their rows:

    partitions  number u32                          PartitionRow
    numbers     topic id (16 bytes), partition u32  number u32; a future replica's partition has
                                                    FUTURE_PARTITION added
    segments    segment id u64                      SegmentRow
    extents     number u32, segment id u64          segment.Extent
    producers   number u32, producer id u64         producers.ProducerEntry, as of the last sealing
    properties  name                                text or integer
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from operator import attrgetter
from pathlib import Path
from struct import Struct

import lmdb
import msgspec

from odradek.storage.cursors import rows_from
from odradek.storage.environment import StorageError, open_environment, storage_errors
from odradek.storage.layout import (
    CATALOG_NAME,
    FUTURE_PARTITION,
    KEY,
    NUMBER,
    NUMBER_MAX,
    RESERVE_NAME,
    segment_ids,
)
from odradek.storage.producer_state import ProducerStateEntry
from odradek.storage.reserve import (
    FILE_BYTES,
    FileReserve,
    RowReserve,
    is_disk_full_error,
    is_disk_space_low,
    make_environment,
)
from odradek.storage.segment import Extent
from odradek.storage.settings import LogSettings

_DATABASES = ("partitions", "numbers", "segments", "extents", "producers", "properties")
_DATABASE_COUNT = 8
_TOPIC_KEY = Struct(">16sI")
_SEGMENT_KEY = Struct(">Q")
_first_offset = attrgetter("first_offset", "end_offset")


class SegmentState(IntEnum):
    """ACTIVE is being written and may be torn by a power loss. SEALED is synced and never
    changes."""

    ACTIVE = 0
    SEALED = 1


class PartitionRow(msgspec.Struct, frozen=True, array_like=True):
    """A partition replica of this store. `log_end_offset` and `leader_epochs` are as of the last
    roll of a segment with its data. The active segment has everything since then."""

    number: int
    topic_id: bytes
    topic_name: str
    partition: int
    settings: LogSettings
    log_start_offset: int = 0
    log_end_offset: int = 0
    leader_epochs: tuple[tuple[int, int], ...] = ()
    is_future: bool = False
    """Copied from another log directory, and not in use yet (KIP-113)."""
    replacements: int = 0
    """How often this replica has replaced one in another log directory."""

    @property
    def key(self) -> tuple[bytes, int]:
        """Topic id and partition, as in the catalog's table of numbers."""
        return self.topic_id, self.partition + FUTURE_PARTITION * self.is_future


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """A segment of this store. Sizes and `max_timestamp` are set when it is sealed."""

    segment_id: int
    state: SegmentState
    created_ms: int
    sealed_ms: int = -1
    file_bytes: int = 0
    byte_count: int = 0
    max_timestamp: int = -1
    is_compacted: bool = False
    """Written by log compaction: its records are clean."""
    may_have_aborted: bool = True
    """Whether transactions were aborted in it. Rows of earlier versions do not tell."""


_PARTITION = msgspec.msgpack.Decoder(PartitionRow)
_SEGMENT = msgspec.msgpack.Decoder(SegmentRow)
_ENCODE = msgspec.msgpack.Encoder().encode


class CatalogFile:
    """The catalog's rows on disk, for any process. Every call is a short transaction."""

    def __init__(self, directory: Path, *, map_bytes: int = 0, create: bool = False) -> None:
        path = directory / CATALOG_NAME
        if create and not path.exists():
            with storage_errors(path.name):
                make_environment(
                    path, map_bytes=map_bytes, databases=_DATABASES, reserve_in="properties"
                )
        self.environment = open_environment(
            path,
            map_bytes=map_bytes,
            database_count=_DATABASE_COUNT,
            create=create,
            read_only=not create,
            sync=True,
        )
        self.lmdb = self.environment.lmdb
        self.partitions = self.environment.database("partitions")
        self.numbers = self.environment.database("numbers")
        self.segments = self.environment.database("segments")
        self.extents = self.environment.database("extents")
        self.producers = self.environment.database("producers")
        self.properties = self.environment.database("properties")

    def number_of(self, topic_id: bytes, partition: int) -> int | None:
        """The store-local number of a partition. None if it is not in this store."""
        with self.lmdb.begin(self.numbers) as transaction:
            row = transaction.get(_TOPIC_KEY.pack(topic_id, partition))
        return None if row is None else int(NUMBER.unpack(row)[0])

    def partition(self, number: int) -> PartitionRow | None:
        with self.lmdb.begin(self.partitions) as transaction:
            row = transaction.get(NUMBER.pack(number))
        return None if row is None else _PARTITION.decode(row)

    def partition_rows(self) -> Iterator[PartitionRow]:
        """All partitions by number."""
        with self.lmdb.begin(self.partitions) as transaction:
            for _, row in transaction.cursor():
                yield _PARTITION.decode(row)

    def segment_rows(self) -> list[SegmentRow]:
        """All segments by id."""
        with self.lmdb.begin(self.segments) as transaction:
            return [_SEGMENT.decode(row) for _, row in transaction.cursor()]

    def extents_of(self, number: int) -> list[Extent]:
        """The partition's extents in sealed segments, by offset."""
        with self.lmdb.begin() as transaction:
            rows = rows_from(transaction, self.extents, KEY.pack(number, 0), number + 1)
            found = [Extent.decode(KEY.unpack(key)[1], row) for key, row in rows]
        return sorted(found, key=_first_offset)

    def all_extents(self) -> dict[int, list[Extent]]:
        """The extents of all partitions, including deleted ones with remaining data."""
        found: dict[int, list[Extent]] = {}
        with self.lmdb.begin(self.extents) as transaction:
            for key, row in transaction.cursor():
                number, segment_id = KEY.unpack(key)
                found.setdefault(number, []).append(Extent.decode(segment_id, row))
        for extents in found.values():
            extents.sort(key=_first_offset)
        return found

    def producer_rows(self, only: int | None = None) -> Iterator[tuple[int, int, bytes]]:
        """(number, producer id, row) of all producers, or of those of one partition, as of the last
        roll."""
        first, end = (0, NUMBER_MAX + 1) if only is None else (only, only + 1)
        with self.lmdb.begin() as transaction:
            for key, row in rows_from(transaction, self.producers, KEY.pack(first, 0), end):
                number, producer_id = KEY.unpack(key)
                yield number, producer_id, row

    def property_of(self, name: str) -> str | None:
        with self.lmdb.begin(self.properties) as transaction:
            row = transaction.get(name.encode())
        return None if row is None else row.decode()


class Catalog:
    """The owner's catalog: the rows and their copy in memory.

    The mappings are read-only: only `change` changes them. `extents[number]` is sorted by offset.
    Partition numbers and segment ids are not reused while a file may have data under them.
    """

    def __init__(self, directory: Path, *, map_bytes: int) -> None:
        self.directory = directory
        self.file = CatalogFile(directory, map_bytes=map_bytes, create=True)
        self.partitions: dict[int, PartitionRow] = {}
        self.numbers: dict[tuple[bytes, int], int] = {}
        self.future_replicas: set[int] = set()
        """Their numbers."""
        for row in self.file.partition_rows():
            self.partitions[row.number] = row
            self.numbers[row.key] = row.number
            if row.is_future:
                self.future_replicas.add(row.number)
        self.segments: dict[int, SegmentRow] = {
            row.segment_id: row for row in self.file.segment_rows()
        }
        self.extents: dict[int, list[Extent]] = self.file.all_extents()
        self.numbers_end = max(
            int(self.file.property_of("numbers_end") or 0),
            *(number + 1 for number in self.partitions),
            *(number + 1 for number in self.extents),
            0,
        )
        self.free_numbers: list[int] = []
        """Unused numbers below `numbers_end`, largest first. Filled by the store."""
        self.segment_ids_end = max(
            int(self.file.property_of("next_segment_id") or 1),
            *(segment_id + 1 for segment_id in segment_ids(directory)),
            *(segment_id + 1 for segment_id in self.segments),
            1,
        )
        self._rows_reserve = RowReserve(self.file.lmdb, self.file.properties)
        self._files_reserve = FileReserve(directory / RESERVE_NAME, FILE_BYTES)
        self.refill_reserves()
        self.change_count = 0
        """Changes committed so far. A plan is valid as long as it is the same."""
        self.rewrite_count = 0
        """Segments rewritten, merged or compacted since the store was opened."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after every committed change. The store increments the status generation."""

    @property
    def active_segment_id(self) -> int | None:
        """The active segment, None if there is none yet."""
        active = [i for i, row in self.segments.items() if row.state is SegmentState.ACTIVE]
        assert len(active) <= 1, f"segments {active} are all active"
        return active[0] if active else None

    def next_segment_id(self) -> int:
        """A new id, larger than all ids of rows and files. Releases the reserved space on a full
        disk, because the caller creates the file next."""
        self._files_reserve.spend_if_needed()
        self.segment_ids_end += 1
        return self.segment_ids_end - 1

    def refill_reserves(self) -> None:
        """Reserve disk space again where it was used and the disk has enough. To be called
        regularly."""
        self._rows_reserve.keep()
        self._files_reserve.keep()

    @contextmanager
    def change(self, *, may_use_reserve: bool = True) -> "Iterator[CatalogChange]":
        """One atomic, synced change. If the block raises or the commit fails, nothing has changed
        on disk and in memory. Raises StorageError.

        On a full disk it uses the reserved space. Without `may_use_reserve` it fails instead: for
        changes that free no space.
        """
        if may_use_reserve:
            self._rows_reserve.spend_if_needed()
        elif is_disk_space_low(self.directory):
            raise StorageError("catalog: the disk is full")
        with storage_errors("catalog"):
            transaction = self.file.lmdb.begin(write=True)
        change = CatalogChange(self, transaction)
        try:
            yield change
            transaction.commit()
        except BaseException as error:
            transaction.abort()
            for revert in reversed(change.reverts):
                revert()
            if may_use_reserve and is_disk_full_error(error, self.file.environment.path):
                # The disk was fuller than measured. The next attempt can use the reserve.
                self._rows_reserve.spend()
            if isinstance(error, lmdb.Error):
                raise StorageError(f"catalog: {error}") from error
            raise
        for effect in change.effects:
            effect()
        self.change_count += 1
        self.on_change()


class CatalogChange:
    """The rows of one change, made by `Catalog.change`."""

    def __init__(self, catalog: Catalog, transaction: "lmdb.Transaction[bytes]") -> None:
        self._catalog = catalog
        self._transaction = transaction
        self.effects: list[Callable[[], object]] = []
        """Changes of the copy in memory, after the commit."""
        self.reverts: list[Callable[[], None]] = []
        """Undone if the commit fails."""

    def new_number(self) -> int:
        """An unused partition number."""
        catalog = self._catalog
        if catalog.free_numbers:
            number = catalog.free_numbers.pop()
            self.reverts.append(lambda: catalog.free_numbers.append(number))
            return number
        number = catalog.numbers_end
        catalog.numbers_end += 1
        self.put_property("numbers_end", str(catalog.numbers_end))
        return number

    def put_partition(self, row: PartitionRow) -> None:
        """Insert or replace a partition."""
        catalog, number = self._catalog, row.number
        topic_key = _TOPIC_KEY.pack(*row.key)
        self._transaction.put(NUMBER.pack(number), _ENCODE(row), db=catalog.file.partitions)
        self._transaction.put(topic_key, NUMBER.pack(number), db=catalog.file.numbers)

        def effect() -> None:
            catalog.partitions[number] = row
            catalog.numbers[row.key] = number
            if row.is_future:
                catalog.future_replicas.add(number)
            else:
                catalog.future_replicas.discard(number)

        self.effects.append(effect)

    def promote_partition(self, number: int, replacements: int) -> None:
        """A future replica is the current one from now on, after so many replacements."""
        catalog = self._catalog
        future = catalog.partitions[number]
        self._transaction.delete(_TOPIC_KEY.pack(*future.key), db=catalog.file.numbers)
        self.effects.append(lambda: catalog.numbers.pop(future.key, None))
        self.put_partition(
            msgspec.structs.replace(future, is_future=False, replacements=replacements)
        )

    def delete_partition(self, number: int) -> None:
        """Remove a partition and its producers. Its extents, and its number, stay in use until the
        segments with its data are dropped or rewritten."""
        catalog = self._catalog
        row = catalog.partitions[number]
        topic_key = _TOPIC_KEY.pack(*row.key)
        self._transaction.delete(NUMBER.pack(number), db=catalog.file.partitions)
        self._transaction.delete(topic_key, db=catalog.file.numbers)
        cursor = self._transaction.cursor(catalog.file.producers)
        first = KEY.pack(number, 0)
        while cursor.set_range(first) and cursor.key()[: NUMBER.size] == first[: NUMBER.size]:
            cursor.delete()

        def effect() -> None:
            del catalog.partitions[number]
            del catalog.numbers[row.key]
            catalog.future_replicas.discard(number)

        self.effects.append(effect)

    def put_segment(self, row: SegmentRow) -> None:
        """Insert or replace a segment. Sync it before it is put as SEALED."""
        catalog, segment_id = self._catalog, row.segment_id
        key = _SEGMENT_KEY.pack(segment_id)
        self._transaction.put(key, _ENCODE(row), db=catalog.file.segments)
        self.put_property("next_segment_id", str(catalog.segment_ids_end))
        self.effects.append(lambda: catalog.segments.update({segment_id: row}))

    def delete_segment(self, segment_id: int) -> None:
        """Remove a segment and all its extents. Unlink its file after the change."""
        catalog = self._catalog
        self._transaction.delete(_SEGMENT_KEY.pack(segment_id), db=catalog.file.segments)
        for number, extents in catalog.extents.items():
            if any(extent.segment_id == segment_id for extent in extents):
                self.delete_extent(number, segment_id)
        self.effects.append(lambda: catalog.segments.pop(segment_id, None))

    def put_extent(self, number: int, extent: Extent) -> None:
        """Insert or replace a partition's extent in a sealed segment."""
        catalog = self._catalog
        key = KEY.pack(number, extent.segment_id)
        self._transaction.put(key, extent.encode(), db=catalog.file.extents)

        def effect() -> None:
            extents = catalog.extents.setdefault(number, [])
            extents[:] = [e for e in extents if e.segment_id != extent.segment_id]
            insort(extents, extent, key=_first_offset)

        self.effects.append(effect)

    def delete_extent(self, number: int, segment_id: int) -> None:
        catalog = self._catalog
        self._transaction.delete(KEY.pack(number, segment_id), db=catalog.file.extents)

        def effect() -> None:
            extents = catalog.extents.get(number, [])
            extents[:] = [extent for extent in extents if extent.segment_id != segment_id]
            if not extents:
                catalog.extents.pop(number, None)

        self.effects.append(effect)

    def put_producers(
        self, number: int, ids: Iterable[int], producers: Mapping[int, ProducerStateEntry]
    ) -> None:
        """Write the states of the producers with these `ids`. Those without a state are removed."""
        for producer_id in ids:
            key, entry = KEY.pack(number, producer_id), producers.get(producer_id)
            if entry is None:
                self._transaction.delete(key, db=self._catalog.file.producers)
            else:
                self._transaction.put(key, entry.encode(), db=self._catalog.file.producers)

    def put_property(self, name: str, text: str) -> None:
        self._transaction.put(name.encode(), text.encode(), db=self._catalog.file.properties)
