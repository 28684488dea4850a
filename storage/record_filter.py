"""Which records log compaction keeps. Pure, for one partition's batches in the order of the log.

Kafka's rules (LogCleaner; KIP-58, 98, 354, 534): - of each key only the record with the last offset
is kept; records without a key and records of aborted transactions are removed; - a tombstone (no
value) is kept until its batch's delete horizon, which its first compaction sets to now +
delete.retention.ms, so that a consumer that starts at the beginning has this long to see it; - a
marker is kept as long as a batch of its transaction, and then until a delete horizon of its own; -
offsets never change. A batch that loses records keeps its base offset, last offset, producer,
sequence and codec. A batch that loses all records is dropped, unless it has the last sequence or
marker of an active producer, or the last offset of the range: then it is kept as an empty batch.

Called by compaction.py: once for the dirty part to build the offset map, once for all to filter.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from odradek.protocol.control_records import ControlType, EndTransactionMarker, read_control_batch
from odradek.protocol.record_spans import (
    BatchRebuild,
    RecordSpan,
    delete_horizon_of,
    iter_record_spans,
    rebuild_batch,
    record_spans,
)
from odradek.protocol.records import BatchHeader, decompress_records
from odradek.storage.producer_state import ProducerStateEntry
from odradek.storage.scratch_table import ScratchTable
from odradek.storage.transactions import AbortedTransactionRow

_KEY_BYTES_MAX = 16
_DIGEST_BYTES = 17  # longer than a key kept as it is, so that the two never meet


def short_key(key: bytes) -> bytes:
    """The key itself, or the digest of a long one, so that the size of the offset map does not
    depend on the keys. Kafka, too, relies on a hash of 128 bits."""
    return key if len(key) <= _KEY_BYTES_MAX else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class CleanedTransactionMetadata:
    """Which transactional batches are aborted, while the log is read from its start."""

    def __init__(self, aborted: Iterable[AbortedTransactionRow]) -> None:
        """`aborted` are all that overlap the range, also those whose marker is after its end."""
        self._waiting = sorted(aborted, key=lambda row: row.first_offset, reverse=True)
        self._aborting: dict[int, tuple[AbortedTransactionRow, bool]] = {}
        """By producer: its aborted transaction, and whether a batch of it was kept."""
        self._committing: set[int] = set()
        """Producers with batches of a transaction that is not aborted, before its marker."""
        self.kept: list[AbortedTransactionRow] = []
        """Rows that are still needed: their markers are kept."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Add a data batch. True if its transaction was aborted."""
        if not header.is_transactional:
            return False
        self._open_up_to(header.base_offset + header.last_offset_delta)
        producer_id = header.producer_id
        aborting = self._aborting.get(producer_id)
        if aborting is None:
            self._committing.add(producer_id)
            return False
        self._aborting[producer_id] = aborting[0], True
        return True

    def can_discard_marker(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """Add a marker. True if no batch of its transaction is left: it can be discarded."""
        self._open_up_to(header.base_offset + header.last_offset_delta)
        if marker is None:
            return False
        if marker.type is ControlType.ABORT:
            row, has_data = self._aborting.pop(header.producer_id, (None, False))
            if row is not None and has_data:
                self.kept.append(row)
            return not has_data
        was_open = header.producer_id in self._committing
        self._committing.discard(header.producer_id)
        return not was_open

    def _open_up_to(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[-1].first_offset <= offset:
            row = waiting.pop()
            self._aborting[row.producer_id] = row, False


class OffsetMap:
    """The last offset of each key in the dirty part. Keys that do not fit into memory are in a
    scratch file, which `close` removes."""

    def __init__(
        self, aborted: Iterable[AbortedTransactionRow], *, keys_max: int, scratch_path: Path
    ) -> None:
        """`keys_max` keys are kept in memory, at about 150 bytes each."""
        self._transactions = CleanedTransactionMetadata(aborted)
        self._offsets: dict[bytes, int] = {}
        self._keys_max = keys_max
        self._scratch_path = scratch_path
        self._scratch: ScratchTable | None = None

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def note(self, batch: memoryview, header: BatchHeader) -> Iterator[None]:
        """Add the next batch. Runs in slices of a few milliseconds. Raises ProtocolError if its
        records are malformed."""
        if header.record_count == 0:
            return
        if header.is_control:
            self._transactions.can_discard_marker(header, read_control_batch(batch, header))
            return
        if self._transactions.is_aborted(header):
            return
        offsets = self._offsets
        base_offset = header.base_offset
        for index, (_, spans) in enumerate(iter_record_spans(batch, header)):
            if index:
                yield
            for span in spans:
                key = span.key
                if key is not None:
                    if len(key) > _KEY_BYTES_MAX:
                        key = short_key(key)
                    offsets[key] = base_offset + span.offset_delta
            yield from self._spill()

    def _spill(self) -> Iterator[None]:
        """Move the keys to the scratch file if there are too many for memory. Raises
        StorageError."""
        if len(self._offsets) >= self._keys_max:
            if self._scratch is None:
                self._scratch = ScratchTable(self._scratch_path)
            # Later offsets replace earlier ones, in the file as in memory.
            yield from self._scratch.put_all(self._offsets)
            self._offsets.clear()

    def is_outdated(self, key: bytes, offset: int) -> bool:
        """Whether a later record has the key."""
        if len(key) > _KEY_BYTES_MAX:
            key = short_key(key)
        last = self._offsets.get(key)
        if last is None and self._scratch is not None:
            last = self._scratch.get(key)
        return last is not None and last > offset


class RecordFilter:
    """Filters the batches of one partition, in the order of the log."""

    def __init__(
        self,
        last_offsets: OffsetMap,
        aborted: Iterable[AbortedTransactionRow],
        producers: Mapping[int, ProducerStateEntry],
        *,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """`end_offset` is the end of the range. The batch that reaches it is kept."""
        self.transactions = CleanedTransactionMetadata(aborted)
        self._last_offsets = last_offsets
        self._producers = producers
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms

    def filter_batch(
        self, batch: memoryview, header: BatchHeader
    ) -> "Generator[None, None, memoryview | bytes | None]":
        """The batch itself, a smaller one, or None. Runs in slices of a few milliseconds. Raises
        ProtocolError."""
        horizon_ms = delete_horizon_of(header)
        is_due = horizon_ms is not None and horizon_ms <= self._now_ms
        if header.is_control:
            if header.record_count == 0:
                return self._emptied(batch, header)  # a marker that was discarded before
            marker = read_control_batch(batch, header)
            can_discard = self.transactions.can_discard_marker(header, marker)
            if can_discard and is_due:
                return self._emptied(batch, header)
            if can_discard and horizon_ms is None:
                data = decompress_records(batch, header)
                spans = record_spans(data, header.record_count)
                return rebuild_batch(header, data, spans, delete_horizon_ms=self._horizon_ms)
            return batch
        if self.transactions.is_aborted(header) or header.record_count == 0:
            return self._emptied(batch, header)
        return (yield from self._filter_records(batch, header, is_due=is_due))

    def _filter_records(
        self, batch: memoryview, header: BatchHeader, *, is_due: bool
    ) -> "Generator[None, None, memoryview | bytes | None]":
        """First counts what survives, because most batches stay as they are or lose everything. A
        batch that does not is read again, so that one part of it is in memory at a time."""
        kept_count = 0
        has_tombstone = False
        first: tuple[bytes, list[RecordSpan]] | None = None
        for index, (data, spans) in enumerate(iter_record_spans(batch, header)):
            if index:
                yield
            kept, has_tombstones = self._surviving(header, spans, keeps_tombstones=not is_due)
            kept_count += len(kept)
            has_tombstone = has_tombstone or has_tombstones
            if len(spans) == header.record_count:
                first = data, kept
        if not kept_count:
            return self._emptied(batch, header)
        needs_horizon = has_tombstone and delete_horizon_of(header) is None
        if kept_count == header.record_count and not needs_horizon:
            return batch
        rebuild = BatchRebuild(
            header, delete_horizon_ms=self._horizon_ms if needs_horizon else None
        )
        if first is not None:
            rebuild.add(*first)
            return rebuild.finish()
        for data, spans in iter_record_spans(batch, header):
            yield
            kept, _ = self._surviving(header, spans, keeps_tombstones=not is_due)
            rebuild.add(data, kept)
        return rebuild.finish()

    def _surviving(
        self, header: BatchHeader, spans: list[RecordSpan], *, keeps_tombstones: bool
    ) -> tuple[list[RecordSpan], bool]:
        kept = []
        has_tombstone = False
        base_offset = header.base_offset
        is_outdated = self._last_offsets.is_outdated
        for span in spans:
            if span.key is None or is_outdated(span.key, base_offset + span.offset_delta):
                continue
            if not span.has_value:
                if not keeps_tombstones:
                    continue
                has_tombstone = True
            kept.append(span)
        return kept, has_tombstone

    def _emptied(self, batch: memoryview, header: BatchHeader) -> "memoryview | bytes | None":
        """No record is left. An empty batch may have to be kept."""
        last_offset = header.base_offset + header.last_offset_delta
        if last_offset + 1 != self._end_offset and not self._is_last_of_producer(
            header, last_offset
        ):
            return None
        return batch if header.record_count == 0 else rebuild_batch(header, b"", ())

    def _is_last_of_producer(self, header: BatchHeader, last_offset: int) -> bool:
        """Whether it is the batch with the last sequence of an active producer or, if the producer
        has none in its epoch, the marker of this epoch."""
        entry = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if entry is None:
            return False
        if entry.batches:
            return last_offset == entry.batches[-1].last_offset
        return header.is_control and header.producer_epoch == entry.producer_epoch
