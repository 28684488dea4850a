"""The sync of a turn: at commit, by count, by time, and never later than configured."""

from pathlib import Path

import msgspec
import pytest

from odradek.protocol.types import NEVER
from odradek.storage.environment import StorageError
from odradek.storage.segment import Segment
from odradek.storage.settings import Durability, LogSettings, StoreOptions
from odradek.storage.store import Store
from odradek.storage.syncer import Syncer
from tests.support.page_cache import changed_pages, skip_without_disk
from tests.support.stores import (
    NOW_MS,
    append,
    append_now,
    batch_of,
    create,
    open_store,
    set_durability,
    wait_for_sync,
)
from tests.support.waiting import wait_until

INTERVAL = StoreOptions(status_slots=64, segment_map_bytes=64 << 20, sync_interval_ms=1_000)
COMMIT = StoreOptions(status_slots=64, segment_map_bytes=64 << 20, durability=Durability.COMMIT)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the synced segments, in order; the real sync is done as well."""
    original = Segment.sync
    ids: list[int] = []

    def sync(self: Segment) -> None:
        original(self)
        ids.append(self.segment_id)

    monkeypatch.setattr(Segment, "sync", sync)
    return ids


def commit(store: Store, number: int, count: int = 1, now_ms: int = NOW_MS) -> bool:
    turn = store.begin(now_ms)
    append(turn, number, batch_of(count))
    return turn.commit().synced


def settle(store: Store) -> None:
    wait_for_sync(store._flusher._syncer)


def test_commit_durability_syncs_every_turn_before_it_is_visible(
    tmp_path: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, COMMIT)
    number = create(store)
    ends: list[int] = []
    original = Segment.sync

    def look(self: Segment) -> None:
        ends.append(store.status.log_end_offset(number))
        original(self)

    monkeypatch.setattr(Segment, "sync", look)
    assert commit(store, number)
    assert commit(store, number)
    assert ends == [0, 1]
    assert store.next_deadline_ms() >= NOW_MS + 10_000
    store.close()


def test_interval_durability_syncs_once_for_all_turns_of_an_interval(
    tmp_path: Path, synced: list[int]
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    synced.clear()
    assert not commit(store, number, now_ms=NOW_MS)
    assert not commit(store, number, now_ms=NOW_MS + 900)
    assert store.next_deadline_ms() == NOW_MS + 1_000
    store.run_due_tasks(NOW_MS + 999)
    settle(store)
    assert synced == []
    store.run_due_tasks(NOW_MS + 1_000)
    settle(store)
    assert synced == [store.catalog.active_segment_id]
    store.run_due_tasks(NOW_MS + 99_000)
    settle(store)
    assert len(synced) == 1, "nothing new, nothing to sync"
    commit(store, number, now_ms=NOW_MS + 100_000)
    assert store.next_deadline_ms() == NOW_MS + 101_000
    store.close()


def test_durability_changes_while_the_store_is_open(tmp_path: Path) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    assert not commit(store, number)
    set_durability(store, Durability.COMMIT)
    first = store.catalog.active_segment_id or 0
    assert commit(store, number)
    assert store.catalog.active_segment_id == first
    store.close()
    store = open_store(tmp_path, COMMIT)
    second = store.catalog.active_segment_id or 0
    set_durability(store, Durability.INTERVAL)
    # Without a journal every turn is synced, so the next segment begins at once.
    assert not commit(store, number)
    assert store.catalog.active_segment_id == second + 1
    assert not commit(store, number)
    set_durability(store, Durability.COMMIT)
    set_durability(store, Durability.INTERVAL)
    assert not commit(store, number)
    assert store.catalog.active_segment_id == second + 1
    store.close()


def test_flush_messages_counts_each_partitions_messages(tmp_path: Path, synced: list[int]) -> None:
    store = open_store(tmp_path, INTERVAL)
    counted, other = create(store, 0, flush_messages=10), create(store, 1)
    assert not commit(store, counted, 9)
    assert not commit(store, other, 99)
    assert commit(store, counted, 1)
    assert not commit(store, counted, 9)
    assert commit(store, counted, 5)
    store.close()


def test_flush_messages_of_one_syncs_every_turn_also_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store, flush_messages=1)
    assert commit(store, number)
    store.close()
    store = open_store(tmp_path, INTERVAL)
    assert commit(store, number)
    store.close()


def test_flush_ms_brings_the_deadline_forward(tmp_path: Path) -> None:
    store = open_store(tmp_path, INTERVAL)
    hasty, patient = create(store, 0, flush_ms=50), create(store, 1, flush_ms=NEVER)
    commit(store, patient)
    assert store.next_deadline_ms() == NOW_MS + 1_000
    commit(store, hasty, now_ms=NOW_MS + 10)
    assert store.next_deadline_ms() == NOW_MS + 60
    store.close()


def test_a_sync_that_fails_in_the_thread_stops_the_store_until_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    commit(store, number)

    def refuse(_: Segment) -> None:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync", refuse)
        store.run_due_tasks(NOW_MS + 1_000)
        while not store._flusher._syncer._done.qsize():
            pass
        with pytest.raises(StorageError, match="gone"):
            store.run_due_tasks(NOW_MS + 1_001)
    with pytest.raises(StorageError, match="gone"):
        store.begin(NOW_MS)
    store.close()
    store = open_store(tmp_path, INTERVAL)
    assert append_now(store, number, batch_of()) == [1]
    store.close()


def test_a_segment_is_synced_before_it_is_sealed_in_the_catalog(
    tmp_path: Path, synced: list[int]
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    commit(store, number)
    old = store.catalog.active_segment_id
    synced.clear()
    seen: list[list[int]] = []
    original = store.catalog.on_change

    def look() -> None:
        seen.append(list(synced))
        original()

    store.catalog.on_change = look
    store.roll(NOW_MS)
    assert seen[0][0] == old
    assert store.catalog.active_segment_id in seen[0], "the new one's first pages as well"
    store.close()


@pytest.fixture
def written_back(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose writeback was asked for, in order."""
    asked: list[Path] = []
    original = Syncer.start_writeback

    def start_writeback(self: Syncer, path: Path) -> bool:
        is_begun = original(self, path)
        if is_begun:
            asked.append(path)
        return is_begun

    monkeypatch.setattr(Syncer, "start_writeback", start_writeback)
    return asked


