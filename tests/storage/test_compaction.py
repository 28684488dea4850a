"""Compaction of whole stores: which partitions are due, and the result of a pass."""

import random
from pathlib import Path

import pytest

from odradek.protocol.checksum import crc32c
from odradek.protocol.compression import Codec
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch, iter_records, read_header
from odradek.protocol.types import NEVER
from odradek.storage.compaction import CompactionPass, plan_compaction
from odradek.storage.layout import segment_ids
from odradek.storage.partition_log import NewPartition
from odradek.storage.reader import StoreReader
from odradek.storage.rewrite import drop_dead_segments
from odradek.storage.settings import LogSettings
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import NOW_MS, append, append_now, create, open_store, read_all

COMPACT = LogSettings(
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1_000,
)


def compacted(store: Store, partition: int = 0, settings: LogSettings = COMPACT) -> int:
    new = NewPartition(bytes(range(16)), "topic", partition, 0, settings)
    return store.create_partitions([new])[0]


def pairs(
    *values: tuple[str, str | None],
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    timestamp: int = NOW_MS,
) -> bytes:
    records = [
        Record(at, timestamp, key.encode(), None if value is None else value.encode())
        for at, (key, value) in enumerate(values)
    ]
    return build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        attributes=attributes,
    )


def end_transaction(store: Store, number: int, producer_id: int, type_: ControlType) -> None:
    marker = build_end_transaction_batch(
        EndTransactionMarker(type_, 0),
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
    )
    turn = store.begin(NOW_MS)
    result = append(turn, number, marker, origin=AppendOrigin.COORDINATOR)
    turn.commit()
    assert result.error_code is ErrorCode.NONE


def compact(store: Store, *, now_ms: int = NOW_MS, keys_max: int = 1_000) -> CompactionPass | None:
    """A pass over all partitions that are due; its dead files are deleted."""
    plans = [
        plan
        for log in store.partitions().values()
        if (plan := plan_compaction(store.catalog, log, now_ms=now_ms)) is not None
    ]
    if not plans:
        return None
    compaction = CompactionPass(
        store.catalog, store.partitions(), plans, now_ms=now_ms, keys_max=keys_max
    )
    for _ in compaction.run():
        pass
    for _ in drop_dead_segments(store.catalog, store.partitions()):
        pass
    return compaction


def records_of(store: Store, number: int) -> list[tuple[int, bytes | None, bytes | None]]:
    reader = StoreReader(store.directory)
    try:
        return [
            (record.offset, record.key, record.value)
            for batch in read_all(reader, number)
            if not read_header(batch).attributes & 0x20
            for record in iter_records(batch)
        ]
    finally:
        reader.close()


@pytest.mark.parametrize(("batch_ns", "slices_min", "slices_max"), [(0, 0, 9), (1_000_000, 50, 99)])
def test_a_slice_ends_by_time_too(
    tmp_path: Path, batch_ns: int, slices_min: int, slices_max: int
) -> None:
    """Between two slices time does not count: turns may have taken it."""
    store = open_store(tmp_path)
    number = compacted(store)
    append_now(store, number, *(pairs((f"k{at}", "1")) for at in range(100)))
    store.roll(NOW_MS)
    now_ns = 0

    def clock_ns() -> int:
        nonlocal now_ns
        now_ns += batch_ns
        return now_ns

    plan = plan_compaction(store.catalog, store.partitions()[number], now_ms=NOW_MS)
    assert plan is not None
    compaction = CompactionPass(
        store.catalog,
        store.partitions(),
        [plan],
        now_ms=NOW_MS,
        keys_max=1_000,
        clock_ns=clock_ns,
    )
    slices = 0
    for may_continue_at_once in compaction.run():
        slices += may_continue_at_once
        now_ns += 1_000_000_000
    assert slices_min <= slices <= slices_max
    store.close()


