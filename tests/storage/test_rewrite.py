"""Rewriting segments: live batches are kept byte for byte, whatever happens in between."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL
from odradek.storage.environment import StorageError
from odradek.storage.layout import segment_ids, segment_path
from odradek.storage.reader import StoreReader
from odradek.storage.rewrite import (
    Slices,
    drop_dead_segments,
    extents_by_segment,
    mergeable_segments,
    rewrite_segments,
    segments_worth_rewriting,
)
from odradek.storage.settings import StoreOptions
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import (
    NOW_MS,
    append,
    append_now,
    batch_of,
    create,
    offsets_of,
    open_store,
    read_all,
)

CRASHER = """
import sys
from pathlib import Path
from odradek.storage.rewrite import drop_dead_segments, rewrite_segments
from tests.storage.test_rewrite import LARGE
from tests.support.stores import open_store

store = open_store(Path(sys.argv[1]), LARGE)
slices = int(sys.argv[2])
for _ in rewrite_segments(store.catalog, store.partitions(), [1]):
    slices -= 1
    if slices == 0:
        print("now", flush=True)
        sys.stdin.read()
print("swapped", flush=True)
if len(sys.argv) > 3:
    list(drop_dead_segments(store.catalog, store.partitions()))
    print("dropped", flush=True)
