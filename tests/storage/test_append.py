"""Turns: which batches are accepted, the results, and failed turns that leave no trace."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import (
    TRANSACTIONAL,
    compression_of,
    is_crc_valid,
    iter_records,
    read_header,
)
from odradek.storage.environment import StorageError
from odradek.storage.log_append import LogAppend
from odradek.storage.reader import StoreReader
from odradek.storage.settings import Durability, StoreOptions, TimestampType
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import (
    NOW_MS,
    append,
    append_now,
    as_stored,
    batch_of,
    create,
    largest_file,
    offsets_of,
    open_store,
    read_all,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def answer(
    store: Store,
    number: int,
    batch: bytes,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    request_version: int = 13,
) -> ErrorCode:
    turn = store.begin(NOW_MS)
    result = append(turn, number, batch, origin=origin, request_version=request_version)
    turn.commit()
    return result.error_code


def stored(store: Store, number: int) -> list[bytes]:
    reader = StoreReader(store.directory)
    batches = read_all(reader, number)
    reader.close()
    return batches


def test_only_base_offset_and_leader_epoch_of_a_batch_are_rewritten(
    store: Store,
) -> None:
    number = create(store)
    first, second = batch_of(3, codec=Codec.ZSTD), batch_of(2, size=9_000)
    turn = store.begin(NOW_MS)
    results = [append(turn, number, batch, leader_epoch=9) for batch in (first, second)]
    commit = turn.commit()
    assert commit.advanced == {number}
    assert [(r.base_offset, r.end_offset) for r in results] == [(0, 3), (3, 5)]
    assert [(r.log_append_time_ms, r.log_start_offset) for r in results] == [(-1, 0), (-1, 0)]
    assert stored(store, number) == [as_stored(first, 0, 9), as_stored(second, 3, 9)]


def test_nothing_is_visible_before_the_commit(store: Store) -> None:
    number = create(store)
    turn = store.begin(NOW_MS)
    append(turn, number, batch_of(3))
    assert store.status.log_end_offset(number) == 0
    turn.commit()
    assert store.status.log_end_offset(number) == 3
    assert store.status.last_stable_offset(number) == 3


PLAIN_SAMPLES = (
    batch_of(3),
    batch_of(1, key=None),
    batch_of(2, size=9_000),
    batch_of(2, producer_id=7, producer_epoch=0, base_sequence=0),
    batch_of(1, producer_id=8, producer_epoch=1, base_sequence=0, attributes=TRANSACTIONAL),
)


def test_a_plain_batch_is_appended_like_any_other(store: Store) -> None:
    """The short way and the long way: the same answers, records and states."""
    short, long = create(store, 0), create(store, 1)
    batches = [*PLAIN_SAMPLES, *PLAIN_SAMPLES]  # idempotent ones are retries then
    turn = store.begin(NOW_MS)
    for batch in batches:
        result = turn.append_plain(short, append_in_arena(batch))
        assert result == append(turn, long, batch, leader_epoch=3), batch.hex()
    turn.commit()
    assert len(stored(store, short)) == 2 * 3 + 2
    assert stored(store, short) == stored(store, long)
    logs = store.partitions()
    assert logs[short].producers == logs[long].producers
    assert logs[short].undecided.ongoing == logs[long].undecided.ongoing
    for name in ("client_bytes", "client_records", "active_bytes", "active_batches"):
        assert getattr(logs[short], name) == getattr(logs[long], name)


def test_sequences_are_checked_on_the_short_way(store: Store) -> None:
    short, long = create(store, 0), create(store, 1)
    turn = store.begin(NOW_MS)
    for epoch, sequence in ((1, 0), (1, 2), (0, 1), (1, 1), (2, 5), (2, 0)):
        batch = batch_of(1, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        result = turn.append_plain(short, append_in_arena(batch))
        assert result == append(turn, long, batch, leader_epoch=3), (epoch, sequence)
    turn.commit()
    assert stored(store, short) == stored(store, long)


@pytest.mark.parametrize(
    ("settings", "batch"),
    [
        ({}, batch_of(1, codec=Codec.LZ4)),
        ({}, batch_of(2)[:-1]),
        ({}, b"".join((batch_of(1), batch_of(1)))),
        ({}, b"\1" + batch_of(1)[1:]),
        ({}, batch_of(1)[:-1] + b"\1"),
        ({}, batch_of(1)[:40]),
        ({"max_message_bytes": 100}, batch_of(1, size=100)),
        ({"cleanup_compact": True}, batch_of(1, key=None)),
        ({"compression_type": "zstd"}, batch_of(1)),
        ({"message_timestamp_type": TimestampType.LOG_APPEND_TIME}, batch_of(1)),
        ({"message_timestamp_before_max_ms": 9}, batch_of(1, timestamp=NOW_MS - 10)),
    ],
)
def test_other_batches_are_left_to_the_long_way(
    store: Store, settings: dict[str, Any], batch: bytes
) -> None:
    number = create(store, **settings)
    turn = store.begin(NOW_MS)
    assert turn.append_plain(number, append_in_arena(batch)) is None
    assert turn.append_plain(number + 1, append_in_arena(batch_of(1))) is None
    assert turn.commit().advanced == set()
    assert stored(store, number) == []
    assert store.partitions()[number].log_end_offset == 0


def append_in_arena(batch: bytes) -> LogAppend:
    arena = memoryview(bytearray(b"\xee" * 32 + batch + b"\xee" * 32))
    return LogAppend(arena, 32, len(batch), leader_epoch=3)


def test_the_headroom_before_a_large_batch_is_restored(store: Store) -> None:
    number = create(store)
    batch = batch_of(1, size=20_000)
    turn = store.begin(NOW_MS)
    append(turn, number, batch, has_headroom=True)  # compares what stands before
    turn.commit()
    assert stored(store, number) == [as_stored(batch, 0)]


def test_a_batch_at_the_start_of_its_arena_needs_no_headroom(store: Store) -> None:
    number = create(store)
    batch = batch_of(1, size=20_000)
    turn = store.begin(NOW_MS)
    arena = memoryview(bytearray(batch))
    turn.append(number, LogAppend(arena, 0, len(batch), leader_epoch=0, has_headroom=True))
    turn.commit()
    assert stored(store, number) == [as_stored(batch, 0)]


def test_a_read_only_arena_is_copied(store: Store) -> None:
    number = create(store)
    batch = batch_of(2)
    turn = store.begin(NOW_MS)
    arena = memoryview(b"123" + batch)
    turn.append(number, LogAppend(arena, 3, len(batch), leader_epoch=4))
    turn.commit()
    assert stored(store, number) == [as_stored(batch, 0, 4)]


def test_clients_send_exactly_one_batch_since_version_3(store: Store) -> None:
    number = create(store)
    pair = batch_of(2) + batch_of(1)
    assert answer(store, number, pair) is ErrorCode.INVALID_RECORD
    assert answer(store, number, b"") is ErrorCode.INVALID_RECORD
    assert store.status.log_end_offset(number) == 0
    turn = store.begin(NOW_MS)
    result = append(turn, number, pair, request_version=2)
    turn.commit()
    assert (result.base_offset, result.end_offset) == (0, 3)
    assert offsets_of(stored(store, number)) == [0, 2]


def test_several_batches_of_an_old_client_are_appended_together_or_not_at_all(store: Store) -> None:
    number = create(store)
    broken = bytearray(batch_of(1))
    broken[-1] ^= 1
    pair = batch_of(2) + bytes(broken)
    assert answer(store, number, pair, request_version=2) is ErrorCode.CORRUPT_MESSAGE
    assert store.partitions()[number].log_end_offset == 0


@pytest.mark.parametrize("cut", [1, 11, 60, 61, 75])
def test_a_cut_batch_is_corrupt(store: Store, cut: int) -> None:
    number = create(store)
    batch = batch_of(3)
    assert answer(store, number, batch[:cut]) is ErrorCode.CORRUPT_MESSAGE
    assert answer(store, number, batch + batch[:cut]) in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
    )


def test_log_append_time_is_set_in_the_batch_and_returned(store: Store) -> None:
    number = create(store, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    turn = store.begin(NOW_MS + 5)
    result = append(turn, number, batch_of(2, timestamp=3))
    turn.commit()
    assert result.log_append_time_ms == NOW_MS + 5
    (batch,) = stored(store, number)
    header = read_header(batch)
    assert header.is_log_append_time
    assert is_crc_valid(memoryview(batch), 0, len(batch))
    assert [record.timestamp for record in iter_records(batch)] == [NOW_MS + 5] * 2


def test_the_retry_of_a_batch_returns_its_first_append_time(store: Store) -> None:
    number = create(store, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    batch = batch_of(producer_id=1, producer_epoch=0, base_sequence=0)
    append_now(store, number, batch, now_ms=NOW_MS)
    turn = store.begin(NOW_MS + 100)
    assert append(turn, number, batch).log_append_time_ms == NOW_MS
    turn.commit()


@pytest.mark.parametrize(
    ("wanted", "codec"),
    [("gzip", Codec.GZIP), ("zstd", Codec.ZSTD), ("lz4", Codec.LZ4), ("uncompressed", Codec.NONE)],
)
def test_batches_are_recompressed_with_the_topics_compression_type(
    store: Store, wanted: str, codec: Codec
) -> None:
    number = create(store, compression_type=wanted)
    sent = batch_of(20, size=100, codec=Codec.SNAPPY, producer_id=1, producer_epoch=0,
                    base_sequence=0)  # fmt: skip
    append_now(store, number, sent)
    append_now(store, number, batch_of(2, size=100, codec=codec))
    batch, untouched = stored(store, number)
    assert compression_of(read_header(batch).attributes) is codec
    assert is_crc_valid(memoryview(batch), 0, len(batch))
    assert list(iter_records(batch)) == list(iter_records(as_stored(sent, 0)))
    assert untouched == as_stored(batch_of(2, size=100, codec=codec), 20)
    assert append_now(store, number, sent) == [0], "it is recognised when it comes again"


def test_a_batch_that_is_too_large_after_recompression_is_rejected(store: Store) -> None:
    number = create(store, compression_type="uncompressed", max_message_bytes=1_000)
    batch = batch_of(1, size=5_000, codec=Codec.GZIP)
    assert len(batch) < 1_000
    assert answer(store, number, batch) is ErrorCode.MESSAGE_TOO_LARGE


# -- idempotence ----------------------------------------------------------------------------------


def sequenced(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 1) -> bytes:
    return batch_of(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_a_retry_of_one_of_the_last_five_batches_returns_its_first_offset(store: Store) -> None:
    number = create(store)
    batches = [sequenced(2 * i, 2) for i in range(7)]
    append_now(store, number, *batches)
    assert append_now(store, number, *batches[2:]) == [4, 6, 8, 10, 12]
    assert answer(store, number, batches[1]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert store.status.log_end_offset(number) == 14
    assert len(stored(store, number)) == 7


def test_a_retry_inside_the_same_turn_is_recognised(store: Store) -> None:
    number = create(store)
    turn = store.begin(NOW_MS)
    results = [append(turn, number, sequenced(s)) for s in (0, 1, 0, 1, 2)]
    turn.commit()
    assert [result.base_offset for result in results] == [0, 1, 0, 1, 2]


def test_sequences_epochs_and_wrap_around(store: Store) -> None:
    number = create(store)
    # An unknown producer may start anywhere (KIP-360), also just before the wrap.
    assert append_now(store, number, sequenced(2**31 - 2, 3)) == [0]
    assert append_now(store, number, sequenced(1)) == [3]
    assert append_now(store, number, sequenced(2**31 - 2, 3)) == [0]
    assert answer(store, number, sequenced(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert answer(store, number, sequenced(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append_now(store, number, sequenced(0, epoch=1)) == [4]
    assert answer(store, number, sequenced(2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    # What was acknowledged in the old epoch is no retry any more.
    assert answer(store, number, sequenced(1)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_batch_of_another_length_is_not_a_retry(store: Store) -> None:
    number = create(store)
    append_now(store, number, sequenced(0, 3))
    assert answer(store, number, sequenced(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_failed_turn_restores_the_state_of_producers(store: Store) -> None:
    number = create(store)
    append_now(store, number, sequenced(0))
    before = store.producers(number)
    turn = store.begin(NOW_MS)
    append(turn, number, sequenced(1))
    append(turn, number, sequenced(0, epoch=4))
    append(turn, number, sequenced(9, producer=2))
    retried = append(turn, number, sequenced(9, producer=2))
    turn.abort("for a test")
    assert store.producers(number) == before
    assert retried.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert append_now(store, number, sequenced(1)) == [1]


# -- transactions ---------------------------------------------------------------------------------


def transactional(sequence: int, *, producer: int = 1, epoch: int = 0, count: int = 1) -> bytes:
    return batch_of(
        count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )


def test_with_an_epoch_for_each_transaction_the_first_sequence_is_0(
    store: Store,
) -> None:
    """KIP-890: the first batch, refused for a moment, must not find the second one appended."""
    number = create(store)
    refused = answer(store, number, transactional(1), request_version=12)
    assert refused is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append_now(store, number, transactional(0), transactional(1)) == [0, 1]
    # Other producers may have been forgotten meanwhile (KIP-360).
    old = transactional(5, producer=2)
    assert answer(store, number, old, request_version=11) is ErrorCode.NONE
    assert answer(store, number, sequenced(5, producer=3)) is ErrorCode.NONE


def marker(
    type_: ControlType, *, producer: int = 1, epoch: int = 0, coordinator_epoch: int = 0
) -> bytes:
    return build_end_transaction_batch(
        EndTransactionMarker(type_, coordinator_epoch),
        timestamp_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=epoch,
    )


def test_the_last_stable_offset_waits_for_the_marker_of_a_transaction(store: Store) -> None:
    number = create(store)
    append_now(store, number, batch_of(2), transactional(0), batch_of(1))
    assert store.status.last_stable_offset(number) == 2
    append_now(store, number, transactional(0, producer=2))
    assert answer(store, number, marker(ControlType.COMMIT), origin=AppendOrigin.COORDINATOR) == 0
    assert store.status.last_stable_offset(number) == 4
    abort = marker(ControlType.ABORT, producer=2)
    assert answer(store, number, abort, origin=AppendOrigin.COORDINATOR) == 0
    assert store.status.last_stable_offset(number) == store.status.high_watermark(number) == 7
    reader = StoreReader(store.directory)
    (aborted,) = reader.aborted_transactions(number, 0, 7)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (2, 4, 6)
    reader.close()


def test_a_marker_above_the_high_watermark_does_not_move_the_last_stable_offset(
    store: Store,
) -> None:
    number = create(store)
    append_now(store, number, batch_of(2))
    store.set_replicated(number, True)
    append_now(store, number, transactional(0))
    answer(store, number, marker(ControlType.ABORT), origin=AppendOrigin.COORDINATOR)
    store.set_high_watermark(number, 3)
    assert store.status.last_stable_offset(number) == 2
    store.set_high_watermark(number, 4)
    assert store.status.last_stable_offset(number) == 4


def test_a_producer_in_a_transaction_cannot_write_outside_it(store: Store) -> None:
    number = create(store)
    append_now(store, number, transactional(0))
    assert answer(store, number, sequenced(1)) is ErrorCode.INVALID_TXN_STATE


def test_clients_cannot_write_markers(store: Store) -> None:
    number = create(store)
    assert answer(store, number, marker(ControlType.COMMIT)) is ErrorCode.INVALID_RECORD


def test_old_coordinators_and_old_epochs_are_fenced(store: Store) -> None:
    number = create(store)
    append_now(store, number, transactional(0, epoch=3))
    coordinator = AppendOrigin.COORDINATOR
    newer = marker(ControlType.COMMIT, epoch=3, coordinator_epoch=5)
    older = marker(ControlType.COMMIT, epoch=3, coordinator_epoch=4)
    stale = marker(ControlType.COMMIT, epoch=2, coordinator_epoch=5)
    assert answer(store, number, stale, origin=coordinator) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert answer(store, number, newer, origin=coordinator) is ErrorCode.NONE
    assert answer(store, number, older, origin=coordinator) is (
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    (producer,) = store.producers(number)
    assert (producer.coordinator_epoch, producer.transaction_start_offset) == (5, -1)


def test_a_failed_turn_begins_and_ends_no_transaction(store: Store) -> None:
    number = create(store)
    append_now(store, number, transactional(0))
    turn = store.begin(NOW_MS)
    append(turn, number, transactional(0, producer=2))
    append(turn, number, marker(ControlType.ABORT), origin=AppendOrigin.COORDINATOR)
    turn.abort()
    append_now(store, number, batch_of(1))
    assert store.status.last_stable_offset(number) == 0
    assert answer(store, number, marker(ControlType.COMMIT), origin=AppendOrigin.COORDINATOR) == 0
    assert store.status.last_stable_offset(number) == 3


def test_a_coordinators_batches_in_a_transaction_have_no_sequence(store: Store) -> None:
    number = create(store)
    batch = batch_of(2, producer_id=8, producer_epoch=1, attributes=TRANSACTIONAL)
    for _ in range(3):
        assert answer(store, number, batch, origin=AppendOrigin.COORDINATOR) is ErrorCode.NONE
    (producer,) = store.producers(number)
    assert (producer.last_sequence, producer.transaction_start_offset) == (-1, 0)


# -- replication ----------------------------------------------------------------------------------


def test_replicated_batches_keep_their_offsets_epochs_and_gaps(store: Store) -> None:
    number = create(store)
    batches = [as_stored(batch_of(2), 5, 3), as_stored(batch_of(1), 9, 4)]
    turn = store.begin(NOW_MS)
    result = append(turn, number, batches, origin=AppendOrigin.REPLICATION, leader_epoch=99)
    turn.commit()
    assert (result.base_offset, result.end_offset) == (5, 10)
    assert stored(store, number) == batches
    assert store.end_offset_for_epoch(number, 3) == (3, 9)
    again = append(store.begin(NOW_MS), number, batches, origin=AppendOrigin.REPLICATION)
    assert again.error_code is ErrorCode.OFFSET_OUT_OF_RANGE


# -- failure --------------------------------------------------------------------------------------


def test_a_full_disk_fails_only_the_turn(tmp_path: Path) -> None:
    store = open_store(tmp_path, StoreOptions(status_slots=64, segment_map_bytes=1 << 30))
    number = create(store)
    append_now(store, number, sequenced(0), batch_of(3, size=30_000))
    with largest_file(1 << 20):
        turn = store.begin(NOW_MS)
        small = append(turn, number, sequenced(1))
        append(turn, number, batch_of(1, size=900_000))
        append(turn, number, batch_of(1, size=900_000))
        with pytest.raises(StorageError):
            turn.commit()
        assert small.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert store.status.log_end_offset(number) == 4
        assert offsets_of(stored(store, number)) == [0, 1]
        assert append_now(store, number, sequenced(1)) == [4], "what fits is taken"
    assert append_now(store, number, batch_of(1, size=900_000), sequenced(2)) == [5, 6]
    assert offsets_of(stored(store, number)) == [0, 1, 4, 5, 6]
    store.close()
    store = open_store(tmp_path)
    assert offsets_of(stored(store, number)) == [0, 1, 4, 5, 6]
    store.close()


def test_a_sync_that_fails_fails_the_turn_and_stops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StoreOptions(status_slots=64, durability=Durability.COMMIT)
    store = open_store(tmp_path, options)
    number = create(store)
    append_now(store, number, batch_of(2))
    turn = store.begin(NOW_MS)
    result = append(turn, number, batch_of(1))

    def refuse(_: object) -> None:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("odradek.storage.segment.Segment.sync", refuse)
        with pytest.raises(StorageError):
            turn.commit()
    assert result.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert store.status.log_end_offset(number) == 2
    with pytest.raises(StorageError):
        store.begin(NOW_MS)
    store.close()


def test_an_empty_turn_has_no_transaction(store: Store) -> None:
    number = create(store)
    transactions = store._segment.lmdb.info()["last_txnid"]
    assert store.begin(NOW_MS).commit().advanced == set()
    assert answer(store, number, b"junk" * 30) is not ErrorCode.NONE
    assert store._segment.lmdb.info()["last_txnid"] == transactions
