"""Slices are read in a thread before the loop needs them. Real stores."""

import threading
from pathlib import Path

from odradek.node.worker.read_ahead import LogSlice, ReadAhead
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader
from tests.support.stores import append_now, batch_of, create, open_store
from tests.support.waiting import wait_until


def test_a_slice_is_read_once_and_by_the_thread(tmp_path: Path) -> None:
    store = open_store(tmp_path / "0")
    number = create(store)
    append_now(store, number, *(batch_of(1, size=1_000) for _ in range(10)))
    opened: list[int] = []
    may_read = threading.Event()

    def open_reader(index: int) -> StoreReader:
        opened.append(index)
        may_read.wait(10)
        return StoreReader(tmp_path / "0")

    ahead = ReadAhead(open_reader)
    first = LogSlice((0, number), 0, 10, 4_000)
    assert not ahead.has_read(first)
    assert not ahead.has_read(first._replace(offset=4)), "one at a time"
    may_read.set()
    wait_until(lambda: not ahead.is_busy)
    assert ahead.has_read(first)
    assert not ahead.has_read(first._replace(offset=4))
    wait_until(lambda: ahead.has_read(first._replace(offset=4)))
    assert opened == [0]
    ahead.close()
    assert not ahead.has_read(first), "it is used again, with other readers"
    wait_until(lambda: ahead.has_read(first))
    assert opened == [0, 0]
    ahead.close()
    store.close()


def test_what_cannot_be_read_is_left_to_the_loop() -> None:
    def fail(_store: int) -> StoreReader:
        raise StorageError("the disk is gone")

    ahead = ReadAhead(fail)
    wanted = LogSlice((3, 1), 0, 10, 4_000)
    assert not ahead.has_read(wanted)
    wait_until(lambda: ahead.has_read(wanted))
    ahead.close()
