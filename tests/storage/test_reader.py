"""Reading beside the owner: in the same process, in others, through rolls, deletions and kills."""

import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch, iter_records
from odradek.protocol.sliced_work import finish
from odradek.storage import timestamps
from odradek.storage.cursors import last_delta_and_timestamp
from odradek.storage.environment import StorageError
from odradek.storage.layout import unlink_segment
from odradek.storage.reader import BATCHES_PER_READ_MAX, SEGMENTS_PER_SLICE, StoreReader
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import (
    NOW_MS,
    TOPIC_ID,
    append,
    append_now,
    as_stored,
    batch_of,
    create,
    dropped_but_open,
    offsets_of,
    open_files,
    open_store,
    read_all,
    split_batches,
    tend,
)

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def reader(store: Store) -> Iterator[StoreReader]:
    reader = StoreReader(store.directory)
    yield reader
    reader.close()


def test_a_read_starts_with_the_batch_that_contains_the_offset(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    append_now(store, number, batch_of(3), batch_of(4, size=5_000), batch_of(2))
    for offset, expected in {0: 0, 2: 0, 3: 3, 5: 3, 6: 3, 7: 7, 8: 7}.items():
        result = reader.read(number, offset, max_bytes=1, end_offset=9)
        assert offsets_of(split_batches(b"".join(result.buffers))) == [expected]
        assert result.first_offset == expected
    result = reader.read(number, 9, max_bytes=1_000, end_offset=9)
    assert (result.buffers, result.next_offset) == ([], 9)


def test_the_first_batch_is_returned_above_max_bytes_only_with_min_one_batch(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    sizes = [len(batch) for batch in (batch_of(size=3_000), batch_of(size=10))]
    append_now(store, number, batch_of(size=3_000), batch_of(size=10))
    one = reader.read(number, 0, max_bytes=0, end_offset=2)
    assert (one.byte_count, one.next_offset) == (sizes[0], 1)
    none = reader.read(number, 0, max_bytes=sizes[0] - 1, end_offset=2, min_one_batch=False)
    assert (none.buffers, none.next_offset) == ([], 0)
    both = reader.read(number, 0, max_bytes=sum(sizes), end_offset=2)
    assert (both.byte_count, both.next_offset) == (sum(sizes), 2)
    less = reader.read(number, 0, max_bytes=sum(sizes) - 1, end_offset=2)
    assert less.next_offset == 1


def test_nothing_at_or_above_the_end_offset_is_read(store: Store, reader: StoreReader) -> None:
    number = create(store)
    append_now(store, number, batch_of(2), batch_of(2), batch_of(2))
    result = reader.read(number, 0, max_bytes=10_000, end_offset=4)
    assert offsets_of(split_batches(b"".join(result.buffers))) == [0, 2]


def test_a_read_has_no_batches_of_other_partitions(store: Store, reader: StoreReader) -> None:
    numbers = [create(store, partition) for partition in range(3)]
    append_now(store, numbers[0], batch_of(5))
    append_now(store, numbers[2], batch_of(5))
    assert reader.read(numbers[1], 0, max_bytes=100, end_offset=9).buffers == []
    append_now(store, numbers[1], batch_of(1))
    assert reader.read(numbers[0], 5, max_bytes=100, end_offset=9).buffers == []
    assert reader.read(numbers[2], 7, max_bytes=100, end_offset=9).buffers == []
    assert offsets_of(read_all(reader, numbers[1])) == [0]


@pytest.mark.parametrize("seed", range(8))
def test_random_reads_equal_a_list_of_batches(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = open_store(tmp_path)
    number, noise = create(store, 0), create(store, 1)
    log: list[tuple[int, int, bytes]] = []
    end = 0
    for _ in range(120):
        batch = batch_of(chance.randrange(1, 9), size=chance.choice([1, 100, 1000, 1950, 4000]))
        append_now(store, chance.choice([noise, number]), batch_of(2))
        base = store.partitions()[number].log_end_offset
        while end < base:  # what the line before may have appended
            log.append((end, end + 2, as_stored(batch_of(2), end)))
            end += 2
        append_now(store, number, batch)
        following = store.partitions()[number].log_end_offset
        log.append((end, following, as_stored(batch, end)))
        end = following
        if chance.random() < 0.05:
            store.roll(NOW_MS)
    reader = StoreReader(tmp_path)
    for _ in range(200):
        offset = chance.randrange(end)
        limit = chance.randrange(offset, end + 1)
        max_bytes = chance.choice([1, 500, 5_000, 50_000])
        expected = [(base, data) for base, stop, data in log if stop > offset and base < limit]
        result = reader.read(number, offset, max_bytes=max_bytes, end_offset=limit)
        data = split_batches(b"".join(result.buffers))
        assert data == [batch for _, batch in expected[: len(data)]]
        if expected:
            assert data
            assert sum(map(len, data)) == result.byte_count
            assert result.byte_count <= max(max_bytes, len(data[0]))
            stop = next(end for base, end, batch in log if batch == data[-1])
            assert result.next_offset == stop
    reader.close()
    store.close()


def test_views_of_large_batches_stay_valid_without_reader_and_owner(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    batch = batch_of(1, size=30_000)
    append_now(store, number, batch, batch_of(1))
    reader = StoreReader(tmp_path)
    result = reader.read(number, 0, max_bytes=100_000, end_offset=2)
    large, small = result.buffers
    assert isinstance(large, memoryview)
    assert isinstance(small, bytes)
    segment_id = store.catalog.active_segment_id
    assert segment_id is not None
    # Everything that may happen to the segment while the response is on its way.
    append_now(store, number, *[batch_of(1, size=30_000, fill=i) for i in range(50)])
    store.roll(NOW_MS)
    with store.catalog.change() as change:
        change.delete_segment(segment_id)
    unlink_segment(tmp_path, segment_id)
    assert reader.read(number, 51, max_bytes=1, end_offset=52).buffers == []
    reader.close()
    store.close()
    del store, reader
    gc.collect()
    assert bytes(large) == as_stored(batch, 0)


def drop_first_segment(store: Store, number: int) -> None:
    first = store.catalog.extents[number][0]
    store.log_starts.move({number: first.end_offset})
    with store.catalog.change() as change:
        change.delete_segment(first.segment_id)
    unlink_segment(store.directory, first.segment_id)


def test_a_reader_follows_rolls_and_drops(store: Store, reader: StoreReader) -> None:
    number = create(store)
    append_now(store, number, batch_of(2))
    assert offsets_of(read_all(reader, number)) == [0]
    store.roll(NOW_MS)
    append_now(store, number, batch_of(2))
    assert offsets_of(read_all(reader, number)) == [0, 2]
    drop_first_segment(store, number)
    assert offsets_of(read_all(reader, number)) == [2]


def test_a_reader_releases_dropped_segments_without_reads(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    append_now(store, number, batch_of())
    assert offsets_of(read_all(reader, number)) == [0]
    store.roll(NOW_MS)
    store.log_starts.delete_records(number, 1)
    tend(store, NOW_MS)
    tend(store, NOW_MS + 3_600_000)
    assert dropped_but_open(store.directory) != []
    reader.refresh()
    assert dropped_but_open(store.directory) == []


def test_a_missing_segment_is_a_storage_error_after_several_attempts(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    append_now(store, number, batch_of(2))
    store.roll(NOW_MS)
    (extent,) = store.catalog.extents[number]
    gc.collect()
    unlink_segment(store.directory, extent.segment_id)
    with pytest.raises(StorageError):
        reader.read(number, 0, max_bytes=1, end_offset=2)
    assert reader.read(number, 2, max_bytes=1, end_offset=2).buffers == []


def test_segments_that_are_not_read_are_not_opened(store: Store, reader: StoreReader) -> None:
    """With hundreds of them a fetch would open all that come behind its records."""
    number = create(store)
    for _ in range(3):
        append_now(store, number, batch_of(2))
        store.roll(NOW_MS)
    append_now(store, number, batch_of(2))
    gc.collect()
    unlink_segment(store.directory, store.catalog.extents[number][1].segment_id)
    with pytest.raises(StorageError):
        reader.read(number, 2, max_bytes=1, end_offset=8)
    for offset in (0, 4, 6):
        assert reader.read(number, offset, max_bytes=1, end_offset=8).next_offset == offset + 2
    assert reader.aborted_transactions(number, 0, 2) == []
    assert reader.backlog(number, 0, 8, batches_max=1).record_count == 8
    with pytest.raises(StorageError):
        reader.backlog(number, 0, 8)


def open_segment_count(directory: Path) -> int:
    """Of the segment files, those that this process has open."""
    segments = {str(path) for path in directory.glob("segment-*.mdb")}
    return len(segments.intersection(open_files(directory)))


def test_the_search_for_the_largest_timestamp_opens_few_segments_in_a_slice(
    store: Store, reader: StoreReader
) -> None:
    number, segment_count = create(store), 2 * SEGMENTS_PER_SLICE + 5
    for index in range(segment_count):
        append_now(store, number, batch_of(timestamp=NOW_MS + index % 50))
        store.roll(NOW_MS)
    gc.collect()
    before = open_segment_count(store.directory)
    search = reader.max_timestamp_offset(number, end_offset=segment_count)
    for slice_number in (1, 2):
        assert next(search) is None
        opened = open_segment_count(store.directory) - before
        assert opened == slice_number * SEGMENTS_PER_SLICE
    record = finish(search)
    assert record is not None
    assert (record.offset, record.timestamp) == (49, NOW_MS + 49)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_lookup_by_timestamp_goes_on_while_segments_are_rolled_and_dropped(
    store: Store, reader: StoreReader, *, is_dropped: bool
) -> None:
    number = create(store)
    early, late = batch_of(timestamp=NOW_MS - 50), batch_of(timestamp=NOW_MS - 10)
    append_now(store, number, late, early)
    store.roll(NOW_MS)
    append_now(store, number, early, late)
    store.log_starts.move({number: 1})
    search = reader.offset_for_timestamp(number, NOW_MS - 20, end_offset=4)
    assert next(search) is None, "only the deleted part of the first segment has it"
    store.roll(NOW_MS)
    append_now(store, number, batch_of())
    if is_dropped:
        drop_first_segment(store, number)
    assert read_all(reader, number), "it has read the catalog again"
    with pytest.raises(StopIteration) as found:
        next(search)  # the first segment is not searched again
    record = found.value.value
    assert (record.offset, record.timestamp) == (3, NOW_MS - 10)


def test_a_reader_that_is_not_told_yet_of_a_dropped_segment_reads_the_catalog_again(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    append_now(store, number, batch_of(2))
    store.roll(NOW_MS)
    append_now(store, number, batch_of(2))
    readers = reader, StoreReader(store.directory)
    for each in readers:
        assert each.read(number, 2, max_bytes=1, end_offset=4).first_offset == 2
    gc.collect()
    store.catalog.on_change = lambda: None
    drop_first_segment(store, number)
    assert readers[0].read(number, 0, max_bytes=1, end_offset=4).first_offset == 2
    assert readers[1].backlog(number, 0, 4).record_count == 2
    readers[1].close()


def test_a_reader_finds_new_partitions_and_forgets_deleted_ones(
    store: Store, reader: StoreReader
) -> None:
    assert reader.number_of(TOPIC_ID, 0) is None
    number = create(store)
    assert reader.number_of(TOPIC_ID, 0) == number
    store.delete_partitions([number])
    assert reader.number_of(TOPIC_ID, 0) is None


def test_a_store_that_was_never_opened_does_not_exist(tmp_path: Path) -> None:
    assert not StoreReader.exists(tmp_path)
    with pytest.raises(StorageError):
        StoreReader(tmp_path)
    open_store(tmp_path).close()
    assert StoreReader.exists(tmp_path)


# -- by time --------------------------------------------------------------------------------------


def found(reader: StoreReader, number: int, timestamp: int) -> tuple[int, int] | None:
    record = finish(reader.offset_for_timestamp(number, timestamp))
    return None if record is None else (record.offset, record.timestamp)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_lookup_by_timestamp_finds_the_record_within_the_batch(
    store: Store, reader: StoreReader, codec: Codec
) -> None:
    number = create(store)
    stamps = [NOW_MS - 300, NOW_MS - 100, NOW_MS - 200, NOW_MS]
    append_now(store, number, batch_of(4, timestamps=stamps, codec=codec))
    assert found(reader, number, 0) == (0, NOW_MS - 300)
    assert found(reader, number, NOW_MS - 299) == (1, NOW_MS - 100)
    assert found(reader, number, NOW_MS - 100) == (1, NOW_MS - 100)
    assert found(reader, number, NOW_MS - 99) == (3, NOW_MS)
    assert found(reader, number, NOW_MS + 1) is None


def test_lookups_by_timestamp_return_the_leader_epoch_within_the_bounds(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    turn = store.begin(NOW_MS)
    append(turn, number, batch_of(2, timestamps=[NOW_MS - 9, NOW_MS - 8]), leader_epoch=3)
    append(turn, number, batch_of(2, timestamps=[NOW_MS - 7, NOW_MS - 6]), leader_epoch=4)
    turn.commit()
    record = finish(reader.offset_for_timestamp(number, NOW_MS - 6))
    assert record == (3, NOW_MS - 6, 4)
    assert finish(reader.offset_for_timestamp(number, NOW_MS - 6, end_offset=3)) is None
    store.log_starts.delete_records(number, 1)
    assert found(reader, number, 0) == (1, NOW_MS - 8)


@pytest.mark.parametrize("seed", range(10))
def test_lookups_by_timestamp_equal_a_search_of_all_records(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = open_store(tmp_path)
    number, noise = create(store, 0), create(store, 1)
    records: list[tuple[int, int]] = []
    clock = NOW_MS - 1_000_000
    for _ in range(150):
        clock += chance.choice([0, 0, 0, 1, 50])
        count = chance.randrange(1, 5)
        stamps = [max(clock + chance.randrange(-30, 5), 0) for _ in range(count)]
        if chance.random() < 0.02:
            stamps[0] = clock + 3_000
        if chance.random() < 0.05:
            stamps = [-1] * count
        batch = batch_of(
            count, timestamps=stamps, size=chance.choice([10, 3_000, 30_000]),
            codec=chance.choice([Codec.NONE, Codec.LZ4]),
        )  # fmt: skip
        append_now(store, number, batch)
        append_now(store, noise, batch_of(timestamp=clock))
        records += [(len(records) + i, stamp) for i, stamp in enumerate(stamps)]
        if chance.random() < 0.04:
            store.roll(NOW_MS)
        if chance.random() < 0.02:
            store.close()
            store = open_store(tmp_path)
    reader = StoreReader(tmp_path)
    start = 0
    for _ in range(4):
        for _ in range(60):
            wanted = clock + chance.randrange(-3_000, 3_100)
            end = chance.randrange(start, len(records) + 1)
            expected = next(((o, t) for o, t in records[:end] if o >= start and t >= wanted), None)
            answer = finish(reader.offset_for_timestamp(number, wanted, end_offset=end))
            assert (answer and answer[:2]) == expected
            known = [(t, -o) for o, t in records[start:end] if t >= 0]
            latest = finish(reader.max_timestamp_offset(number, end_offset=end))
            assert (latest and (latest.timestamp, -latest.offset)) == max(known, default=None)
        start += chance.randrange(40)
        store.log_starts.delete_records(number, start)
    reader.close()
    store.close()


def test_lookups_in_equal_timestamps_read_few_batches(
    store: Store, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = create(store)
    for _ in range(30):
        append_now(store, number, *[batch_of(size=1_500) for _ in range(30)])
    append_now(store, number, batch_of(timestamp=NOW_MS + 1))
    looked_at = 0

    def count(value: memoryview) -> tuple[int, int]:
        nonlocal looked_at
        looked_at += 1
        return original(value)

    original = last_delta_and_timestamp
    monkeypatch.setattr(timestamps, "last_delta_and_timestamp", count)
    assert found(reader, number, NOW_MS + 1) == (900, NOW_MS + 1)
    assert looked_at < 60


# -- epochs, transactions, producers --------------------------------------------------------------


def test_a_reader_has_the_same_epochs_as_the_owner(store: Store, reader: StoreReader) -> None:
    number = create(store)
    for epoch, count in [(0, 3), (2, 1), (5, 4)]:
        store.set_leader_epoch(number, epoch)
        turn = store.begin(NOW_MS)
        append(turn, number, batch_of(count), leader_epoch=epoch)
        turn.commit()
        if epoch == 2:
            store.roll(NOW_MS)
    store.set_leader_epoch(number, 6)
    for epoch in range(-1, 9):
        owner = store.end_offset_for_epoch(number, epoch)
        assert reader.end_offset_for_epoch(number, epoch) == owner
    assert [reader.epoch_at(number, offset) for offset in (0, 2, 3, 4, 7, 8)] == [0, 0, 2, 5, 5, 6]
    assert reader.end_offset_for_epoch(77, 0) == (-1, -1)
    starts = dict(store.partitions()[number].epochs.entries)
    for epoch in range(9):
        assert reader.epoch_start(number, epoch) == starts.get(epoch, 8)


def abort(producer: int) -> bytes:
    return build_end_transaction_batch(
        EndTransactionMarker(ControlType.ABORT, 0),
        timestamp_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=0,
    )


def test_a_read_of_very_many_small_batches_ends_early(store: Store, reader: StoreReader) -> None:
    number = create(store)
    count = BATCHES_PER_READ_MAX + 10
    turn = store.begin(NOW_MS)
    for _ in range(count):
        append(turn, number, batch_of(1))
    turn.commit()
    first = reader.read(number, 0, max_bytes=1 << 30, end_offset=count)
    assert first.next_offset == first.batch_count == BATCHES_PER_READ_MAX
    rest = reader.read(number, first.next_offset, max_bytes=1 << 30, end_offset=count)
    assert (rest.first_offset, rest.next_offset) == (BATCHES_PER_READ_MAX, count)
    few = reader.read(number, 5, max_bytes=1 << 30, end_offset=count, batches_max=3)
    assert (few.first_offset, few.next_offset, few.batch_count) == (5, 8, 3)
    assert reader.read(number, count, max_bytes=1 << 30, end_offset=count).batch_count == 0


def test_aborted_transactions_overlap_the_range_in_all_segments(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    spans = []
    for producer in range(6):
        first = store.partitions()[number].log_end_offset
        append_now(
            store,
            number,
            batch_of(
                3,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                attributes=TRANSACTIONAL,
            ),
        )
        if producer % 2:
            store.roll(NOW_MS)
        turn = store.begin(NOW_MS)
        marker = append(turn, number, abort(producer), origin=AppendOrigin.COORDINATOR)
        assert marker.error_code is ErrorCode.NONE
        turn.commit()
        spans.append((producer, first, marker.base_offset))
    end = store.partitions()[number].log_end_offset
    for start in range(end):
        for stop in range(start + 1, end + 1):
            expected = [p for p, first, last in spans if last >= start and first < stop]
            answer = reader.aborted_transactions(number, start, stop)
            assert [entry.producer_id for entry in answer] == expected
            for count in range(1, len(expected) + 1):
                few = reader.aborted_transactions(number, start, stop, count_max=count)
                assert few == answer[:count], "these transactions do not overlap"


def test_a_reader_has_the_same_producers_as_the_owner(store: Store, reader: StoreReader) -> None:
    number, other = create(store, 0), create(store, 1)
    for producer in range(4):
        batch = batch_of(2, producer_id=producer, producer_epoch=1, base_sequence=5)
        append_now(store, number, batch)
        append_now(store, other, batch)
        if producer == 1:
            store.roll(NOW_MS)
    assert sorted(reader.producers(number)) == sorted(store.producers(number))
    assert len(reader.producers(number)) == 4
    assert reader.producers(99) == []


# -- other processes ------------------------------------------------------------------------------

_READ = """
import sys
from pathlib import Path
from odradek.storage.reader import BATCHES_PER_READ_MAX, StoreReader
from tests.support.stores import TOPIC_ID, read_all, offsets_of
reader = StoreReader(Path(sys.argv[1]))
for line in sys.stdin:
    number = reader.number_of(TOPIC_ID, 0)
    print(*offsets_of(read_all(reader, number)), flush=True)
"""


def test_another_process_reads_what_is_committed_and_follows_the_owner(
    store: Store,
) -> None:
    number = create(store)
    append_now(store, number, batch_of(2), batch_of(3, size=6_000))
    with subprocess.Popen(
        [sys.executable, "-c", _READ, str(store.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert ask() == "0 2"
        append_now(store, number, batch_of(1))
        assert ask() == "0 2 5"
        store.roll(NOW_MS)
        append_now(store, number, batch_of(1, size=9_000))
        assert ask() == "0 2 5 6"
        process.stdin.close()
        assert process.wait(timeout=10) == 0


_HANG = """
import os, signal, sys
from pathlib import Path
from odradek.storage.reader import BATCHES_PER_READ_MAX, StoreReader
from tests.support.stores import TOPIC_ID
reader = StoreReader(Path(sys.argv[1]))
segment = reader._active() if reader.number_of(TOPIC_ID, 0) is not None else None
transaction = segment.begin()
transaction.get(b"x", db=segment.batches)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_slot_of_a_killed_reader_is_freed_at_the_next_opening(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(2))
    killed = subprocess.run([sys.executable, "-c", _HANG, str(tmp_path)], cwd=ROOT, check=False)
    assert killed.returncode == -9
    append_now(store, number, batch_of(2))
    assert store._segment.environment.clear_stale_readers() == 1
    assert store._segment.environment.clear_stale_readers() == 0
    assert offsets_of(read_all(StoreReader(tmp_path), number)) == [0, 2]
    store.close()


def test_a_batch_with_a_wrong_max_timestamp_does_not_hide_later_ones(
    store: Store, reader: StoreReader
) -> None:
    number = create(store)
    liar = build_batch([Record(0, NOW_MS - 50, b"k", b"v")], max_timestamp=NOW_MS)
    append_now(store, number, liar, batch_of(timestamp=NOW_MS - 10))
    assert found(reader, number, NOW_MS - 20) == (1, NOW_MS - 10)
    assert [r.offset for r in iter_records(read_all(reader, number)[0])] == [0]
