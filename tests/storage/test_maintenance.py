"""Maintenance as the owner's loop drives it."""

import logging
import random
import time
from pathlib import Path

import msgspec
import pytest

from odradek.protocol.checksum import crc32c
from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.storage.catalog import SegmentState
from odradek.storage.compaction import scratch_path
from odradek.storage.layout import segment_ids, segment_path
from odradek.storage.reader import StoreReader
from odradek.storage.settings import LogSettings, StoreOptions
from odradek.storage.status import ReplicaRole
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.log_lines import log_lines, log_text
from tests.support.stores import (
    NOW_MS,
    ModelLog,
    append,
    append_now,
    batch_of,
    create,
    offsets_of,
    open_store,
    read_all,
)

OPTIONS = StoreOptions(
    segment_bytes=1 << 20,
    segment_map_bytes=64 << 20,
    status_slots=1 << 12,
    retention_check_interval_ms=10_000,
    cleaner_backoff_ms=1_000,
)


def compacted(store: Store) -> int:
    return create(store, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.0)


def drain(store: Store, now_ms: int) -> int:
    """Run what is due to its end; returns the number of slices."""
    slices = store.maintenance(now_ms)
    count = 0
    for is_ready in slices or ():
        count += 1
        if not is_ready:
            time.sleep(0.001)  # the disk is busy: what the owner's loop does then
    return count


def log_starts(store: Store) -> list[int]:
    return [log.log_start_offset for log in store.partitions().values()]


def test_no_run_is_due_before_the_initial_delay(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    create(store)
    assert store.maintenance(NOW_MS) is None
    assert store.maintenance(NOW_MS + 999) is None
    assert store.maintenance(NOW_MS + 1_000) is not None
    assert drain(store, NOW_MS + 1_000) == 1
    assert store.maintenance(NOW_MS + 1_999) is None
    store.close()


def test_retention_moves_log_starts_and_frees_space(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    by_age = create(store, 0, retention_ms=5_000)
    by_size = create(store, 1, retention_ms=-1, retention_bytes=3_000)
    for at in range(4):
        now_ms = NOW_MS + 1_000 * at
        for number in (by_age, by_size):
            append_now(store, number, batch_of(2, size=1_000, timestamp=now_ms))
        store.roll(now_ms)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [8, 4]
    assert store.status.log_start_offset(by_age) == 8
    reader = StoreReader(tmp_path)
    assert offsets_of(read_all(reader, by_size)) == [4, 6]
    reader.close()
    assert segment_ids(tmp_path) == [5, 6, 7], "two dropped, two rewritten, one active"
    store.close()
    store = open_store(tmp_path, OPTIONS)
    assert log_starts(store) == [8, 4]
    store.close()


def test_new_settings_take_effect_at_the_next_check(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, retention_ms=-1)
    append_now(store, number, batch_of(2))
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [0]
    store.set_settings(number, LogSettings(retention_ms=1))
    drain(store, NOW_MS + 20_000)
    assert log_starts(store) == [2]
    store.close()


def test_a_follower_applies_no_retention_of_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, retention_ms=1)
    append_now(store, number, batch_of(2))
    store.set_leader_epoch(number, 1, ReplicaRole.FOLLOWER)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [0]
    store.set_leader_epoch(number, 2, ReplicaRole.LEADER)
    drain(store, NOW_MS + 20_000)
    assert log_starts(store) == [2]
    store.close()


def test_batches_without_timestamps_have_the_age_of_their_sealed_segment(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, retention_ms=5_000)
    append_now(store, number, batch_of(2, timestamp=-1))
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 100_000)
    assert log_starts(store) == [0], "still being written"
    store.roll(NOW_MS + 100_000)
    append_now(store, number, batch_of(2, timestamp=-1))
    drain(store, NOW_MS + 105_000)
    assert log_starts(store) == [0]
    drain(store, NOW_MS + 115_001)
    assert log_starts(store) == [2]
    store.close()