LARGE = batch_of(size=(1 << 20) - 70)
MANY_LARGE = msgspec.structs.replace(INTERVAL, segment_map_bytes=256 << 20)
assert 1 << 20 <= len(LARGE) <= LogSettings().max_message_bytes


def test_many_bytes_are_written_before_the_sync_is_due(tmp_path: Path, synced: list[int]) -> None:
    skip_without_disk(tmp_path)
    store = open_store(tmp_path, MANY_LARGE)
    number = create(store)
    synced.clear()
    path = store._segment.environment.path
    for _ in range(16):
        append_now(store, number, LARGE)
    wait_until(lambda: changed_pages(path) < 1 << 8, what="the writeback")
    assert synced == []
    assert store.next_deadline_ms() == NOW_MS + 1_000, "the sync is as due as before"
    store.close()


def test_a_sync_counts_as_writeback(tmp_path: Path, written_back: list[Path]) -> None:
    store = open_store(tmp_path, MANY_LARGE)
    number = create(store)
    path = store._segment.environment.path
    now_ms = NOW_MS
    for _ in range(4):
        for _ in range(15):
            append_now(store, number, LARGE, now_ms=now_ms)
        now_ms += 1_000
        store.run_due_tasks(now_ms)
        settle(store)
    assert written_back == []
    for _ in range(16):
        append_now(store, number, LARGE, now_ms=now_ms)
    assert written_back == [path]
    for _ in range(15):
        append_now(store, number, LARGE, now_ms=now_ms)
    assert written_back == [path], "the count begins anew with each"
    store.roll(now_ms)
    for _ in range(15):
        append_now(store, number, LARGE, now_ms=now_ms)
    assert written_back == [path], "the new segment has its own count"
    store.close()


def test_commit_durability_leaves_nothing_to_write(
    tmp_path: Path, written_back: list[Path]
) -> None:
    store = open_store(tmp_path, COMMIT)
    number = create(store)
    for _ in range(17):
        append_now(store, number, LARGE)
    assert written_back == []
    store.close()
