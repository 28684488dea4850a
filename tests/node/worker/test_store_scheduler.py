"""A worker's tasks between turns, on real stores: syncs, maintenance in slices, sleep."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.worker.store_scheduler import (
    CHECK_INTERVAL_MS,
    RELEASE_INTERVAL_MS,
    StoreScheduler,
)
from odradek.storage.settings import StoreOptions
from odradek.storage.store import Store
from tests.support.stores import (
    NOW_MS,
    append_now,
    batch_of,
    create,
    mapped_segment_bytes,
    open_store,
)
from tests.support.waiting import wait_until

CHECK_MS = 10_000
OPTIONS = StoreOptions(
    segment_bytes=1 << 20,
    segment_map_bytes=64 << 20,
    status_slots=1 << 12,
    retention_check_interval_ms=CHECK_MS,
)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[int, Store]]:
    stores = {index: open_store(tmp_path / str(index), OPTIONS) for index in range(2)}
    yield stores
    for store in stores.values():
        store.close()


def run_to_rest(housekeeping: StoreScheduler, now_ms: int) -> int:
    """Run slices until none is due; the number of slices."""
    count = 0
    while True:
        housekeeping.run_slice(now_ms)
        count += 1
        next_ms = housekeeping.next_ms(now_ms)
        if next_ms >= now_ms + CHECK_INTERVAL_MS:
            return count
        now_ms = max(now_ms, next_ms)
        assert count < 10_000


def test_when_nothing_is_due_the_worker_sleeps_until_the_next_check(
    stores: dict[int, Store],
) -> None:
    housekeeping = StoreScheduler(stores, NOW_MS)
    housekeeping.run_slice(NOW_MS)
    assert housekeeping.next_ms(NOW_MS) == NOW_MS + CHECK_INTERVAL_MS


def test_an_append_shortens_the_sleep_to_its_sync(stores: dict[int, Store]) -> None:
    number = create(stores[1], flush_ms=200)
    housekeeping = StoreScheduler(stores, NOW_MS)
    append_now(stores[1], number, batch_of())
    assert housekeeping.next_ms(NOW_MS) == NOW_MS + 200


def test_a_due_sync_is_started_and_the_worker_sleeps_while_the_disk_works(
    stores: dict[int, Store],
) -> None:
    number = create(stores[0], flush_ms=200)
    housekeeping = StoreScheduler(stores, NOW_MS)
    append_now(stores[0], number, batch_of())
    assert stores[0].next_deadline_ms() == NOW_MS + 200
    late_ms = NOW_MS + 201
    housekeeping.run_slice(late_ms)
    assert housekeeping.next_ms(late_ms) > late_ms

    def is_synced() -> bool:
        housekeeping.run_slice(late_ms)
        return housekeeping.next_ms(late_ms) == NOW_MS + CHECK_INTERVAL_MS

    wait_until(is_synced, what="the sync has ended")


def test_retention_moves_the_log_starts_of_every_store(stores: dict[int, Store]) -> None:
    numbers = {index: create(store, retention_ms=1) for index, store in stores.items()}
    kept = create(stores[0], 1, retention_ms=-1)
    housekeeping = StoreScheduler(stores, NOW_MS)
    for index, store in stores.items():
        append_now(store, numbers[index], batch_of(3, timestamp=NOW_MS))
    append_now(stores[0], kept, batch_of(3, timestamp=NOW_MS))
    run_to_rest(housekeeping, NOW_MS + CHECK_INTERVAL_MS)
    assert stores[0].status.log_start_offset(numbers[0]) == 0, "not due before its interval"
    run_to_rest(housekeeping, NOW_MS + CHECK_INTERVAL_MS + CHECK_MS)
    assert [stores[i].status.log_start_offset(numbers[i]) for i in stores] == [3, 3]
    assert stores[0].status.log_start_offset(kept) == 0


def test_one_call_runs_one_slice_of_one_store(stores: dict[int, Store]) -> None:
    """Requests come before the next slice, so long tasks are cut."""
    numbers = {index: create(store, retention_ms=1) for index, store in stores.items()}
    housekeeping = StoreScheduler(stores, NOW_MS)
    for index, store in stores.items():
        append_now(store, numbers[index], batch_of(3, timestamp=NOW_MS))
    run_to_rest(housekeeping, NOW_MS + CHECK_INTERVAL_MS)
    now_ms = NOW_MS + CHECK_INTERVAL_MS + CHECK_MS
    moved_by_call: list[int] = []
    for _ in range(1_000):
        housekeeping.run_slice(now_ms)
        moved_by_call.append(
            sum(stores[i].status.log_start_offset(numbers[i]) == 3 for i in stores)
        )
        next_ms = housekeeping.next_ms(now_ms)
        if moved_by_call[-1] == 2:
            break
        assert next_ms <= now_ms + 10, "there is more to do"
        now_ms = max(now_ms, next_ms)
    assert 1 in moved_by_call, "one store after the other"
    assert moved_by_call[-1] == 2


def test_maintenance_of_a_store_starts_at_most_once_per_check_interval(
    stores: dict[int, Store],
) -> None:
    housekeeping = StoreScheduler(stores, NOW_MS)
    now_ms = NOW_MS
    calls = 0
    while now_ms < NOW_MS + 8 * CHECK_INTERVAL_MS:
        housekeeping.run_slice(now_ms)
        calls += 1
        next_ms = housekeeping.next_ms(now_ms)
        assert next_ms > now_ms
        now_ms = next_ms
    assert calls <= 9


def test_a_clock_that_is_set_back_delays_no_task(
    stores: dict[int, Store],
) -> None:
    number = create(stores[1], flush_ms=200)
    housekeeping = StoreScheduler(stores, NOW_MS)
    append_now(stores[1], number, batch_of())
    housekeeping.run_slice(NOW_MS)
    assert stores[1].next_deadline_ms() == NOW_MS + 200
    an_hour_ago = NOW_MS - 3_600_000
    housekeeping.run_slice(an_hour_ago)
    assert housekeeping.next_ms(an_hour_ago) <= an_hour_ago + CHECK_INTERVAL_MS

    def is_synced() -> bool:
        housekeeping.run_slice(an_hour_ago)
        return stores[1].next_deadline_ms() > NOW_MS + 200

    wait_until(is_synced, what="what was appended is synced")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to unmap")
def test_what_an_idle_worker_has_mapped_is_unmapped(stores: dict[int, Store]) -> None:
    housekeeping = StoreScheduler(stores, NOW_MS)
    number = create(stores[0])
    now_ms = NOW_MS + CHECK_INTERVAL_MS
    housekeeping.run_slice(now_ms)
    append_now(stores[0], number, batch_of())
    append_now(stores[0], number, batch_of())
    housekeeping.run_slice(now_ms + CHECK_INTERVAL_MS)
    assert mapped_segment_bytes() > 0
    run_to_rest(housekeeping, now_ms + RELEASE_INTERVAL_MS)
    assert mapped_segment_bytes() == 0