sys.stdin.read()
"""


LARGE = StoreOptions(segment_bytes=64 << 20, status_slots=1 << 12)


def finish(slices: Slices) -> None:
    for _ in slices:
        pass


def rewrite(store: Store, *segment_ids: int) -> None:
    finish(rewrite_segments(store.catalog, store.partitions(), segment_ids))


def drop(store: Store) -> list[int]:
    slices = drop_dead_segments(store.catalog, store.partitions())
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return list(stop.value)


def sealed_segment(store: Store, partitions: int = 3, batches: int = 20, size: int = 3000) -> None:
    """Segment 1 with batches of two records each in several partitions, sealed."""
    dice = random.Random(1)
    for partition in range(partitions):
        number = create(store, partition)
        for at in range(batches):
            append_now(store, number, batch_of(2, size=dice.choice([10, size]), fill=at % 256))
    store.roll(NOW_MS)


def contents(store: Store) -> dict[int, list[bytes]]:
    reader = StoreReader(store.directory)
    try:
        return {number: read_all(reader, number) for number in store.partitions()}
    finally:
        reader.close()


def test_a_segment_is_dropped_when_every_batch_lies_below_its_log_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sealed_segment(store, partitions=2)
    assert drop(store) == []
    store.log_starts.move({0: 40})
    assert drop(store) == []
    store.log_starts.move({1: 39})
    assert drop(store) == [], "half of the last batch is alive"
    store.log_starts.move({1: 40})
    assert drop(store) == [1]
    assert segment_ids(tmp_path) == [2]
    assert store.catalog.extents == {}
    store.close()


def test_a_segment_with_only_deleted_partitions_is_dropped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sealed_segment(store, partitions=2)
    store.delete_partitions([0, 1])
    assert drop(store) == [1]
    store.close()


def test_a_segment_of_many_partitions_is_dropped_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.storage.rewrite._EXTENTS_PER_CHANGE", 3)
    store = open_store(tmp_path)
    sealed_segment(store, partitions=8, batches=1)
    for number in range(8):
        store.delete_partitions([number])
    slices = drop_dead_segments(store.catalog, store.partitions())
    next(slices)
    assert len(store.catalog.extents) == 5
    slices.close()  # as a crash leaves it
    store.close()
    store = open_store(tmp_path)
    assert drop(store) == [1]
    assert store.catalog.extents == {}
    store.close()


def test_the_active_segment_is_never_dropped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(2))
    store.log_starts.move({number: 2})
    assert drop(store) == []
    store.close()


def test_a_rewrite_keeps_live_batches_and_frees_the_rest(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sealed_segment(store)
    before = segment_path(tmp_path, 1).stat().st_size
    store.log_starts.move({0: 37, 2: 40})
    store.delete_partitions([1])
    expected = contents(store)
    assert offsets_of(expected[0]) == [36, 38]
    rewrite(store, 1)
    assert drop(store) == [1]
    assert contents(store) == expected
    (new_id,) = extents_by_segment(store.catalog).keys() - {2}
    assert list(extents_by_segment(store.catalog)[new_id]) == [0]
    extent = store.catalog.extents[0][0]
    assert (extent.first_offset, extent.end_offset, extent.batch_count) == (37, 40, 2)
    assert segment_path(tmp_path, new_id).stat().st_size < before / 4
    store.close()
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()


def test_aborted_transactions_move_with_their_markers(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number, other = create(store), create(store, 1)
    for producer_id in (5, 6):
        batch = batch_of(
            2, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        append_now(store, number, batch)
        turn = store.begin(NOW_MS)
        marker = build_end_transaction_batch(
            EndTransactionMarker(ControlType.ABORT, 0),
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
        )
        assert (
            append(turn, number, marker, origin=AppendOrigin.COORDINATOR).error_code
            is ErrorCode.NONE
        )
        turn.commit()
    append_now(store, other, batch_of(2))
    store.roll(NOW_MS)
    store.log_starts.move({number: 3})
    reader = StoreReader(tmp_path)
    expected = reader.aborted_transactions(number, 3, 6)
    assert [row.producer_id for row in expected] == [6]
    rewrite(store, 1)
    drop(store)
    assert reader.aborted_transactions(number, 0, 6) == expected
    reader.close()
    store.close()


def test_a_reader_that_holds_the_old_file_reads_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sealed_segment(store, partitions=1)
    reader = StoreReader(tmp_path)
    held = reader.read(0, 0, max_bytes=1 << 20, end_offset=40)
    expected = b"".join(bytes(buffer) for buffer in held.buffers)
    store.log_starts.move({0: 30})
    rewrite(store, 1)
    assert drop(store) == [1]
    assert not segment_path(tmp_path, 1).exists()
    assert offsets_of(read_all(reader, 0)) == [30, 32, 34, 36, 38]
    assert b"".join(bytes(buffer) for buffer in held.buffers) == expected
    reader.close()
    store.close()


def test_an_aborted_rewrite_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sealed_segment(store)
    expected = contents(store)
    slices = rewrite_segments(store.catalog, store.partitions(), [1])
    next(slices)
    assert segment_ids(tmp_path) == [1, 2, 3]
    slices.close()  # type: ignore[attr-defined]  # a generator, as Slices need not be
    assert segment_ids(tmp_path) == [1, 2]
    assert contents(store) == expected
    store.close()


def test_a_partition_deleted_or_changed_meanwhile_is_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sealed_segment(store)
    expected = contents(store)
    slices = rewrite_segments(store.catalog, store.partitions(), [1])
    next(slices)
    store.delete_partitions([1])
    shortened = store.catalog.extents[2][0]._replace(end_offset=20)
    with store.catalog.change() as change:
        change.put_extent(2, shortened)
    finish(slices)
    assert [extent.segment_id for extent in store.catalog.extents[0]] == [3]
    assert store.catalog.extents[2] == [shortened]
    reader = StoreReader(tmp_path)
    assert read_all(reader, 0) == expected[0]
    reader.close()
    store.close()


def test_disk_full_in_the_middle_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.storage.rewrite._MAP_BYTES_MIN", 1 << 16)
    monkeypatch.setattr(
        "odradek.storage.rewrite._OVERFLOW_FACTOR", -1
    )  # a map too small for the copy
    store = open_store(tmp_path)
    sealed_segment(store)
    expected = contents(store)
    with pytest.raises(StorageError):
        rewrite(store, 1)
    assert segment_ids(tmp_path) == [1, 2]
    assert contents(store) == expected
    store.close()


@pytest.mark.parametrize("moment", ["1", "2", "swapped", "dropped"])
def test_sigkill_leaves_the_old_or_the_new(tmp_path: Path, moment: str) -> None:
    store = open_store(tmp_path, LARGE)
    sealed_segment(store, partitions=4, batches=300, size=4000)
    store.log_starts.move({0: 300, 1: 600})
    expected = contents(store)
    store.close()
    slices = moment if moment.isdigit() else "-1"
    arguments = [sys.executable, "-c", CRASHER, str(tmp_path), slices]
    if moment == "dropped":
        arguments.append("drop")
    child = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert child.stdout is not None
    assert child.stdin is not None
    awaited = "now" if moment.isdigit() else moment
    while (line := child.stdout.readline().strip()) != awaited:
        assert line, "the child has died"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    child.stdin.close()
    store = open_store(tmp_path)
    assert contents(store) == expected
    drop(store)
    assert contents(store) == expected
    known = set(store.catalog.segments)
    assert set(segment_ids(tmp_path)) == known, "a stray file"
    assert (1 in known) == moment.isdigit(), known
    store.close()


def test_segments_that_are_mostly_dead_are_worth_rewriting(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for partition, retention_ms in enumerate((10_000, -1)):
        number = create(store, partition, retention_ms=retention_ms)
        append_now(store, number, *(batch_of(2, size=1000) for _ in range(20)))
    store.roll(NOW_MS)

    def worth(now_ms: int, expiry_window_ms: int) -> list[int]:
        logs = store.partitions()
        return segments_worth_rewriting(
            store.catalog, logs, now_ms=now_ms, expiry_window_ms=expiry_window_ms
        )

    assert worth(NOW_MS, 0) == []
    store.log_starts.move({0: 30, 1: 30})
    assert worth(NOW_MS, 1_000) == [1]
    assert worth(NOW_MS, 60_000) == [1], "the one that never expires lasts"
    store.log_starts.move({1: 40})
    assert worth(NOW_MS, 1_000) == [1]
    assert worth(NOW_MS, 60_000) == [], "it dies of itself within the minute"
    rewrite(store, 1)
    drop(store)
    assert worth(NOW_MS, 1_000) == [], "once is enough"
    store.close()


def test_adjacent_small_segments_are_merged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    numbers = [create(store, partition) for partition in range(3)]
    dice = random.Random(2)
    for _ in range(9):
        for number in numbers:
            if dice.random() < 0.7:
                append_now(store, number, batch_of(3, size=dice.choice([10, 3000])))
        store.roll(NOW_MS)
    expected = contents(store)
    sealed = [row.segment_id for row in store.catalog.segments.values() if row.state]
    found = mergeable_segments(store.catalog, segment_bytes=1 << 20)
    assert found == sealed[:8]
    assert mergeable_segments(store.catalog, segment_bytes=1 << 10) == []
    rewrite(store, *found)
    assert drop(store) == found
    assert contents(store) == expected
    assert mergeable_segments(store.catalog, segment_bytes=1 << 20) == []
    store.close()
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()


def test_segments_that_are_not_adjacent_are_not_merged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    for _ in range(9):
        append_now(store, number, batch_of(3, size=3000))
        store.roll(NOW_MS)
    assert len(mergeable_segments(store.catalog, segment_bytes=1 << 20)) == 8
    with store.catalog.change() as change:
        row = store.catalog.segments[4]  # in the middle, and large: of another tier
        change.put_segment(msgspec.structs.replace(row, byte_count=50 << 20))
    assert mergeable_segments(store.catalog, segment_bytes=1 << 30) == []
    store.close()
