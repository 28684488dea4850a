"""Sealing: afterwards the catalog alone has the state of the store."""

from pathlib import Path

from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.records import TRANSACTIONAL
from odradek.storage.catalog import SegmentState
from odradek.storage.log_loader import load_logs
from odradek.storage.reader import StoreReader
from odradek.storage.segment_roll import roll_deadline_ms
from odradek.storage.validation import AppendOrigin
from tests.support.stores import NOW_MS, TOPIC_ID, append_now, batch_of, create, open_store


def test_after_sealing_the_catalog_knows_ends_epochs_producers_and_extents(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number, idle = create(store, 0), create(store, 1)
    batch = batch_of(3, timestamp=NOW_MS + 5, producer_id=6, producer_epoch=2, base_sequence=0)
    append_now(store, number, batch, batch_of(2))
    sealed_id = store.catalog.active_segment_id
    assert sealed_id is not None
    idle_row = store.catalog.partitions[idle]
    store.roll(NOW_MS + 77)
    row = store.catalog.partitions[number]
    assert (row.log_end_offset, row.leader_epochs) == (5, ((0, 0),))
    assert store.catalog.partitions[idle] is idle_row, "what did not change is not written"
    segment = store.catalog.segments[sealed_id]
    size = len(batch) + len(batch_of(2))
    assert (segment.state, segment.sealed_ms) == (SegmentState.SEALED, NOW_MS + 77)
    assert (segment.byte_count, segment.max_timestamp) == (size, NOW_MS + 5)
    assert segment.file_bytes > size
    (extent,) = store.catalog.extents[number]
    assert extent[:5] == (sealed_id, 0, 5, size, 2)
    loaded = load_logs(store.catalog)[number]
    assert loaded.log_end_offset == 5
    assert loaded.producers == store.partitions()[number].producers
    store.close()


def test_a_sealed_segment_tells_whether_transactions_were_aborted_in_it(tmp_path: Path) -> None:
    """Of any partition, and by the marker: the records may be in a segment before."""
    store = open_store(tmp_path)
    number, other = create(store, 0), create(store, 1)
    batch = batch_of(producer_id=6, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    for partition in (number, other):
        append_now(store, partition, batch)
    store.roll(NOW_MS)
    for partition, kind in ((number, ControlType.COMMIT), (other, ControlType.ABORT)):
        marker = build_end_transaction_batch(
            EndTransactionMarker(kind, 0), timestamp_ms=NOW_MS, producer_id=6, producer_epoch=0
        )
        append_now(store, partition, marker, origin=AppendOrigin.COORDINATOR)
        store.roll(NOW_MS)
    rows = [row for row in store.catalog.segments.values() if row.state is SegmentState.SEALED]
    assert [row.may_have_aborted for row in rows] == [False, False, True]
    (aborted,) = StoreReader(tmp_path).aborted_transactions(other, 0, 1)
    assert aborted.producer_id == 6
    store.close()


def test_an_epoch_without_records_is_not_stored(tmp_path: Path) -> None:
    """It would cover records of an earlier epoch that are fetched before the store is opened
    again."""
    store = open_store(tmp_path)
    number = create(store, 0)
    append_now(store, number, batch_of(3))
    store.set_leader_epoch(number, 4)
    assert store.partitions()[number].epochs.entries == ((0, 0), (4, 3))
    store.roll(NOW_MS)
    assert store.catalog.partitions[number].leader_epochs == ((0, 0),)
    store.close()
    store = open_store(tmp_path)
    store.set_leader_epoch(number, 4)
    assert store.partitions()[number].epochs.entries == ((0, 0), (4, 3))
    store.close()


def test_an_empty_segment_is_removed_instead_of_sealed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    create(store)
    first = store.catalog.active_segment_id
    store.roll(NOW_MS)
    assert list(store.catalog.segments) == [store.catalog.active_segment_id]
    assert store.catalog.active_segment_id != first
    assert len(list(tmp_path.glob("segment-*.mdb"))) == 1
    store.close()


def test_producers_are_written_once_and_not_with_every_sealing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(producer_id=1, producer_epoch=0, base_sequence=0))
    store.roll(NOW_MS)
    log = store.partitions()[number]
    assert log.dirty_producers == log.unsealed_producers == set()
    append_now(store, number, batch_of(producer_id=2, producer_epoch=0, base_sequence=0))
    assert log.dirty_producers == {2}
    store.roll(NOW_MS)
    rows = [producer_id for _, producer_id, _ in store.catalog.file.producer_rows()]
    assert rows == [1, 2]
    store.close()


def test_the_roll_deadline_follows_the_topics_settings(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    plain = create(store, 0, segment_ms=500)
    compact = create(store, 1, segment_ms=500, max_compaction_lag_ms=100, cleanup_compact=True)
    lag_only = create(store, 2, segment_ms=500, max_compaction_lag_ms=100)
    jittered = create(store, 3, segment_ms=500, segment_jitter_ms=50)
    for number in (plain, compact, lag_only, jittered):
        append_now(store, number, batch_of())
    logs = store.partitions()
    assert roll_deadline_ms(logs[plain]) == NOW_MS + 500
    assert roll_deadline_ms(logs[compact]) == NOW_MS + 100
    assert roll_deadline_ms(logs[lag_only]) == NOW_MS + 500
    assert NOW_MS + 450 < roll_deadline_ms(logs[jittered]) <= NOW_MS + 500
    assert store.number_of(TOPIC_ID, 3) == jittered
    store.close()
