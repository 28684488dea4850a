"""Truncation: the rest of the log is as it was before."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, read_header
from odradek.protocol.sliced_work import finish
from odradek.storage.environment import StorageError
from odradek.storage.partition_log import NewPartition, PartitionLog
from odradek.storage.reader import StoreReader
from odradek.storage.rewrite import rewrite_segments
from odradek.storage.settings import LogSettings
from odradek.storage.status import ReplicaRole
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
    offsets_of,
    open_store,
    read_all,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "store")
    yield store
    store.close()


def replicate(store: Store, number: int, *batches: bytes) -> None:
    """Append a leader's batches unchanged."""
    turn = store.begin(NOW_MS)
    result = append(turn, number, batches, origin=AppendOrigin.REPLICATION, leader_epoch=-1)
    turn.commit()
    assert result.error_code is ErrorCode.NONE, result


def reader_of(store: Store) -> StoreReader:
    return StoreReader(store.directory)


def batches_in(store: Store, number: int) -> list[bytes]:
    reader = reader_of(store)
    try:
        return read_all(reader, number)
    finally:
        reader.close()


def known(log: PartitionLog) -> tuple[object, ...]:
    """The state that must not depend on truncated batches."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.epochs.entries,
        {
            producer_id: (entry.producer_epoch, entry.batches[-1:], entry.transaction_first_offset)
            for producer_id, entry in log.producers.items()
        },
        log.undecided.ongoing,
    )


def test_truncation_removes_records_of_one_partition_only(store: Store) -> None:
    cut, other = create(store, 0), create(store, 1)
    batches = [batch_of(2, fill=fill) for fill in range(5)]
    append_now(store, cut, *batches)
    append_now(store, other, *batches)
    store.truncate({cut: 4}, NOW_MS)
    log = store.partitions()[cut]
    assert (log.log_end_offset, log.high_watermark) == (4, 4)
    assert batches_in(store, cut) == [as_stored(batches[n], 2 * n) for n in range(2)]
    assert len(batches_in(store, other)) == 5
    status = store.status
    assert (status.log_end_offset(cut), status.high_watermark(cut)) == (4, 4)


def test_truncation_within_a_batch_removes_the_batch(store: Store) -> None:
    number = create(store)
    append_now(store, number, batch_of(3), batch_of(3))
    store.truncate({number: 4}, NOW_MS)
    assert store.partitions()[number].log_end_offset == 3


def test_appends_after_a_truncation_replace_the_removed_records(store: Store) -> None:
    number = create(store)
    append_now(store, number, *(batch_of(fill=fill, size=3_000) for fill in range(6)))
    store.truncate({number: 2}, NOW_MS)
    new = [batch_of(fill=fill, size=3_000) for fill in range(50, 53)]
    assert append_now(store, number, *new) == [2, 3, 4]
    held = batches_in(store, number)
    assert offsets_of(held) == [0, 1, 2, 3, 4]
    assert held[2:] == [as_stored(batch, 2 + n) for n, batch in enumerate(new)]
    # Cut again, now across a sealed segment and the active one, below the first cut.
    store.truncate({number: 1}, NOW_MS)
    assert offsets_of(batches_in(store, number)) == [0]


def test_truncation_at_or_after_the_end_does_nothing(store: Store) -> None:
    number = create(store)
    append_now(store, number, batch_of(3))
    changes = store.catalog.change_count
    store.truncate({number: 3}, NOW_MS)
    store.truncate({number: 9}, NOW_MS)
    assert store.catalog.change_count == changes
    assert store.partitions()[number].log_end_offset == 3


def test_a_reader_with_cached_segments_sees_the_truncated_log(store: Store) -> None:
    number = create(store)
    append_now(store, number, *(batch_of(fill=fill) for fill in range(4)))
    reader = reader_of(store)
    assert len(read_all(reader, number)) == 4
    store.truncate({number: 2}, NOW_MS)
    append_now(store, number, batch_of(fill=99, timestamp=NOW_MS + 5))
    assert [read_header(batch).base_offset for batch in read_all(reader, number)] == [0, 1, 2]
    assert reader.read(number, 2, max_bytes=10, end_offset=3).buffers == [
        as_stored(batch_of(fill=99, timestamp=NOW_MS + 5), 2)
    ]
    reader.close()


def test_a_lookup_by_timestamp_does_not_find_truncated_records(store: Store) -> None:
    number = create(store)
    append_now(store, number, batch_of(timestamp=NOW_MS - 9), batch_of(timestamp=NOW_MS + 50))
    store.truncate({number: 1}, NOW_MS)
    reader = reader_of(store)
    assert finish(reader.offset_for_timestamp(number, NOW_MS)) is None
    found = finish(reader.max_timestamp_offset(number, end_offset=1))
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW_MS - 9)
    append_now(store, number, batch_of(timestamp=NOW_MS + 1))
    later = finish(reader.offset_for_timestamp(number, NOW_MS))
    assert later is not None
    assert (later.offset, later.timestamp) == (1, NOW_MS + 1)
    reader.close()


def test_leader_epochs_end_with_the_log(store: Store) -> None:
    number = create(store)
    for epoch in (1, 2, 4):
        store.set_leader_epoch(number, epoch)
        turn = store.begin(NOW_MS)
        append(turn, number, batch_of(2), leader_epoch=epoch)
        turn.commit()
    store.truncate({number: 4}, NOW_MS)
    assert store.partitions()[number].epochs.entries == ((1, 0), (2, 2))
    store.set_leader_epoch(number, 5, ReplicaRole.FOLLOWER)
    replicate(store, number, as_stored(batch_of(), 4, leader_epoch=3))
    assert store.partitions()[number].epochs.entries == ((1, 0), (2, 2), (3, 4))
    assert store.end_offset_for_epoch(number, 2) == (2, 4)


def idempotent(sequence: int, *, epoch: int = 0, producer_id: int = 7, count: int = 1) -> bytes:
    return batch_of(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_producer_continues_from_its_batches_before_the_truncation(store: Store) -> None:
    number = create(store)
    append_now(store, number, *(idempotent(n) for n in range(4)))
    store.truncate({number: 2}, NOW_MS)
    # The retry of what was cut is no duplicate, of what was kept it is one.
    assert append_now(store, number, idempotent(1)) == [1]
    assert append_now(store, number, idempotent(2)) == [2]


def test_a_producer_without_remembered_batches_is_rebuilt_from_the_log(
    store: Store,
) -> None:
    number = create(store)
    append_now(store, number, *(idempotent(n) for n in range(12)))
    append_now(store, number, idempotent(0, epoch=1))
    store.truncate({number: 3}, NOW_MS)
    entry = store.partitions()[number].producers[7]
    assert (entry.producer_epoch, entry.last_sequence) == (0, 2)
    store.truncate({number: 0}, NOW_MS)
    assert store.partitions()[number].producers == {}


def test_a_transaction_whose_marker_is_truncated_is_open_again(store: Store) -> None:
    number = create(store)
    turn = store.begin(NOW_MS)
    append(
        turn,
        number,
        batch_of(producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
    )
    marker = build_end_transaction_batch(
        EndTransactionMarker(ControlType.ABORT, 1),
        timestamp_ms=NOW_MS,
        producer_id=7,
        producer_epoch=0,
    )
    append(turn, number, marker, origin=AppendOrigin.COORDINATOR)
    turn.commit()
    log = store.partitions()[number]
    assert log.last_stable_offset == 2
    store.truncate({number: 1}, NOW_MS)
    assert log.undecided.ongoing == {7: 0}
    assert store.status.last_stable_offset(number) == 0
    reader = reader_of(store)
    assert reader.aborted_transactions(number, 0, 10) == []
    reader.close()


def test_a_fully_truncated_log_has_nothing_below_its_start(store: Store) -> None:
    number = create(store)
    append_now(store, number, *(idempotent(n) for n in range(5)))
    store.set_replicated(number, True)
    store.truncate_fully_and_start_at(number, 1_000, NOW_MS)
    log = store.partitions()[number]
    assert (log.log_start_offset, log.log_end_offset) == (1_000, 1_000)
    assert (log.producers, log.epochs.entries) == ({}, ())
    replicate(store, number, as_stored(batch_of(2, fill=9), 1_003, leader_epoch=6))
    assert offsets_of(batches_in(store, number)) == [1_003]
    assert log.epochs.entries == ((6, 1_003),)


@pytest.mark.parametrize("seed", range(12))
def test_a_truncated_log_equals_one_without_the_removed_records(tmp_path: Path, seed: int) -> None:
    """Two stores: one gets everything and is truncated, the other gets only the rest. Then both
    are killed, opened and appended to."""
    dice = random.Random(seed)
    cut, twin = (open_store(tmp_path / name) for name in ("cut", "twin"))
    numbers = [(create(cut, n), create(twin, n)) for n in range(2)]
    for number, twin_number in numbers:
        assert number == twin_number
        sequences: dict[int, int] = {}
        batches: list[bytes] = []
        offset, epoch = 0, 0
        for _ in range(dice.randint(1, 25)):
            epoch += dice.random() < 0.2
            offset += dice.randint(1, 5) if dice.random() < 0.1 else 0
            count = dice.randint(1, 3)
            producer_id = dice.choice([-1, 1, 2])
            sequence = sequences.get(producer_id, 0)
            sequences[producer_id] = sequence + count
            batch = batch_of(
                count,
                size=dice.choice([10, 3_000]),
                fill=dice.randrange(256),
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=sequence if producer_id >= 0 else -1,
            )
            batches.append(as_stored(batch, offset, epoch))
            offset += count
        keep = dice.randint(1, len(batches))
        for at, batch in enumerate(batches):
            replicate(cut, number, batch)
            if at < keep:
                replicate(twin, number, batch)
            if dice.random() < 0.1:
                cut.roll(NOW_MS)
        if keep < len(batches):
            # Where the last batch that is left ends: a hole behind it is not known of.
            end = twin.partitions()[number].log_end_offset
            cut.truncate({number: end}, NOW_MS)
        assert known(cut.partitions()[number]) == known(twin.partitions()[number]), seed
    killed = tmp_path / "killed"
    shutil.copytree(cut.directory, killed)
    cut.close()
    again = open_store(killed)
    for number, _ in numbers:
        assert known(again.partitions()[number]) == known(twin.partitions()[number]), seed
        assert batches_in(again, number) == batches_in(twin, number), seed
    again.roll(NOW_MS)
    for number, _ in numbers:
        append_now(again, number, batch_of(2))
        append_now(twin, number, batch_of(2))
        assert batches_in(again, number) == batches_in(twin, number), seed
    again.close()
    twin.close()


@pytest.mark.parametrize("has_power_loss", [False, True])
def test_a_truncation_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_power_loss: bool
) -> None:
    store = open_store(tmp_path / "store")
    number = create(store)
    append_now(store, number, *(batch_of(fill=fill) for fill in range(6)))
    store.truncate({number: 3}, NOW_MS)
    append_now(store, number, batch_of(fill=77))
    copied = tmp_path / "copied"
    shutil.copytree(store.directory, copied)
    store.close()
    if has_power_loss:
        monkeypatch.setattr("odradek.storage.recovery.boot_id", lambda: "another")
        active = max(copied.glob("segment-*.mdb"))
        # The last turn never reached the disk.
        active.write_bytes(b"\0" * active.stat().st_size)
        for journal in copied.glob("journal-*"):
            journal.write_bytes(b"")
    again = open_store(copied)
    held = batches_in(again, number)
    assert held[:3] == [as_stored(batch_of(fill=fill), fill) for fill in range(3)]
    assert held[3:] == ([] if has_power_loss else [as_stored(batch_of(fill=77), 3)])
    again.close()


def test_a_truncation_that_fails_on_a_full_disk_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = create(store)
    append_now(store, number, *(batch_of(fill=fill) for fill in range(4)))
    before = known(store.partitions()[number])

    def refuse(*_: object, **__: object) -> None:
        raise StorageError("full")

    monkeypatch.setattr("odradek.storage.truncation.current_row", refuse)
    with pytest.raises(StorageError):
        store.truncate({number: 1}, NOW_MS)
    assert known(store.partitions()[number]) == before
    assert len(batches_in(store, number)) == 4


def test_a_rewrite_leaves_out_truncated_records(store: Store) -> None:
    number, dead = create(store, 0), create(store, 1)
    append_now(store, number, *(batch_of(fill=fill, size=200) for fill in range(6)))
    append_now(store, dead, batch_of(size=50_000))
    store.truncate({number: 3}, NOW_MS)
    append_now(store, number, batch_of(fill=50, size=200))
    store.delete_partitions([dead])
    store.roll(NOW_MS)
    sealed = [row.segment_id for row in store.catalog.segments.values() if row.sealed_ms >= 0]
    assert len(sealed) == 2
    for _ in rewrite_segments(store.catalog, store.partitions(), sealed):
        pass
    assert len(store.catalog.extents[number]) == 1
    held = batches_in(store, number)
    assert offsets_of(held) == [0, 1, 2, 3]
    assert held[3] == as_stored(batch_of(fill=50, size=200), 3)


def test_a_followers_new_log_has_no_epoch_before_its_first_records(store: Store) -> None:
    new = NewPartition(TOPIC_ID, "topic", 0, 7, LogSettings(), ReplicaRole.FOLLOWER)
    (number,) = store.create_partitions([new])
    log = store.partitions()[number]
    assert (log.epochs.entries, store.status.leader_epoch(number)) == ((), 7)
    replicate(store, number, as_stored(batch_of(), 0, leader_epoch=3))
    assert log.epochs.entries == ((3, 0),)
    assert store.status.role(number) is ReplicaRole.FOLLOWER
