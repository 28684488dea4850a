"""The store as its owner uses it, against a simple model, through restarts and rolls."""

import os
import random
from copy import deepcopy
from pathlib import Path

import pytest
from msgspec.structs import replace

from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL
from odradek.storage.catalog import Catalog
from odradek.storage.environment import StorageError
from odradek.storage.layout import segment_path
from odradek.storage.partition_log import NewPartition
from odradek.storage.reader import StoreReader
from odradek.storage.settings import LogSettings
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import (
    NOW_MS,
    OPTIONS,
    TOPIC_ID,
    ModelLog,
    append,
    append_now,
    as_stored,
    batch_of,
    create,
    dropped_but_open,
    offsets_of,
    open_store,
    read_all,
    tend,
    wait_for_sync,
)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_store_equals_a_simple_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = open_store(tmp_path)
    models: dict[int, ModelLog] = {}
    numbers = [create(store, partition) for partition in range(6)]
    for number in numbers:
        models[number] = ModelLog()
    sequences: dict[tuple[int, int], list[int]] = {}
    now_ms = NOW_MS
    for _ in range(120):
        now_ms += chance.randrange(100)
        action = chance.random()
        if action < 0.80:
            before = deepcopy(models)
            turn = store.begin(now_ms)
            expected = []
            for _ in range(chance.randrange(1, 12)):
                number = chance.choice(numbers)
                count = chance.randrange(1, 6)
                producer_id = epoch = sequence = -1
                if chance.random() < 0.6:
                    producer_id = chance.randrange(3)
                    recent = sequences.setdefault((number, producer_id), [0])
                    # Mostly the next one, sometimes a retry, sometimes a gap.
                    sequence = chance.choice([recent[-1]] * 6 + recent[-4:] + [recent[-1] + 3])
                    epoch = chance.choice([0] * 30 + [1])
                    count = 2
                batch = batch_of(
                    count,
                    size=chance.choice([5, 300, 5000]),
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                )
                result = append(turn, number, batch)
                wanted = models[number].append(batch)
                assert (result.error_code, result.base_offset) == wanted
                if producer_id >= 0 and wanted[0] is ErrorCode.NONE:
                    _, history = models[number].producers[producer_id]
                    sequences[number, producer_id] = [first for first, _, _ in history] + [
                        history[-1][0] + history[-1][1]
                    ]
                expected.append(result)
            if chance.random() < 0.15:
                turn.abort()
                models = before
                for number, model in models.items():
                    for producer_id in range(3):
                        _, history = model.producers.get(producer_id, (0, []))
                        last = [history[-1][0] + history[-1][1]] if history else [0]
                        sequences[number, producer_id] = [f for f, _, _ in history] + last
                assert all(r.error_code is not ErrorCode.NONE for r in expected)
            else:
                turn.commit()
        elif action < 0.86:
            number = chance.choice(numbers)
            model = models[number]
            offset = chance.randrange(model.start, model.end + 1)
            assert store.log_starts.delete_records(number, offset) == (ErrorCode.NONE, offset)
            model.start = offset
        elif action < 0.92:
            store.roll(now_ms)
        else:
            store.close()
            store = open_store(tmp_path, now_ms=now_ms)
        reader = StoreReader(tmp_path)
        for number, model in models.items():
            log = store.partitions()[number]
            assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
            assert reader.status.log_end_offset(number) == model.end
            assert reader.status.last_stable_offset(number) == model.end
        number = chance.choice(numbers)
        assert read_all(reader, number) == models[number].visible()
        reader.close()
    reader = StoreReader(tmp_path)
    for number, model in models.items():
        assert read_all(reader, number) == model.visible()
    reader.close()
    store.close()


def test_a_partition_keeps_its_number_and_its_log_through_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    assert append_now(store, number, batch_of(3), batch_of(2)) == [0, 3]
    store.close()
    store = open_store(tmp_path)
    assert store.number_of(TOPIC_ID, 0) == number
    assert append_now(store, number, batch_of(1)) == [5]
    reader = StoreReader(tmp_path)
    assert offsets_of(read_all(reader, number)) == [0, 3, 5]
    store.close()