def test_a_pass_keeps_the_last_value_of_each_key_in_one_segment(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = compacted(store)
    append_now(store, number, pairs(("a", "1"), ("b", "1")), pairs(("a", "2")))
    store.roll(NOW_MS)
    append_now(store, number, pairs(("b", None), ("c", "1")))
    store.roll(NOW_MS)
    append_now(store, number, pairs(("a", "3")))  # in the active segment: outdates nothing yet
    compact(store)
    assert records_of(store, number) == [
        (2, b"a", b"2"),
        (3, b"b", None),
        (4, b"c", b"1"),
        (5, b"a", b"3"),
    ]
    assert segment_ids(tmp_path) == [3, 4]
    (extent,) = store.catalog.extents[number]
    assert (extent.first_offset, extent.end_offset) == (0, 5)
    assert store.catalog.segments[4].is_compacted
    assert compact(store) is None, "all of it is clean"
    store.close()


def test_compacted_extents_are_clean_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = compacted(store)
    append_now(store, number, pairs(("a", "1")), pairs(("a", "2")), pairs(("b", "1")))
    store.roll(NOW_MS)
    compact(store)
    expected = records_of(store, number)
    store.close()
    store = open_store(tmp_path)
    assert records_of(store, number) == expected == [(1, b"a", b"2"), (2, b"b", b"1")]
    assert compact(store) is None
    assert append_now(store, number, pairs(("c", "1"))) == [3]
    store.close()


def test_a_partition_is_due_by_its_dirty_ratio_or_its_lag(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    settings = LogSettings(
        cleanup_compact=True, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=5_000
    )
    number = compacted(store, 0, settings)
    log = store.partitions()[number]
    append_now(store, number, *[pairs((f"{at}", "x" * 100)) for at in range(8)])
    assert plan_compaction(store.catalog, log, now_ms=NOW_MS) is None, "the active segment"
    store.roll(NOW_MS)
    plan = plan_compaction(store.catalog, log, now_ms=NOW_MS)
    assert plan is not None
    assert plan.dirty_ratio == 1.0
    compact(store)
    append_now(store, number, *[pairs((f"{at}", "x" * 100)) for at in range(4)])
    store.roll(NOW_MS)
    assert plan_compaction(store.catalog, log, now_ms=NOW_MS) is None, "a third is dirty"
    assert plan_compaction(store.catalog, log, now_ms=NOW_MS + 5_000) is None
    overdue = plan_compaction(store.catalog, log, now_ms=NOW_MS + 5_001)
    assert overdue is not None
    assert (len(overdue.clean), len(overdue.dirty)) == (1, 1)
    store.set_settings(number, LogSettings(cleanup_compact=False))
    assert plan_compaction(store.catalog, log, now_ms=NEVER) is None
    store.close()


def test_young_records_and_open_transactions_end_the_range(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    settings = LogSettings(
        cleanup_compact=True, min_cleanable_dirty_ratio=0.0, min_compaction_lag_ms=1_000
    )
    number = compacted(store, 0, settings)
    log = store.partitions()[number]
    append_now(store, number, pairs(("a", "1")))
    store.roll(NOW_MS)
    append_now(store, number, pairs(("a", "2"), timestamp=NOW_MS + 500))
    store.roll(NOW_MS)
    batch = pairs(("a", "3"), producer_id=4, sequence=0, attributes=TRANSACTIONAL)
    append_now(store, number, batch)
    store.roll(NOW_MS)

    def dirty_segments(now_ms: int) -> list[int]:
        plan = plan_compaction(store.catalog, log, now_ms=now_ms)
        return [] if plan is None else [extent.segment_id for extent in plan.dirty]

    assert dirty_segments(NOW_MS + 999) == []
    assert dirty_segments(NOW_MS + 1_000) == [1]
    assert dirty_segments(NOW_MS + 1_500) == [1, 2]
    assert dirty_segments(NOW_MS + 9_000) == [1, 2], "the third is not stable"
    end_transaction(store, number, 4, ControlType.COMMIT)
    assert dirty_segments(NOW_MS + 9_000) == [1, 2, 3]
    store.close()


def test_tombstones_are_removed_after_delete_retention(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = compacted(store)
    append_now(store, number, pairs(("a", "1"), ("b", "1")), pairs(("a", None)))
    store.roll(NOW_MS)
    compact(store)
    assert records_of(store, number) == [(1, b"b", b"1"), (2, b"a", None)]
    for at, now_ms in enumerate((NOW_MS + 999, NOW_MS + 1_000)):
        append_now(store, number, pairs((f"c{at}", "1")))
        store.roll(now_ms)
        compact(store, now_ms=now_ms)
    assert records_of(store, number) == [(1, b"b", b"1"), (3, b"c0", b"1"), (4, b"c1", b"1")]
    store.close()


def test_the_log_end_stays_when_its_last_records_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = compacted(store)
    append_now(store, number, pairs(("a", "1")), pairs(("b", None)))
    store.roll(NOW_MS)
    compact(store)
    append_now(store, number, pairs(("a", None)))
    store.roll(NOW_MS + 5_000)
    compact(store, now_ms=NOW_MS + 5_000)
    store.set_settings(number, COMPACT)
    assert [offset for offset, _, _ in records_of(store, number)] == [2]
    store.close()


def test_a_producers_sequence_is_kept_when_its_records_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = compacted(store)
    append_now(store, number, pairs(("a", "1"), producer_id=9, sequence=0))
    append_now(store, number, pairs(("a", "2"), producer_id=9, sequence=1))
    append_now(store, number, pairs(("a", "3")))
    store.roll(NOW_MS)
    compact(store)
    reader = StoreReader(tmp_path)
    headers = [read_header(batch) for batch in read_all(reader, number)]
    reader.close()
    assert [(h.base_offset, h.producer_id, h.base_sequence, h.record_count) for h in headers] == [
        (1, 9, 1, 0),
        (2, -1, -1, 1),
    ]
    store.close()
    store = open_store(tmp_path)
    # A retry of what is no longer there is still a retry.
    assert append_now(store, number, pairs(("a", "2"), producer_id=9, sequence=1)) == [1]
    assert append_now(store, number, pairs(("a", "4"), producer_id=9, sequence=2)) == [3]
    store.close()


def test_aborted_rows_are_removed_with_their_markers(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = compacted(store)
    batch = pairs(("a", "x"), producer_id=4, sequence=0, attributes=TRANSACTIONAL)
    append_now(store, number, pairs(("a", "1")), batch)
    end_transaction(store, number, 4, ControlType.ABORT)
    store.roll(NOW_MS)
    reader = StoreReader(tmp_path)
    compact(store)
    assert records_of(store, number) == [(0, b"a", b"1")]
    assert [row.producer_id for row in reader.aborted_transactions(number, 0, 9)] == [4]
    # Its data is gone but for the empty batch that an active producer keeps.
    store.expire_producers(NOW_MS + 10**9)
    for key, expected in (("b", [4]), ("c", [])):
        append_now(store, number, pairs((key, "1")))
        store.roll(NOW_MS)
        compact(store)
        rows = reader.aborted_transactions(number, 0, 9)
        assert [row.producer_id for row in rows] == expected
    reader.close()
    store.close()


def test_partitions_of_a_pass_share_one_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    numbers = [compacted(store, partition) for partition in range(5)]
    plain = create(store, 9)
    for number in (*numbers, plain):
        append_now(store, number, pairs(("a", "1"), ("a", "2")))
    store.roll(NOW_MS)
    compact(store)
    assert segment_ids(tmp_path) == [1, 2, 3]
    assert {e.segment_id for n in numbers for e in store.catalog.extents[n]} == {3}
    assert [e.segment_id for e in store.catalog.extents[plain]] == [1]
    assert records_of(store, plain) == [(0, b"a", b"1"), (1, b"a", b"2")]
    store.close()


def test_a_partition_with_malformed_records_is_not_changed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    broken, sound = compacted(store, 0), compacted(store, 1)
    batch = bytearray(pairs(("a", "1"), ("a", "2"), codec=Codec.GZIP))
    batch[61] ^= 0xFF  # no longer gzip, but the CRC is right
    batch[17:21] = int(crc32c(bytes(batch[21:]))).to_bytes(4, "big")
    turn = store.begin(NOW_MS)
    result = append(turn, broken, bytes(batch), origin=AppendOrigin.REPLICATION)
    turn.commit()
    assert result.error_code is ErrorCode.NONE, result
    append_now(store, sound, pairs(("a", "1"), ("a", "2")))
    store.roll(NOW_MS)
    compaction = compact(store)
    assert compaction is not None
    assert list(compaction.failures) == [broken]
    assert [e.segment_id for e in store.catalog.extents[broken]] == [1]
    assert records_of(store, sound) == [(1, b"a", b"2")]
    store.close()


@pytest.mark.parametrize("seed", range(15))
def test_random_stores_keep_the_last_value_of_each_key(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(tmp_path)
    numbers = [compacted(store, partition) for partition in range(3)]
    history: dict[int, dict[int, tuple[bytes | None, bytes | None]]] = {n: {} for n in numbers}
    log_starts = dict.fromkeys(numbers, 0)
    now_ms = NOW_MS
    for _ in range(60):
        now_ms += dice.choice([1, 50, 1_500])
        action = dice.random()
        number = dice.choice(numbers)
        if action < 0.7:
            count = dice.randint(1, 8)
            values = [
                (
                    f"key{dice.randrange(10)}" * dice.choice([1, 6]),
                    None if dice.random() < 0.2 else f"{seed}-{dice.random()}" * 20,
                )
                for _ in range(count)
            ]
            codec = dice.choice(list(Codec))
            (base,) = append_now(store, number, pairs(*values, codec=codec), now_ms=now_ms)
            for at, (key, value) in enumerate(values):
                text = None if value is None else value.encode()
                history[number][base + at] = key.encode(), text
        elif action < 0.8:
            store.roll(now_ms)
        elif action < 0.93:
            before = {n: dict(_keyed(records_of(store, n))) for n in numbers}
            compact(store, now_ms=now_ms, keys_max=dice.choice([2, 1_000]))
            for n in numbers:
                after = records_of(store, n)
                assert [r for r in after if (r[1], r[2]) != history[n][r[0]]] == [], "changed"
                assert dict(_keyed(after)).keys() <= before[n].keys()
        elif action < 0.96:
            end = store.partitions()[number].log_end_offset
            log_starts[number] = dice.randint(log_starts[number], end)
            store.log_starts.move({number: log_starts[number]})
        else:
            store.close()
            store = open_store(tmp_path, now_ms=now_ms)
        for n in numbers:
            found = records_of(store, n)
            offsets = [offset for offset, _, _ in found]
            assert offsets == sorted(set(offsets))
            alive = {o: pair for o, pair in history[n].items() if o >= log_starts[n]}
            latest = {key: (offset, value) for offset, (key, value) in alive.items()}
            last = {key: (o, value) for o, key, value in found if o >= log_starts[n]}
            for name, (offset, payload) in latest.items():
                if payload is not None:
                    assert last.get(name) == (offset, payload), f"{name!r} of {n}"
                elif name in last:
                    assert last[name] == (offset, None), "a deleted key came back"
    store.close()


def _keyed(
    records: list[tuple[int, bytes | None, bytes | None]],
) -> list[tuple[int, bytes | None]]:
    return [(offset, key) for offset, key, _ in records]
