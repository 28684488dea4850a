"""One partition's state: the changes by a batch, and their undo."""

from copy import deepcopy

from odradek.protocol.control_records import ControlType, EndTransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import CONTROL, TRANSACTIONAL
from odradek.storage.catalog import PartitionRow
from odradek.storage.layout import EPOCH_KEY, KEY, OFFSET
from odradek.storage.partition_log import IndexRow, PartitionLog
from odradek.storage.segment import Extent
from odradek.storage.settings import LogSettings
from tests.support.stores import TOPIC_ID, header_of


def log_of(number: int = 7) -> PartitionLog:
    return PartitionLog(PartitionRow(number, TOPIC_ID, "topic", 0, LogSettings()))


def advance(
    log: PartitionLog,
    count: int = 1,
    *,
    epoch: int = 0,
    attributes: int = 0,
    timestamp: int = 1_000,
    producer: int = -1,
    sequence: int = -1,
    marker: EndTransactionMarker | None = None,
) -> list[IndexRow]:
    return log.advance(
        header_of(
            count=count,
            timestamp=timestamp,
            attributes=attributes,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        ),
        base_offset=log.log_end_offset,
        leader_epoch=epoch,
        size=100,
        append_ms=5,
        marker=marker,
    )


def frozen(log: PartitionLog) -> dict[str, object]:
    state = {name: deepcopy(getattr(log, name)) for name in PartitionLog.__slots__}
    state["epochs"] = log.epochs.entries
    state["indexer"] = (log.indexer.max_timestamp, log.indexer.unindexed_bytes)
    state["undecided"] = (dict(log.undecided.ongoing), list(log.undecided.unreplicated))
    del state["producer_undo"], state["dirty_producers"], state["unsealed_producers"]
    return state


def test_a_transaction_goes_on_until_its_marker_and_in_its_epoch_only() -> None:
    log = log_of()
    assert log.transaction_error(1, 0) is ErrorCode.INVALID_TXN_STATE
    advance(log, producer=1, sequence=0)
    assert log.transaction_error(1, 0) is ErrorCode.INVALID_TXN_STATE
    advance(log, producer=1, sequence=1, attributes=TRANSACTIONAL)
    assert log.transaction_error(1, 0) is ErrorCode.NONE
    assert log.transaction_error(1, 1) is ErrorCode.INVALID_TXN_STATE
    assert log.transaction_error(1, -1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.transaction_error(2, 0) is ErrorCode.INVALID_TXN_STATE
    marker = EndTransactionMarker(ControlType.COMMIT, 0)
    advance(log, producer=1, attributes=TRANSACTIONAL | CONTROL, marker=marker)
    assert log.transaction_error(1, 0) is ErrorCode.INVALID_TXN_STATE


def test_a_batch_moves_the_log_end_and_the_extent() -> None:
    log = log_of()
    advance(log, 3, timestamp=50)
    advance(log, 2, timestamp=40)
    assert log.active_extent(4) == Extent(4, 0, 5, 200, 2, 50, 5)
    log.start_segment()
    assert log.active_extent(5) is None
    advance(log)
    assert log.active_extent(5) == Extent(5, 5, 6, 100, 1, 1_000, 5)


def test_index_rows_are_returned_for_timestamps_new_epochs_and_aborts() -> None:
    log = log_of()
    first = advance(log, 3, epoch=2, timestamp=50)
    assert first == [
        IndexRow("timestamps", KEY.pack(7, 50), OFFSET.pack(0)),
        IndexRow("epochs", EPOCH_KEY.pack(7, 2), OFFSET.pack(0)),
    ]
    assert advance(log, 3, epoch=2, timestamp=51) == []
    advance(log, epoch=2, attributes=TRANSACTIONAL, producer=1, sequence=0)
    abort = EndTransactionMarker(ControlType.ABORT, 0)
    (row,) = advance(log, epoch=2, attributes=TRANSACTIONAL | CONTROL, producer=1, marker=abort)
    assert (row.database, row.key) == ("aborted", KEY.pack(7, 7))


def test_an_epoch_that_was_elected_without_records_is_recorded_with_its_first() -> None:
    log = log_of()
    advance(log, 3, epoch=0)
    log.epochs.assign(4, 3)
    (row,) = advance(log, 1, epoch=4)
    assert (row.key, row.value) == (EPOCH_KEY.pack(7, 4), OFFSET.pack(3))


def test_an_epoch_without_records_does_not_cover_fetched_batches_of_an_earlier_one() -> None:
    """KIP-101 with two elections in a row. Found by the simulation: such a replica truncated
    committed records because its leader did not have them under that epoch."""
    log = log_of()
    advance(log, 22, epoch=0)
    log.epochs.assign(1, 22)
    assert advance(log, 3, epoch=0) == []
    assert log.epochs.entries == ((0, 0),)
    assert log.epochs.end_offset(0, log.log_end_offset) == (0, 25)
    assert log.epochs.epoch_at(24) == 0
    (row,) = advance(log, epoch=2)
    assert (row.key, row.value) == (EPOCH_KEY.pack(7, 2), OFFSET.pack(25))


def test_the_first_record_of_an_epoch_is_recorded_after_a_roll() -> None:
    log = log_of()
    advance(log, 3, epoch=0)
    log.epochs.assign(1, 3)
    log.start_segment()
    row = next(row for row in advance(log, epoch=1) if row.database == "epochs")
    assert (row.key, row.value) == (EPOCH_KEY.pack(7, 1), OFFSET.pack(3))


def test_a_rollback_restores_the_whole_state() -> None:
    log = log_of()
    advance(log, 2, producer=1, sequence=0)
    advance(log, 2, producer=2, sequence=0, attributes=TRANSACTIONAL)
    log.take_checkpoint()
    before = frozen(log)
    savepoint = log.savepoint()
    advance(log, 2, epoch=3, producer=1, sequence=2, timestamp=9_000)
    advance(log, 1, epoch=3, producer=5, sequence=0, attributes=TRANSACTIONAL)
    abort = EndTransactionMarker(ControlType.ABORT, 4)
    advance(log, epoch=3, attributes=TRANSACTIONAL | CONTROL, producer=2, marker=abort)
    log.take_checkpoint()
    assert frozen(log) != before
    log.roll_back(savepoint)
    assert frozen(log) == before
    # Producers of the turn may stay marked: a row too many says what is true.
    assert {1, 2} <= log.unsealed_producers | log.dirty_producers
    assert [producer for producer, _ in log.take_checkpoint() if producer == 5] == []


def test_a_checkpoint_has_each_changed_producer_once() -> None:
    log = log_of()
    for sequence in range(3):
        advance(log, producer=1, sequence=sequence)
    advance(log, producer=2, sequence=0)
    assert sorted(producer for producer, _ in log.take_checkpoint()) == [1, 2]
    assert log.take_checkpoint() == []
    advance(log, producer=2, sequence=1)
    assert [producer for producer, _ in log.take_checkpoint()] == [2]
    assert log.unsealed_producers == {1, 2}


def test_open_transactions_are_rebuilt_from_the_producers() -> None:
    log = log_of()
    for producer in (9, 3, 6):
        advance(log, producer=producer, sequence=0, attributes=TRANSACTIONAL)
    advance(log, producer=4, sequence=0)
    expected = list(log.undecided.ongoing.items())
    log.resume_transactions()
    assert list(log.undecided.ongoing.items()) == expected == [(9, 0), (3, 1), (6, 2)]
    log.high_watermark = 4
    assert log.last_stable_offset == 0
