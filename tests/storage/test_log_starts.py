"""Log starts move forward, for readers and for replication."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.storage.settings import LogSettings
from odradek.storage.store import Store
from tests.support.stores import append_now, batch_of, create, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_records_are_deleted_up_to_the_high_watermark(store: Store) -> None:
    number = create(store)
    append_now(store, number, batch_of(5))
    assert store.log_starts.delete_records(number, 2) == (ErrorCode.NONE, 2)
    assert store.log_starts.delete_records(number, 1) == (ErrorCode.NONE, 2), (
        "a start never moves back"
    )
    assert store.log_starts.delete_records(number, 6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert store.log_starts.delete_records(number, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert store.log_starts.delete_records(number, -1) == (ErrorCode.NONE, 5)
    assert store.status.log_start_offset(number) == 5
    assert store.log_starts.delete_records(99, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_log_that_is_only_compacted_keeps_its_start(store: Store) -> None:
    number = create(store)
    append_now(store, number, batch_of(5))
    store.set_settings(number, LogSettings(cleanup_compact=True, cleanup_delete=False))
    assert store.log_starts.delete_records(number, 2) == (ErrorCode.POLICY_VIOLATION, -1)


def test_moved_log_starts_of_replicated_logs_are_taken_once(store: Store) -> None:
    alone, shared = create(store, 0), create(store, 1)
    store.set_replicated(shared, True)
    for number in (alone, shared):
        append_now(store, number, batch_of(5))
        store.set_high_watermark(number, 5)
    assert store.log_starts.take_moved() == set()
    store.log_starts.move({alone: 3, shared: 3})
    assert store.log_starts.take_moved() == {shared}
    assert store.log_starts.take_moved() == set()
    store.log_starts.move({shared: 2})
    assert store.log_starts.take_moved() == set(), "nothing has moved"