def test_creating_a_partition_twice_gives_the_same_number_and_the_newer_settings(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    number = create(store)
    assert create(store, max_message_bytes=10) == number
    assert store.partitions()[number].settings.max_message_bytes == 10
    store.close()
    assert open_store(tmp_path).partitions()[number].settings.max_message_bytes == 10


def test_many_partitions_are_created_in_one_change(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    changes = store.catalog.change_count
    numbers = store.create_partitions(
        NewPartition(TOPIC_ID, "topic", partition, 3, LogSettings()) for partition in range(500)
    )
    assert len(set(numbers)) == 500
    assert store.catalog.change_count == changes + 1
    assert store.status.leader_epoch(numbers[499]) == 3
    store.close()


def test_a_store_has_one_owner(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StorageError, match="in use by another process"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_a_deleted_partition_is_invisible_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of())
    reader = StoreReader(tmp_path)
    assert reader.number_of(TOPIC_ID, 0) == number
    store.delete_partitions([number])
    assert reader.number_of(TOPIC_ID, 0) is None
    assert store.number_of(TOPIC_ID, 0) is None
    assert append(store.begin(NOW_MS), number, batch_of()).error_code is (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    store.close()
    assert open_store(tmp_path).number_of(TOPIC_ID, 0) is None


def test_a_number_is_reused_only_after_its_data_is_gone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    empty = create(store, 0)
    filled = create(store, 1)
    append_now(store, filled, batch_of())
    store.delete_partitions([empty, filled])
    assert create(store, 2) == empty
    assert create(store, 3) not in (empty, filled)
    store.roll(NOW_MS)
    store.close()
    store = open_store(tmp_path)
    assert create(store, 4) not in (empty, filled)
    (sealed,) = {extent.segment_id for extent in store.catalog.extents[filled]}
    with store.catalog.change() as change:
        change.delete_segment(sealed)
    assert create(store, 5) == filled
    store.close()


def test_dead_bytes_of_a_deleted_partition_are_counted_after_a_restart(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    number = create(store)
    batch = batch_of(3)
    append_now(store, number, batch, batch)
    store.delete_partitions([number])
    store.close()
    store = open_store(tmp_path)
    store.roll(NOW_MS)
    (extent,) = store.catalog.extents[number]
    assert (extent.first_offset, extent.end_offset) == (0, 6)
    assert extent.byte_count == 2 * len(batch)
    store.close()


def test_delete_records_moves_the_start_and_survives_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(5), batch_of(5))
    assert store.log_starts.delete_records(number, 7) == (ErrorCode.NONE, 7)
    assert store.log_starts.delete_records(number, 3) == (ErrorCode.NONE, 7)
    assert store.log_starts.delete_records(number, 11)[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert store.log_starts.delete_records(number, -2)[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert store.log_starts.delete_records(99, 0)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reader = StoreReader(tmp_path)
    assert reader.status.log_start_offset(number) == 7
    store.close()
    store = open_store(tmp_path)
    log = store.partitions()[number]
    assert (log.log_start_offset, log.log_end_offset) == (7, 10)
    assert append_now(store, number, batch_of()) == [10]
    assert store.log_starts.delete_records(number, -1) == (ErrorCode.NONE, 11)
    store.close()


def test_records_of_a_compact_only_topic_cannot_be_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store, cleanup_compact=True, cleanup_delete=False)
    assert store.log_starts.delete_records(number, 0)[0] is ErrorCode.POLICY_VIOLATION
    store.close()


def test_a_log_whose_end_was_lost_continues_at_its_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(10))
    store.log_starts.delete_records(number, 8)
    segment_id = store.catalog.active_segment_id
    assert segment_id is not None
    store.close()
    # The segment is lost with the machine, the catalog (always synced) is not.
    segment_path(tmp_path, segment_id).unlink()
    (tmp_path / f"{segment_path(tmp_path, segment_id).name}-lock").unlink()
    pretend_the_machine_went_down(tmp_path)
    store = open_store(tmp_path)
    assert append_now(store, number, batch_of(2)) == [8]
    store.close()
    store = open_store(tmp_path)
    assert store.partitions()[number].log_end_offset == 10
    store.close()


def pretend_the_machine_went_down(directory: Path) -> None:
    with Catalog(directory, map_bytes=1 << 30).change() as change:
        change.put_property("clean", "0")
        change.put_property("boot_id", "another")


def test_an_intact_active_segment_is_sealed_after_a_power_loss(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(4, size=5000), batch_of(2))
    old = store.catalog.active_segment_id
    store.close()
    pretend_the_machine_went_down(tmp_path)
    store = open_store(tmp_path)
    assert store.catalog.active_segment_id != old
    assert store.partitions()[number].log_end_offset == 6
    assert append_now(store, number, batch_of()) == [6]
    assert offsets_of(read_all(StoreReader(tmp_path), number)) == [0, 4, 6]
    store.close()


def test_a_torn_active_segment_is_rebuilt_from_its_intact_batches(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number, other = create(store, 0), create(store, 1)
    batches = [
        batch_of(2, size=5000, producer_id=1, producer_epoch=0, base_sequence=2 * i)
        for i in range(10)
    ]
    append_now(store, number, *batches)
    append_now(store, other, batch_of(3, size=6000))
    segment_id = store.catalog.active_segment_id
    assert segment_id is not None
    store.close()
    path = segment_path(tmp_path, segment_id)
    data = bytearray(path.read_bytes())
    data[:8192] = bytes(8192)  # both meta pages
    path.write_bytes(data)
    pretend_the_machine_went_down(tmp_path)
    store = open_store(tmp_path)
    reader = StoreReader(tmp_path)
    expected = [as_stored(batch, 2 * i) for i, batch in enumerate(batches)]
    assert read_all(reader, number) == expected
    assert offsets_of(read_all(reader, other)) == [0]
    # The producer is known again: a retry is one, and the next one follows.
    assert append_now(store, number, batches[-1]) == [18]
    store.close()


def test_the_segment_is_rolled_by_size_and_stays_readable(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    batches = [batch_of(1, size=50_000, fill=i) for i in range(60)]
    for batch in batches:
        append_now(store, number, batch)
        store.run_due_tasks(NOW_MS)
    while len(store.catalog.segments) < 3:
        append_now(store, number, batches[0])
        batches.append(batches[0])
    reader = StoreReader(tmp_path)
    assert read_all(reader, number) == [as_stored(b, i) for i, b in enumerate(batches)]
    assert reader.size_bytes(number) == sum(map(len, batches))
    store.close()
    store = open_store(tmp_path)
    assert store.partitions()[number].log_end_offset == len(batches)
    store.close()


def test_the_segment_is_rolled_when_its_oldest_data_reach_segment_ms(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store, segment_ms=1_000)
    other = create(store, 1)
    first = store.catalog.active_segment_id
    append_now(store, other, batch_of())
    append_now(store, number, batch_of(), now_ms=NOW_MS)
    assert store.next_deadline_ms() == NOW_MS + 1_000
    roll_at(store, NOW_MS + 999)
    assert store.catalog.active_segment_id == first
    roll_at(store, NOW_MS + 1_000)
    assert store.catalog.active_segment_id != first
    second = store.catalog.active_segment_id
    roll_at(store, NOW_MS + 10_000)
    assert store.catalog.active_segment_id == second, "an empty segment has no age"
    store.close()


def segment_files(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("segment-*.mdb")}


def test_an_active_segment_of_mostly_deleted_partitions_is_sealed_and_dropped(
    tmp_path: Path,
) -> None:
    options = replace(OPTIONS, segment_dead_bytes_max=100_000, retention_check_interval_ms=10)
    store = open_store(tmp_path, options)
    kept, gone = create(store, 0), create(store, 1)
    append_now(store, kept, batch_of(1, size=1_000))
    append_now(store, gone, batch_of(1, size=99_000))
    first = segment_files(tmp_path)
    store.delete_partitions([gone])
    tend(store, NOW_MS)
    assert segment_files(tmp_path) == first, "this is too little to begin a new file for"
    also_gone = create(store, 2)
    append_now(store, also_gone, batch_of(1, size=10_000))
    store.delete_partitions([also_gone])
    tend(store, NOW_MS)
    tend(store, NOW_MS + 10)
    assert not segment_files(tmp_path) & first
    assert dropped_but_open(tmp_path) == []
    assert offsets_of(read_all(StoreReader(tmp_path), kept)) == [0]
    store.close()


def test_dead_bytes_below_the_log_start_are_counted_after_a_restart(
    tmp_path: Path,
) -> None:
    options = replace(OPTIONS, segment_dead_bytes_max=100_000)
    store = open_store(tmp_path, options)
    number = create(store)
    append_now(store, number, *(batch_of(1, size=30_000) for _ in range(5)))
    store.log_starts.delete_records(number, 3)
    store.close()
    before = segment_files(tmp_path)
    store = open_store(tmp_path, options)
    tend(store, NOW_MS)
    assert segment_files(tmp_path) == before
    store.log_starts.delete_records(number, 4)
    tend(store, NOW_MS)
    assert segment_files(tmp_path) > before
    store.close()


def roll_at(store: Store, now_ms: int) -> None:
    """Let time pass; the sync thread syncs before a roll, so ask until it has."""
    for _ in range(1000):
        store.run_due_tasks(now_ms)
        if store.next_deadline_ms() > now_ms:
            return
        wait_for_sync(store._flusher._syncer)


def test_a_shorter_segment_ms_applies_to_existing_data(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of())
    store.set_settings(number, LogSettings(segment_ms=50))
    assert store.next_deadline_ms() <= NOW_MS + 50
    store.close()


def test_changed_settings_are_stored_in_one_change(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    numbers = [create(store, partition) for partition in range(20)]
    changes = store.catalog.change_count
    for number in numbers:
        store.set_settings(number, LogSettings(retention_ms=5))
    store.run_due_tasks(NOW_MS)
    assert store.catalog.change_count == changes + 1
    assert store.catalog.partitions[numbers[7]].settings.retention_ms == 5
    store.close()


def test_the_high_watermark_of_a_replicated_partition_waits(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    store.set_replicated(number, True)
    append_now(store, number, batch_of(4))
    status = store.status
    assert (status.log_end_offset(number), status.high_watermark(number)) == (4, 0)
    store.set_high_watermark(number, 3)
    store.set_high_watermark(number, 2)
    assert status.high_watermark(number) == 3
    store.set_high_watermark(number, 99)
    assert status.high_watermark(number) == 4
    append_now(store, number, batch_of(1))
    assert status.high_watermark(number) == 4
    store.set_replicated(number, False)
    assert status.high_watermark(number) == 5
    store.close()


def test_uncommitted_records_are_invisible_after_a_kill(tmp_path: Path) -> None:
    """Routers read while the next worker waits for its first image. Found by the simulation: a
    consumer saw records that were lost afterwards."""
    store = open_store(tmp_path)
    number = create(store)
    store.set_replicated(number, True)
    append_now(store, number, batch_of(4))
    store.set_high_watermark(number, 3)
    os.close(store._lock)
    store._lock = os.open(os.devnull, os.O_RDONLY)
    store = open_store(tmp_path)
    assert store.status.high_watermark(number) == 3
    assert store.partitions()[number].high_watermark == 3
    store.set_replicated(number, False)
    assert store.status.high_watermark(number) == 4
    store.close()


@pytest.mark.parametrize("is_replicated", [False, True])
def test_the_last_stable_offset_is_the_same_after_a_kill(
    tmp_path: Path, is_replicated: bool
) -> None:
    """Routers report the last stable offset: it must not move back for transactions that have
    ended long ago."""
    store = open_store(tmp_path)
    number = create(store)
    store.set_replicated(number, is_replicated)
    for round_ in range(3):
        batch = batch_of(
            2,
            producer_id=5,
            producer_epoch=0,
            base_sequence=2 * round_,
            attributes=TRANSACTIONAL,
        )
        append_now(store, number, batch)
        marker = build_end_transaction_batch(
            EndTransactionMarker(ControlType.COMMIT, 0),
            timestamp_ms=NOW_MS,
            producer_id=5,
            producer_epoch=0,
        )
        turn = store.begin(NOW_MS)
        append(turn, number, marker, origin=AppendOrigin.COORDINATOR)
        turn.commit()
    # Of three transactions of three offsets each the last one's marker is not committed.
    committed = 8 if is_replicated else 9
    store.set_high_watermark(number, committed)
    stable = store.status.last_stable_offset(number)
    assert stable == (6 if is_replicated else 9)
    os.close(store._lock)
    store._lock = os.open(os.devnull, os.O_RDONLY)
    store = open_store(tmp_path)
    assert store.status.high_watermark(number) == committed
    assert store.status.last_stable_offset(number) == stable
    store.set_replicated(number, is_replicated)
    store.set_high_watermark(number, 9)
    assert store.status.last_stable_offset(number) == 9
    store.close()


def test_leader_epochs_begin_at_the_log_end_and_survive_restart_and_roll(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(3))
    store.set_leader_epoch(number, 4)
    turn = store.begin(NOW_MS)
    append(turn, number, batch_of(2), leader_epoch=4)
    turn.commit()
    store.set_leader_epoch(number, 7)
    expected = {0: (0, 3), 2: (0, 3), 4: (4, 5), 5: (4, 5), 7: (7, 5), 9: (-1, -1)}
    for epoch, answer in expected.items():
        assert store.end_offset_for_epoch(number, epoch) == answer
    store.roll(NOW_MS)
    store.close()
    store = open_store(tmp_path)
    # A reign without a record is told by the metadata once more.
    assert store.end_offset_for_epoch(number, 7) == (-1, -1)
    store.set_leader_epoch(number, 7)
    for epoch, answer in expected.items():
        assert store.end_offset_for_epoch(number, epoch) == answer
    store.close()


def test_a_commit_that_finds_the_map_full_undoes_the_whole_turn(tmp_path: Path) -> None:
    options = OPTIONS.__class__(segment_map_bytes=1 << 20, status_slots=64)
    store = open_store(tmp_path, options)
    number, other = create(store, 0), create(store, 1)
    append_now(store, number, batch_of(3, producer_id=5, producer_epoch=0, base_sequence=0))
    turn = store.begin(NOW_MS)
    small = append(turn, other, batch_of(2))
    following = append(turn, number, batch_of(3, producer_id=5, producer_epoch=0, base_sequence=3))
    assert following.base_offset == 3
    big = append(turn, number, batch_of(1, size=1_000_000))
    late = append(turn, other, batch_of())
    assert big.error_code is late.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(StorageError):
        turn.commit()
    assert small.error_code is following.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert following.base_offset == -1
    log = store.partitions()[number]
    assert (log.log_end_offset, log.producers[5].last_sequence) == (3, 2)
    assert 5 in log.producers
    assert store.partitions()[other].log_end_offset == 0
    assert store.status.log_end_offset(number) == 3
    reader = StoreReader(tmp_path)
    assert offsets_of(read_all(reader, number)) == [0]
    # There is room in the next segment for what was refused and fits.
    retried = batch_of(3, producer_id=5, producer_epoch=0, base_sequence=3)
    assert append_now(store, number, retried) == [3]
    assert offsets_of(read_all(reader, number)) == [0, 3]
    store.close()
    store = open_store(tmp_path, options)
    assert store.partitions()[number].producers[5].last_sequence == 5
    store.close()


def test_a_roll_that_fails_leaves_the_old_segment_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(2))
    active = store.catalog.active_segment_id

    def refuse(*_: object) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("odradek.storage.log_loader.sync_directory", refuse)
        with pytest.raises(StorageError):
            store.roll(NOW_MS)
    assert store.catalog.active_segment_id == active
    assert len(list(tmp_path.glob("segment-*.mdb"))) == 1
    assert append_now(store, number, batch_of(2)) == [2]
    store.roll(NOW_MS)
    assert offsets_of(read_all(StoreReader(tmp_path), number)) == [0, 2]
    store.close()


def test_expired_producers_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(producer_id=1, producer_epoch=0, base_sequence=0))
    store.roll(NOW_MS)
    store.expire_producers(NOW_MS + 86_399_999)
    assert [p.producer_id for p in store.producers(number)] == [1]
    store.expire_producers(NOW_MS + 86_400_000)
    assert store.producers(number) == []
    # An unknown producer may start anywhere (KIP-360).
    append_now(store, number, batch_of(producer_id=1, producer_epoch=0, base_sequence=77))
    store.expire_producers(NOW_MS + 2 * 86_400_000)
    store.roll(NOW_MS)
    store.close()
    assert open_store(tmp_path).producers(number) == []


def test_a_shorter_expiration_of_producers_is_applied_at_the_next_maintenance(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(producer_id=1, producer_epoch=0, base_sequence=0))
    store.roll(NOW_MS)
    store.maintenance(NOW_MS + 1_000)
    assert [p.producer_id for p in store.producers(number)] == [1]
    options = replace(
        store.options,
        producer_id_expiration_ms=500,
        retention_check_interval_ms=300_000,
    )
    store.set_options(options)
    store.maintenance(NOW_MS + 1_000)
    assert store.producers(number) == []
    store.close()


def test_a_turn_must_end_before_the_next_begins(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    create(store)
    turn = store.begin(NOW_MS)
    with pytest.raises(AssertionError):
        store.begin(NOW_MS)
    turn.abort()
    store.begin(NOW_MS).commit()
    store.close()


def test_maintenance_runs_in_slices_and_reports_when_nothing_is_due(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store, retention_ms=1_000)
    append_now(store, number, batch_of())
    store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    slices = store.maintenance(NOW_MS + 400_000)
    assert slices is not None
    for _ in slices:
        pass
    assert store.status.log_start_offset(number) == 1
    store.close()
