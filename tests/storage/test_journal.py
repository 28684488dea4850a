"""The journal of small batches: its content, its recovery, and when there is one."""

import errno
import os
import random
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.storage.environment import StorageError
from odradek.storage.journal import Journal, frames, map_file
from odradek.storage.layout import STAMP, journal_ids, journal_path, segment_ids
from odradek.storage.settings import Durability, StoreOptions
from odradek.storage.store import Store
from tests.support.stores import NOW_MS, append, append_now, as_stored, batch_of, create, open_store

INTERVAL = StoreOptions(status_slots=64, segment_map_bytes=64 << 20)
COMMIT = StoreOptions(status_slots=64, segment_map_bytes=64 << 20, durability=Durability.COMMIT)


def contents_of(path: Path) -> list[bytes]:
    view = map_file(path)
    return [bytes(view[start:end]) for start, end in frames(view)]


def abandon(store: Store) -> None:
    """Leave the store as a kill would: nothing is written, the lock is released."""
    os.close(store._lock)
    store._lock = os.open(os.devnull, os.O_RDONLY)


def active_of(store: Store) -> int:
    assert store.catalog.active_segment_id is not None
    return store.catalog.active_segment_id


def test_written_values_are_read_back_in_frames(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, 1)
    path = journal_path(tmp_path, 1)
    assert contents_of(path) == []
    for values in ([b"first", b"second"], [b"third"]):
        journal.reserve(sum(map(len, values)))
        journal.add(values, sum(map(len, values)))
    assert contents_of(path) == [], "nothing is written before a sync asks for it"
    journal.write()
    journal.write()
    journal.add([b"fourth"], 6)
    journal.write()
    journal.sync()
    assert contents_of(path) == [b"firstsecondthird", b"fourth"]


def test_a_full_buffer_is_written(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, 1)
    for _ in range(99):
        journal.reserve(1_000)
        journal.add([bytes(1_000)], 1_000)
    assert [len(content) for content in contents_of(journal_path(tmp_path, 1))] == [66_000]


def test_a_torn_file_has_the_frames_before_the_tear(tmp_path: Path) -> None:
    dice = random.Random(1)
    journal = Journal.create(tmp_path, 1)
    values = [dice.randbytes(30) for _ in range(3)]
    for value in values:
        journal.add([value], len(value))
        journal.write()
    content = journal_path(tmp_path, 1).read_bytes()
    size = len(content) // 3
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1
        for torn in (content[:at], bytes(changed)):
            found = [torn[start:end] for start, end in frames(memoryview(torn))]
            assert found == values[: at // size]


def test_a_trimmed_journal_is_continued(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, 1)
    journal.reserve(6)
    journal.add([b"before"], 6)
    journal.trim()
    path = journal_path(tmp_path, 1)
    assert path.stat().st_size < 100
    again = Journal.reopen(tmp_path, 1)
    assert again is not None
    again.reserve(5)
    again.add([b"after"], 5)
    again.write()
    assert contents_of(path) == [b"before", b"after"]
    assert Journal.reopen(tmp_path, 2) is None
    assert contents_of(journal_path(tmp_path, 2)) == []


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="journal-00000001"):
        Journal.create(tmp_path / "missing", 1)


def test_small_batches_are_in_the_journal_once_they_are_synced_and_large_ones_are_not(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    small, large = batch_of(size=100), batch_of(size=5_000)
    append_now(store, number, small, large, small)
    store.run_due_tasks(NOW_MS + INTERVAL.sync_interval_ms)
    (content,) = contents_of(journal_path(tmp_path, active_of(store)))
    value_size = STAMP.size + len(small)
    assert len(content) == 2 * value_size
    assert content[STAMP.size : value_size] == as_stored(small, 0)
    assert content[value_size + STAMP.size :] == as_stored(small, 2)
    store.close()


def test_without_disk_space_for_the_journal_only_the_turn_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        turn = store.begin(NOW_MS)
        result = append(turn, number, batch_of())
        with pytest.raises(StorageError, match="the disk is full"):
            turn.commit()
        assert result.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert append_now(store, number, batch_of(size=5_000)) == [0]
    assert append_now(store, number, batch_of()) == [1]
    store.close()
    store = open_store(tmp_path, INTERVAL)
    assert append_now(store, number, batch_of()) == [2]
    store.close()


def test_a_closed_store_continues_its_segment_and_journal(tmp_path: Path) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    append_now(store, number, batch_of())
    active_id = active_of(store)
    store.close()
    store = open_store(tmp_path, INTERVAL)
    append_now(store, number, batch_of())
    assert active_of(store) == active_id
    store.close()
    batches = b"".join(contents_of(journal_path(tmp_path, active_id)))
    assert len(batches) == 2 * (STAMP.size + len(batch_of()))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_segment_whose_journal_is_missing_or_not_complete_is_sealed(
    tmp_path: Path, is_killed: bool
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    append_now(store, number, batch_of())
    old_id = active_of(store)
    if is_killed:
        abandon(store)
    else:
        store.close()
        journal_path(tmp_path, old_id).unlink()
    store = open_store(tmp_path, INTERVAL)
    assert active_of(store) > old_id
    assert segment_ids(tmp_path) == [old_id, active_of(store)]
    assert journal_ids(tmp_path) == [active_of(store)]
    assert append_now(store, number, batch_of()) == [1]
    store.close()


def test_every_turn_is_synced_while_no_segment_with_a_journal_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    append_now(store, number, batch_of())
    abandon(store)

    def refuse(*_: object) -> Journal:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "create", refuse)
        store = open_store(tmp_path, INTERVAL)
        old_id = active_of(store)
        turn = store.begin(NOW_MS)
        append(turn, number, batch_of())
        assert turn.commit().synced
        assert segment_ids(tmp_path) == [old_id]
    turn = store.begin(NOW_MS)
    append(turn, number, batch_of())
    assert not turn.commit().synced
    assert active_of(store) != old_id
    store.close()


def test_commit_durability_has_no_journal_and_removes_an_old_one(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    append_now(store, number, batch_of())
    first_id = active_of(store)
    store.close()
    store = open_store(tmp_path, COMMIT)
    append_now(store, number, batch_of())
    assert active_of(store) == first_id
    assert journal_ids(tmp_path) == []
    store.roll(NOW_MS)
    append_now(store, number, batch_of())
    second_id = active_of(store)
    assert journal_ids(tmp_path) == []
    abandon(store)
    store = open_store(tmp_path, COMMIT)
    assert active_of(store) == second_id, "what is synced with every turn need not be sealed"
    store.close()
    store = open_store(tmp_path, INTERVAL)
    assert journal_ids(tmp_path) == [active_of(store)] != [second_id]
    assert append_now(store, number, batch_of()) == [3]
    store.close()


def test_a_journal_is_removed_when_its_segment_is_sealed_or_at_the_next_opening(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, INTERVAL)
    number = create(store)
    append_now(store, number, batch_of())
    sealed_id = active_of(store)
    store.roll(NOW_MS)
    assert journal_ids(tmp_path) == [active_of(store)]
    store.close()
    journal_path(tmp_path, sealed_id).touch()
    store = open_store(tmp_path, INTERVAL)
    assert journal_ids(tmp_path) == [active_of(store)]
    store.close()


def test_a_journals_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    def is_open() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return any(os.path.realpath(link) == str(path) for link in links)

    journal = Journal.create(tmp_path, 1)
    path = journal_path(tmp_path, 1).resolve()
    assert is_open()
    del journal
    assert not is_open()