def test_the_space_of_deleted_records_and_topics_is_freed(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    gone, cut, kept = (create(store, partition, retention_ms=-1) for partition in range(3))
    for _ in range(10):
        append_now(store, gone, batch_of(1, size=20_000))
        append_now(store, cut, batch_of(1, size=20_000))
    append_now(store, kept, batch_of(1, size=20_000))
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    before = segment_path(tmp_path, 1).stat().st_size
    store.delete_partitions([gone])
    assert store.log_starts.delete_records(cut, 8) == (ErrorCode.NONE, 8)
    drain(store, NOW_MS + 1_000)
    assert segment_ids(tmp_path) == [2, 3]
    assert segment_path(tmp_path, 3).stat().st_size < before / 3
    reader = StoreReader(tmp_path)
    assert offsets_of(read_all(reader, cut)) == [8, 9]
    assert offsets_of(read_all(reader, kept)) == [0]
    reader.close()
    store.close()


def test_due_partitions_are_compacted(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = compacted(store)
    append_now(store, number, *(batch_of(1, fill=at) for at in range(20)))
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 1_000)
    reader = StoreReader(tmp_path)
    assert offsets_of(read_all(reader, number)) == [19]
    reader.close()
    assert segment_ids(tmp_path) == [2, 3]
    store.close()


def test_turns_run_between_slices(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = compacted(store)
    append_now(store, number, *(batch_of(1, size=400, fill=at % 256) for at in range(1_500)))
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    slices = store.maintenance(NOW_MS + 1_000)
    assert slices is not None
    count = 0
    for _ in slices:
        count += 1
        append_now(store, number, batch_of(1, size=400), now_ms=NOW_MS + 1_000)
        assert store.maintenance(NOW_MS + 1_000) is slices, "one run at a time"
    assert count > 3
    reader = StoreReader(tmp_path)
    assert offsets_of(read_all(reader, number)) == [1499, *range(1500, 1500 + count)]
    reader.close()
    store.close()


def test_closing_during_a_run_leaves_no_file(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = compacted(store)
    append_now(store, number, *(batch_of(1, size=400) for _ in range(1_500)))
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    slices = store.maintenance(NOW_MS + 1_000)
    assert slices is not None
    next(slices)
    assert segment_ids(tmp_path) == [1, 2, 3]
    store.close()
    assert segment_ids(tmp_path) == [1, 2]
    store = open_store(tmp_path, OPTIONS)
    assert store.partitions()[number].log_end_offset == 1_500
    store.close()


def test_the_scratch_file_of_a_killed_pass_is_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    scratch_path(store.catalog).write_bytes(b"keys")
    store.close()
    store = open_store(tmp_path, OPTIONS)
    assert not scratch_path(store.catalog).exists()
    store.close()


def test_a_run_that_fails_on_a_full_disk_starts_over_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = compacted(store)
    append_now(store, number, *(batch_of(1, size=3_000, key=b"%d" % at) for at in range(100)))
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("odradek.storage.rewrite._MAP_BYTES_MIN", 1 << 16)
        patch.setattr(
            "odradek.storage.rewrite._OVERFLOW_FACTOR", -1
        )  # a map too small: as a full disk
        drain(store, NOW_MS + 1_000)
        drain(store, NOW_MS + 2_000)
    assert len([text for text in log_lines(caplog) if "maintenance of" in text]) == 1, "logged once"
    assert segment_ids(tmp_path) == [1, 2]
    drain(store, NOW_MS + 3_000)
    assert segment_ids(tmp_path) == [2, 5]
    store.close()


def test_a_thousand_idle_partitions_cost_little(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    for partition in range(1_000):
        number = create(store, partition, retention_bytes=1 << 30)
        append_now(store, number, batch_of(1))
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    started = time.process_time()
    assert drain(store, NOW_MS + 20_000) == 10
    # 20 ms on a quiet machine: every five minutes by default, which is nothing.
    assert time.process_time() - started < 0.5
    store.close()


def test_a_partition_that_cannot_be_compacted_is_retried_after_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = compacted(store)
    batch = bytearray(batch_of(2, codec=Codec.GZIP))
    batch[61] ^= 0xFF  # no longer gzip, but the CRC is right
    batch[17:21] = int(crc32c(bytes(batch[21:]))).to_bytes(4, "big")
    turn = store.begin(NOW_MS)
    append(turn, number, bytes(batch), origin=AppendOrigin.REPLICATION)
    turn.commit()
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    for at in range(1, 4):
        drain(store, NOW_MS + 1_000 * at)
    assert log_text(caplog).count("is not compacted") == 1
    append_now(store, number, batch_of(1))
    store.roll(NOW_MS)
    drain(store, NOW_MS + 4_000)
    assert log_text(caplog).count("is not compacted") == 2
    store.close()


@pytest.mark.parametrize("seed", range(10))
def test_random_maintenance_equals_lists(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(tmp_path, OPTIONS)
    models: dict[int, ModelLog] = {}
    topics = 0
    now_ms = NOW_MS
    for _ in range(150):
        now_ms += dice.choice([10, 500, 20_000])
        action = dice.random()
        if action < 0.5 and models:
            for number in dice.sample(list(models), dice.randint(1, len(models))):
                batch = batch_of(
                    dice.randint(1, 3), size=dice.choice([10, 1_000, 9_000]), timestamp=now_ms
                )
                code, base = models[number].append(batch)
                assert code is ErrorCode.NONE
                assert append_now(store, number, batch, now_ms=now_ms) == [base]
        elif action < 0.6 and len(models) < 8:
            topics += 1
            number = create(
                store, topic_id=topics.to_bytes(16, "big"), retention_ms=-1, retention_bytes=-1
            )
            assert number not in models
            models[number] = ModelLog()
        elif action < 0.65 and models:
            number = dice.choice(list(models))
            store.delete_partitions([number])
            del models[number]
        elif action < 0.75 and models:
            number, model = dice.choice(list(models.items()))
            model.start = dice.randint(model.start, model.end)
            assert store.log_starts.delete_records(number, model.start)[0] is ErrorCode.NONE
        elif action < 0.9:
            store.roll(now_ms)
        elif action < 0.95:
            drain(store, now_ms)
        else:
            store.close()
            store = open_store(tmp_path, OPTIONS, now_ms)
            assert store.maintenance(now_ms) is None
        reader = StoreReader(tmp_path)
        for number, model in models.items():
            assert read_all(reader, number) == model.visible(), f"partition {number}"
        reader.close()
    store.roll(now_ms)
    drain(store, now_ms + 100_000)
    drain(store, now_ms + 200_000)
    # What is left is at most twice what is alive, as far as small segments can tell.
    alive = sum(len(data) for model in models.values() for data in model.visible())
    sealed = [row for row in store.catalog.segments.values() if row.state is SegmentState.SEALED]
    assert sum(row.byte_count for row in sealed) <= 2 * alive + 20_000
    assert set(segment_ids(tmp_path)) == set(store.catalog.segments)
    store.close()


def test_another_check_interval_counts_from_the_last_check(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, retention_ms=-1)
    append_now(store, number, batch_of(2))
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    store.set_settings(number, LogSettings(retention_ms=1))
    options = msgspec.structs.replace(
        store.options,
        producer_id_expiration_ms=86_400_000,
        retention_check_interval_ms=5_000,
    )
    store.set_options(options)
    drain(store, NOW_MS + 14_999)
    assert log_starts(store) == [0]
    drain(store, NOW_MS + 15_000)
    assert log_starts(store) == [2]
    store.close()
