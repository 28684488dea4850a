"""The sync thread: one request at a time, errors raised once."""

from pathlib import Path
from threading import Event
from weakref import ref

import pytest

from odradek.storage.environment import StorageError, start_writeback
from odradek.storage.segment import Segment
from odradek.storage.syncer import Syncer
from tests.support.stores import wait_for_sync
from tests.support.waiting import wait_until


def test_a_sync_ends(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    syncer = Syncer()
    syncer.poll()
    wait_for_sync(syncer)
    for _ in range(3):
        syncer.request(segment)
        assert syncer.is_busy
        wait_for_sync(syncer)
        assert not syncer.is_busy
    syncer.close()
    syncer.close()


def test_one_request_at_a_time(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    syncer = Syncer()
    syncer.request(segment)
    with pytest.raises(AssertionError):
        syncer.request(segment)
    syncer.close()


def test_poll_raises_the_error_of_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)

    def refuse(_: Segment) -> None:
        raise StorageError("no disk")

    syncer = Syncer()
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync", refuse)
        syncer.request(segment)
        with pytest.raises(StorageError):
            wait_for_sync(syncer)
        assert not syncer.is_busy
        syncer.request(segment)
        syncer.close()
    assert not syncer.is_busy


def test_a_synced_segment_is_held_until_its_end_is_polled(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    environment = ref(segment.environment)
    syncer = Syncer()
    syncer.request(segment)
    del segment
    wait_until(lambda: not syncer._done.empty(), what="the sync")
    # The store's thread closes it, not the syncer's.
    assert environment() is not None
    syncer.poll()
    assert environment() is None
    syncer.close()


def test_writeback_is_asked_for_once_until_the_thread_comes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    began, may_end = Event(), Event()
    done: list[Path] = []

    def start_later(path: Path) -> None:
        began.set()
        assert may_end.wait(30)
        start_writeback(path)
        done.append(path)

    monkeypatch.setattr("odradek.storage.syncer.start_writeback", start_later)
    syncer = Syncer()
    first, second = tmp_path / "missing", segment.environment.path
    assert syncer.start_writeback(first)
    assert began.wait(30)
    assert not syncer.start_writeback(second)
    assert not syncer.is_busy
    # A sync follows it.
    syncer.request(segment)
    assert syncer._done.empty()
    may_end.set()
    wait_for_sync(syncer)
    assert done == [first]
    assert syncer.start_writeback(second)
    syncer.close()
    assert done == [first, second]
