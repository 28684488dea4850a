"""Reserved space on a disk that can really be full."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from msgspec.structs import replace

from odradek.protocol.errors import ErrorCode
from odradek.storage.environment import StorageError, open_environment
from odradek.storage.layout import RESERVE_NAME
from odradek.storage.metadata_log import MetadataLog, MetadataLogFullError
from odradek.storage.partition_log import NewPartition
from odradek.storage.reader import StoreReader
from odradek.storage.reserve import (
    FILE_BYTES,
    FileReserve,
    RowReserve,
    free_bytes,
    is_disk_full_error,
    make_environment,
)
from odradek.storage.settings import LogSettings
from odradek.storage.store import Store
from tests.support.disks import SmallDisk, small_disk
from tests.support.metadata_logs import append_payloads
from tests.support.stores import (
    NOW_MS,
    OPTIONS,
    TOPIC_ID,
    append,
    append_now,
    batch_of,
    create,
    offsets_of,
    open_store,
    read_all,
    tend,
)

SMALL_CHANGES = 100
HOUR_MS = 3_600_000
MAP_BYTES = 64 << 20
DISK_BYTES = 8 << 20
PARTITIONS = 300


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


class File:
    """An LMDB file with one database, with or without a reserve."""

    def __init__(self, disk: SmallDisk, *, is_bare: bool = False) -> None:
        path = disk.folder / "file.mdb"
        if not is_bare:
            make_environment(path, map_bytes=MAP_BYTES, databases=("rows",), reserve_in="rows")
        environment = open_environment(
            path, map_bytes=MAP_BYTES, database_count=1, create=True, sync=True
        )
        self._rows = environment.database("rows")
        self._environment = environment
        self.reserve = self.look_again()
        if not is_bare:
            self.reserve.keep()

    def look_again(self) -> RowReserve:
        """The reserve as the next owner finds it."""
        return RowReserve(self._environment.lmdb, self._rows)

    def write(self, number: int) -> None:
        """A small change, synced."""
        with self._environment.lmdb.begin(self._rows, write=True) as transaction:
            transaction.put(b"%08d" % number, bytes(100))


def write_until_refused(write_one: Callable[[int], object], *, count: int) -> Exception:
    """The text of the first refusal; there must be one."""
    for number in range(count):
        try:
            write_one(number)
        except (lmdb.Error, MetadataLogFullError) as refusal:
            return refusal
    raise AssertionError(f"there was room for {count}")


# -- in a file of LMDB ---------------------------------------------------------------------------


def test_a_released_row_has_space_for_many_small_changes_of_its_file(disk: SmallDisk) -> None:
    file = File(disk)
    disk.fill()
    # Without what is kept there is room for a few.
    refusal = write_until_refused(file.write, count=SMALL_CHANGES)
    assert is_disk_full_error(refusal, disk.folder)
    assert file.reserve.spend()
    disk.fill()
    for number in range(SMALL_CHANGES):
        file.write(number)
    assert not file.reserve.spend(), "it can be spent once"


def test_a_row_can_be_released_in_a_new_file(disk: SmallDisk) -> None:
    file = File(disk)
    disk.fill()
    assert file.reserve.spend()
    disk.fill()
    file.write(1)


def test_a_row_survives_a_restart_and_is_reserved_again_after_its_release(
    disk: SmallDisk,
) -> None:
    file = File(disk)
    assert file.look_again().is_kept
    disk.fill()
    assert file.reserve.spend()
    assert not file.look_again().is_kept
    file.reserve.keep()
    assert not file.reserve.is_kept, "there is no room for that yet"
    disk.empty()
    file.reserve.keep()
    assert file.look_again().is_kept
    disk.fill()
    assert file.reserve.spend()
    file.write(1)


def test_a_file_that_was_created_without_a_row_gets_one(disk: SmallDisk) -> None:
    file = File(disk, is_bare=True)
    assert not file.reserve.is_kept
    file.reserve.keep()
    assert file.look_again().is_kept
    disk.fill()
    assert file.reserve.spend()
    file.write(1)


def test_a_row_is_released_only_on_a_full_disk(disk: SmallDisk) -> None:
    reserve = File(disk).reserve
    reserve.spend_if_needed()
    assert reserve.is_kept
    disk.fill()
    reserve.spend_if_needed()
    assert not reserve.is_kept


def test_a_file_that_does_not_fit_is_removed(disk: SmallDisk) -> None:
    disk.fill()
    before = set(disk.folder.iterdir())
    with pytest.raises((lmdb.Error, OSError)):
        File(disk)
    assert set(disk.folder.iterdir()) == before
    disk.empty()
    assert File(disk).reserve.is_kept


def test_the_unfinished_file_of_a_killed_process_is_replaced(disk: SmallDisk) -> None:
    (disk.folder / "file.mdb.unfinished").write_bytes(b"half")
    assert File(disk).reserve.is_kept
    assert not (disk.folder / "file.mdb.unfinished").exists()


def test_other_errors_are_not_taken_for_a_full_disk(disk: SmallDisk) -> None:
    full = lmdb.DiskError("mdb_txn_commit: No space left on device")
    cut_short = lmdb.Error("mdb_txn_commit: Input/output error")
    assert is_disk_full_error(full, disk.folder)
    assert not is_disk_full_error(cut_short, disk.folder), "the disk is broken"
    disk.fill()
    assert is_disk_full_error(cut_short, disk.folder)
    assert not is_disk_full_error(lmdb.MapFullError("the map"), disk.folder)
    assert not is_disk_full_error(OSError("Input/output error"), disk.folder)


# -- a file of its own ---------------------------------------------------------------------------


def test_a_reserve_file_is_released_once(disk: SmallDisk) -> None:
    reserve = FileReserve(disk.folder / RESERVE_NAME, FILE_BYTES)
    reserve.keep()
    assert (disk.folder / RESERVE_NAME).stat().st_blocks * 512 >= FILE_BYTES
    again = FileReserve(disk.folder / RESERVE_NAME, FILE_BYTES)
    assert again.is_kept
    again.spend_if_needed()
    assert again.is_kept, "the disk has room"
    disk.fill()
    assert free_bytes(disk.folder) < FILE_BYTES
    again.spend_if_needed()
    assert free_bytes(disk.folder) >= FILE_BYTES
    assert not again.is_kept


def test_nothing_is_reserved_on_a_disk_with_little_space(disk: SmallDisk) -> None:
    file = File(disk, is_bare=True)
    disk.fill(leave_bytes=2 << 20)
    file.reserve.keep()
    assert not file.reserve.is_kept
    reserve = FileReserve(disk.folder / RESERVE_NAME, FILE_BYTES)
    reserve.keep()
    assert not reserve.is_kept
    assert not (disk.folder / RESERVE_NAME).exists()


# -- whom it is for ------------------------------------------------------------------------------


def test_on_a_full_disk_the_metadata_log_accepts_entries_that_free_space(disk: SmallDisk) -> None:
    log = MetadataLog.open(disk.folder / "metadata")
    append_payloads(log, [b"first"], term=1)
    disk.fill()

    def append(_: int) -> None:
        append_payloads(log, [bytes(100)], term=1)

    assert isinstance(write_until_refused(append, count=SMALL_CHANGES), MetadataLogFullError)
    before = log.last_index
    for _ in range(SMALL_CHANGES):
        append_payloads(log, [bytes(100)], term=1, may_use_reserve=True)
    assert log.last_index == before + SMALL_CHANGES
    assert [entry.index for entry in log.read_entries()] == list(range(1, log.last_index + 1))

    disk.empty()
    log.refill_reserve()
    disk.fill()
    write_until_refused(append, count=10_000)
    append_payloads(log, [b"again"], term=1, may_use_reserve=True)
    log.close()


def many_partitions(store: Store) -> list[int]:
    settings = LogSettings()
    return store.create_partitions(
        NewPartition(TOPIC_ID, "topic", number, 0, settings) for number in range(PARTITIONS)
    )


def test_partitions_are_deleted_on_a_full_disk(disk: SmallDisk) -> None:
    store = open_store(disk.folder / "store")
    numbers = many_partitions(store)
    disk.fill()
    store.delete_partitions(numbers)
    assert not store.partitions()
    store.close()


def test_changes_that_free_no_space_do_not_use_the_reserve(disk: SmallDisk) -> None:
    store = open_store(disk.folder / "store")
    disk.fill()
    with pytest.raises(StorageError):
        many_partitions(store)
    assert not store.partitions()
    disk.empty()
    numbers = many_partitions(store)
    disk.fill()
    store.delete_partitions(numbers)
    store.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_new_store_can_be_opened_on_a_full_disk(disk: SmallDisk, is_killed: bool) -> None:
    store = open_store(disk.folder / "store")
    if is_killed:
        # Its owner's end releases the lock, and the store is not marked clean.
        store._flusher.close()
        store.status.close()
        os.close(store._lock)
    else:
        store.close()
    disk.fill()
    again = open_store(disk.folder / "store")
    again.close()


def test_the_space_of_a_deleted_partition_is_freed_on_a_full_disk(disk: SmallDisk) -> None:
    options = replace(OPTIONS, segment_dead_bytes_max=500_000)
    store = open_store(disk.folder / "store", options)
    gone, stays = create(store), create(store, 1)
    append_now(store, gone, batch_of(1, size=600_000))
    append_now(store, stays, batch_of(1, size=100))
    disk.fill()
    before = free_bytes(disk.folder)
    store.delete_partitions([gone])
    tend(store, NOW_MS)
    tend(store, NOW_MS + HOUR_MS)
    assert free_bytes(disk.folder) > before + 500_000
    assert offsets_of(read_all(StoreReader(disk.folder / "store"), stays)) == [0]
    store.close()


def test_the_space_of_deleted_records_is_freed_on_a_full_disk(disk: SmallDisk) -> None:
    options = replace(OPTIONS, segment_dead_bytes_max=500_000)
    store = open_store(disk.folder / "store", options)
    number = create(store)
    append_now(store, number, batch_of(9, size=70_000), batch_of(1, size=100))
    disk.fill()
    before = free_bytes(disk.folder)
    assert store.log_starts.delete_records(number, 9)[1] == 9
    tend(store, NOW_MS)
    tend(store, NOW_MS + HOUR_MS)
    assert free_bytes(disk.folder) > before + 500_000
    append_now(store, number, batch_of(1, size=100))
    assert offsets_of(read_all(StoreReader(disk.folder / "store"), number)) == [9, 10]
    store.close()


def test_appends_do_not_use_the_first_freed_blocks(disk: SmallDisk) -> None:
    store = open_store(disk.folder / "store")
    number = create(store)
    disk.fill()
    turn = store.begin(NOW_MS)
    append(turn, number, batch_of(1, size=100_000))
    with pytest.raises(StorageError):
        turn.commit()
    disk.empty()
    disk.fill(leave_bytes=2 << 20)
    turn = store.begin(NOW_MS)
    result = append(turn, number, batch_of())
    with pytest.raises(StorageError):
        turn.commit()
    assert (result.error_code, result.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "the disk is full",
    )
    disk.empty()
    assert append_now(store, number, batch_of()) == [0]
    store.close()


def test_a_released_reserve_is_created_again_when_there_is_space(disk: SmallDisk) -> None:
    store = open_store(disk.folder / "store")
    numbers = many_partitions(store)
    for _ in range(2):
        disk.fill()
        store.delete_partitions(numbers)
        store.roll(NOW_MS)
        assert not (disk.folder / "store" / RESERVE_NAME).exists()
        disk.empty()
        store.maintenance(NOW_MS)
        assert (disk.folder / "store" / RESERVE_NAME).exists()
        numbers = many_partitions(store)
    store.close()
