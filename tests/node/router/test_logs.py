"""A router's read access to the stores."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.logs import Logs
from odradek.storage.layout import (
    CATALOG_NAME,
    STATUS_NAME,
    store_folder,
    store_index,
    store_number,
)
from odradek.storage.store import Store
from tests.support.stores import (
    NOW_MS,
    append_now,
    batch_of,
    create,
    dropped_but_open,
    mapped_segment_bytes,
    open_store,
    read_all,
    tend,
)
from tests.support.waiting import wait_until

STORE_COUNT = 2
TOPIC_ID = bytes(range(16))


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    logs = Logs((tmp_path,), STORE_COUNT)
    yield logs
    logs.close()


def open_numbered(folder: Path, store: int) -> Store:
    return open_store(store_folder((folder,), store))


def index_of(partition: int, topic_id: bytes = TOPIC_ID) -> int:
    return store_index(topic_id, partition, STORE_COUNT)


def test_a_partition_is_found_in_whichever_directory_it_is(tmp_path: Path) -> None:
    folders = (tmp_path / "a", tmp_path / "b")
    logs = Logs(folders, STORE_COUNT)
    first, second = (open_numbered(folder, index_of(0)) for folder in folders)
    create(second, topic_id=TOPIC_ID)
    location = logs.locate(TOPIC_ID, 0)
    assert location is not None
    assert location[0] == store_number(1, index_of(0))
    assert logs.locate(TOPIC_ID, 0) == location
    # It moves to the other directory.
    create(first, topic_id=TOPIC_ID)
    second.delete_partitions([location[1]])
    moved = logs.open(TOPIC_ID, 0)
    assert moved is not None
    assert moved.store == index_of(0)
    assert logs.locate(TOPIC_ID, STORE_COUNT) is None
    logs.close()
    first.close()
    second.close()


def test_a_store_that_does_not_exist_yet_is_opened_later(logs: Logs, tmp_path: Path) -> None:
    index = index_of(0)
    assert logs.reader(index) is None
    assert logs.locate(TOPIC_ID, 0) is None
    logs.set_watch(index, 0)
    store = open_numbered(tmp_path, index)
    assert logs.reader(index) is not None
    assert logs.locate(TOPIC_ID, 0) is None
    number = create(store, 0)
    assert logs.locate(TOPIC_ID, 0) == (index, number)
    store.close()


def test_a_store_that_is_being_created_cannot_be_read_yet(logs: Logs, tmp_path: Path) -> None:
    """The worker creates file after file, and the router may open the store meanwhile."""
    folder = store_folder((tmp_path,), 0)
    folder.mkdir(parents=True)
    for name in (CATALOG_NAME, STATUS_NAME):
        (folder / name).touch()
        assert logs.reader(0) is None
    (folder / STATUS_NAME).write_bytes(bytes(4096))
    assert logs.reader(0) is None


def test_partitions_are_found_in_the_store_that_the_layout_says(logs: Logs, tmp_path: Path) -> None:
    stores = [open_numbered(tmp_path, index) for index in range(STORE_COUNT)]
    wanted = {p: (index_of(p), create(stores[index_of(p)], p)) for p in range(4)}
    assert {p: logs.locate(TOPIC_ID, p) for p in range(4)} == wanted
    assert {place[0] for place in wanted.values()} == {0, 1}
    for store in stores:
        store.close()


@pytest.mark.parametrize("partition", [4, 2**31 - 1, -1, -(2**31)])
def test_partitions_that_do_not_exist_have_no_location(
    logs: Logs, tmp_path: Path, partition: int
) -> None:
    stores = [open_numbered(tmp_path, index) for index in range(STORE_COUNT)]
    assert logs.locate(TOPIC_ID, partition) is None
    for store in stores:
        store.close()


def test_a_deleted_topic_has_no_location(logs: Logs, tmp_path: Path) -> None:
    store = open_numbered(tmp_path, index_of(0))
    number = create(store, 0)
    assert logs.locate(TOPIC_ID, 0) is not None
    store.delete_partitions([number])
    assert logs.locate(TOPIC_ID, 0) is None
    store.close()


def test_a_replica_that_moved_away_and_came_back_is_found_where_it_is_now(
    logs: Logs, tmp_path: Path
) -> None:
    store = open_numbered(tmp_path, index_of(0))
    before = create(store, 0)
    assert logs.locate(TOPIC_ID, 0) == (index_of(0), before)
    store.delete_partitions([before])
    other = create(store, STORE_COUNT)
    now = create(store, 0)
    assert now != before, "else this shows nothing"
    assert logs.locate(TOPIC_ID, 0) == (index_of(0), now)
    assert logs.locate(TOPIC_ID, STORE_COUNT) == (index_of(0), other)
    store.close()


def test_dropped_segment_files_are_closed(logs: Logs, tmp_path: Path) -> None:
    logs.release_dropped_segments()
    store = open_numbered(tmp_path, index_of(0))
    number = create(store, 0)
    append_now(store, number, batch_of())
    reader = logs.reader(index_of(0))
    assert reader is not None
    assert read_all(reader, number)
    assert mapped_segment_bytes() > 0
    logs.release_dropped_segments()
    assert mapped_segment_bytes() == 0
    store.roll(NOW_MS)
    store.delete_partitions([number])
    tend(store, NOW_MS)
    tend(store, NOW_MS + 3_600_000)
    assert dropped_but_open(tmp_path) != []
    logs.release_dropped_segments()
    assert dropped_but_open(tmp_path) == []
    store.close()


def test_an_idle_router_closes_dropped_segment_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.node.router.logs.RELEASE_INTERVAL_S", 0.01)
    store = open_numbered(tmp_path, index_of(0))
    number = create(store, 0)
    append_now(store, number, batch_of())

    async def idle() -> None:
        logs = Logs((tmp_path,), STORE_COUNT)
        reader = logs.reader(index_of(0))
        assert reader is not None
        assert read_all(reader, number)
        store.roll(NOW_MS)
        store.delete_partitions([number])
        tend(store, NOW_MS)
        tend(store, NOW_MS + 3_600_000)
        assert dropped_but_open(tmp_path) != []
        await asyncio.to_thread(
            wait_until, lambda: not dropped_but_open(tmp_path), what="it lets go"
        )
        logs.close()

    asyncio.run(idle())
    store.close()


def test_committed_offsets_are_visible_at_once(logs: Logs, tmp_path: Path) -> None:
    store = open_numbered(tmp_path, index_of(0))
    number = create(store, 0)
    reader = logs.reader(index_of(0))
    assert reader is not None
    append_now(store, number, batch_of(3))
    assert reader.status.high_watermark(number) == 3
    store.close()


def test_a_watch_reaches_the_worker_of_the_store(logs: Logs, tmp_path: Path) -> None:
    store = open_numbered(tmp_path, index_of(0))
    number = create(store, 0)
    assert not store.status.take_watch(number)
    logs.set_watch(index_of(0), number)
    assert store.status.take_watch(number)
    assert not store.status.take_watch(number)
    store.close()


def test_buffers_of_a_response_stay_valid_after_the_stores_are_closed(
    logs: Logs, tmp_path: Path
) -> None:
    store = open_numbered(tmp_path, index_of(0))
    number = create(store, 0)
    batch = batch_of(1, size=100_000)
    append_now(store, number, batch)
    reader = logs.reader(index_of(0))
    assert reader is not None
    result = reader.read(number, 0, max_bytes=1 << 20, end_offset=1)
    assert any(isinstance(buffer, memoryview) for buffer in result.buffers), "not copied"
    logs.close()
    store.close()
    assert b"".join(result.buffers)[21:] == batch[21:]
