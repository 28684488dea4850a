"""Environments are open once per process, and as long as they are in use."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest

from odradek.storage.environment import (
    StorageError,
    open_environment,
    start_writeback,
    sync_directory,
)
from tests.support.disks import small_disk
from tests.support.page_cache import changed_pages, skip_without_disk


def test_a_file_is_opened_once_in_a_process(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    first = open_environment(path, map_bytes=1 << 20, database_count=2, create=True)
    (tmp_path / "link").symlink_to(path)
    assert open_environment(path, database_count=2) is first
    assert open_environment(tmp_path / "link", database_count=2) is first
    assert first.database("x") is first.database("x")


def test_a_file_that_is_open_read_only_cannot_be_opened_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    open_environment(path, map_bytes=1 << 20, database_count=2, create=True)
    reader = open_environment(path, database_count=2, read_only=True)
    with pytest.raises(StorageError, match="open read-only"):
        open_environment(path, database_count=2)
    del reader
    writer = open_environment(path, database_count=2)
    assert open_environment(path, database_count=2, read_only=True) is writer


def test_an_environment_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    first = open_environment(path, map_bytes=1 << 20, database_count=2, create=True)
    first.database("x")
    gc.collect()
    environment = first.lmdb
    del first
    # LMDB itself refuses to open a file twice: the wrapper has let go, the environment is held.
    with pytest.raises(StorageError):
        open_environment(path, database_count=2)
    del environment
    assert open_environment(path, database_count=2, read_only=True).database("x") is not None


def test_an_environment_that_another_thread_closes_can_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    open_environment(path, map_bytes=1 << 20, database_count=2, create=True)
    dropped: SimpleQueue[object] = SimpleQueue()

    def drop() -> None:
        while dropped.get() is not None:
            pass

    thread = Thread(target=drop)
    thread.start()
    try:
        for _ in range(2_000):
            environment = open_environment(path, database_count=2, read_only=True)
            assert environment.lmdb.stat()["entries"] == 0
            dropped.put(environment)
            del environment
    finally:
        dropped.put(None)
        thread.join()


def test_a_map_has_the_size_with_which_it_was_created(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    open_environment(path, map_bytes=3 << 20, database_count=2, create=True)
    assert open_environment(path, database_count=2).lmdb.info()["map_size"] == 3 << 20


def test_a_file_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="file not found"):
        open_environment(tmp_path / "missing", database_count=1)
    with pytest.raises(StorageError):
        open_environment(tmp_path, database_count=1)
    with pytest.raises(StorageError):
        sync_directory(tmp_path / "missing")


def test_a_reader_cannot_create_a_missing_database(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    open_environment(path, map_bytes=1 << 20, database_count=2, create=True)
    with pytest.raises(StorageError):
        open_environment(path, database_count=2, read_only=True).database("x")


def test_a_synced_environment_has_no_stale_readers(tmp_path: Path) -> None:
    environment = open_environment(
        tmp_path / "a.mdb", map_bytes=1 << 20, database_count=2, create=True, sync=True
    )
    environment.sync()
    assert environment.clear_stale_readers() == 0
    sync_directory(tmp_path)


CREATOR = """
import sys
from pathlib import Path
from odradek.storage.environment import StorageError, open_environment

try:
    open_environment(Path(sys.argv[1]), map_bytes=1 << 20, database_count=1, create=True)
except StorageError as error:
    print("refused", error)
"""


def test_a_file_without_disk_space_is_a_storage_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        disk.fill()
        # LMDB maps its lock file: writing to a page without a block would be SIGBUS.
        made = subprocess.run(
            [sys.executable, "-c", CREATOR, str(disk.folder / "new.mdb")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.startswith("refused new.mdb: No space left on device")
        assert {path.name for path in disk.folder.iterdir()} == {"ballast"}


def test_what_was_in_memory_is_not_written_to_the_file(tmp_path: Path) -> None:
    """LMDB allocates pages and writes them whole, used or not."""
    path = tmp_path / "a.mdb"
    environment = open_environment(path, map_bytes=16 << 20, database_count=2, create=True)
    database = environment.database("x")
    for number in range(50):
        # Blocks that a page fits into, freed before the pages are allocated.
        blocks = [bytearray(b"a secret" * 512) for _ in range(200)]
        del blocks
        with environment.lmdb.begin(write=True) as transaction:
            transaction.put(number.to_bytes(4), b"v" * 1_500, db=database)
    assert b"a secret" not in path.read_bytes()


def test_changed_pages_are_written_without_a_sync(tmp_path: Path) -> None:
    skip_without_disk(tmp_path)
    path = tmp_path / "a.mdb"
    path.write_bytes(b"x" * (4 << 20))
    assert changed_pages(path)
    descriptors = os.listdir("/proc/self/fd")
    start_writeback(path)
    # The system call has begun all of it when it returns.
    assert changed_pages(path) == 0
    start_writeback(tmp_path / "missing")
    assert os.listdir("/proc/self/fd") == descriptors
