"""The status table, also between processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.storage.environment import StorageError
from odradek.storage.status import (
    HIGH_WATERMARK,
    LAST_STABLE_OFFSET,
    LEADER_EPOCH,
    LOG_END_OFFSET,
    LOG_START_OFFSET,
    OFFSETS,
    ROLE,
    ReplicaRole,
    StatusTable,
)
from tests.support.disks import small_disk

ROOT = Path(__file__).parent.parent.parent


def test_a_reader_sees_the_owners_writes(tmp_path: Path) -> None:
    owner = StatusTable.create(tmp_path / "status", 64)
    reader = StatusTable.open(tmp_path / "status")
    for word, value in [
        (LOG_START_OFFSET, 1), (LAST_STABLE_OFFSET, 2), (HIGH_WATERMARK, 3),
        (LOG_END_OFFSET, 2**62), (LEADER_EPOCH, 5), (ROLE, ReplicaRole.FOLLOWER),
    ]:  # fmt: skip
        owner.set(63, word, value)
    assert reader.log_start_offset(63) == 1
    assert reader.last_stable_offset(63) == 2
    assert reader.high_watermark(63) == 3
    assert reader.consumer_offsets(63) == OFFSETS.pack(1, 2, 3)
    assert reader.log_end_offset(63) == 2**62
    assert reader.leader_epoch(63) == 5
    assert reader.role(63) is ReplicaRole.FOLLOWER
    assert reader.role(62) is ReplicaRole.ABSENT
    owner.clear(63)
    assert reader.role(63) is ReplicaRole.ABSENT
    assert reader.log_end_offset(63) == 0


def test_a_slot_beyond_the_table_is_an_error(tmp_path: Path) -> None:
    owner = StatusTable.create(tmp_path / "status", 8)
    with pytest.raises(IndexError):
        owner.log_end_offset(8)


def test_the_generation_continues_with_a_new_owner(tmp_path: Path) -> None:
    owner = StatusTable.create(tmp_path / "status", 8)
    reader = StatusTable.open(tmp_path / "status")
    first = reader.generation
    owner.raise_generation()
    owner.close()
    following = StatusTable.create(tmp_path / "status", 8)
    following.raise_generation()
    assert reader.generation == first + 2


def test_readers_see_the_writes_of_a_new_owner(tmp_path: Path) -> None:
    first = StatusTable.create(tmp_path / "status", 8)
    reader = StatusTable.open(tmp_path / "status")
    first.set(3, LOG_END_OFFSET, 9)
    first.close()
    second = StatusTable.create(tmp_path / "status", 4)
    assert second.slot_count == 8, "a table does not shrink under its readers"
    assert reader.log_end_offset(3) == 9
    second.set(3, LOG_END_OFFSET, 10)
    assert reader.log_end_offset(3) == 10


def test_watches_of_all_routers_are_taken_once(tmp_path: Path) -> None:
    owner = StatusTable.create(tmp_path / "status", 8)
    reader = StatusTable.open(tmp_path / "status")
    assert owner.take_watch(5) == 0
    reader.set_watch(5)
    reader.set_watch(5)
    reader.set_watch(5, router=7)
    assert owner.take_watch(4) == 0
    assert owner.take_watch(5) == 0b1000_0001
    assert owner.take_watch(5) == 0


def test_clearing_a_slot_keeps_its_watches(tmp_path: Path) -> None:
    owner = StatusTable.create(tmp_path / "status", 8)
    owner.set(2, ROLE, ReplicaRole.LEADER)
    owner.set_watch(2)
    owner.clear(2)
    assert owner.take_watch(2) == 1


def test_a_file_that_is_no_status_table_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        StatusTable.open(tmp_path / "status")
    (tmp_path / "status").write_bytes(b"")
    with pytest.raises(StorageError):
        StatusTable.open(tmp_path / "status")
    (tmp_path / "status").write_bytes(bytes(9000))
    with pytest.raises(StorageError):
        StatusTable.open(tmp_path / "status")


_WATCHER = """
import sys
from pathlib import Path
from odradek.storage.status import StatusTable
table = StatusTable.open(Path(sys.argv[1]))
seen = 0
print("ready", flush=True)
while seen < int(sys.argv[2]):
    table.set_watch(0)
    end = table.log_end_offset(0)
    if end > seen:
        seen = end
        continue
    sys.stdin.readline()  # the owner's notice
print(seen, flush=True)
"""


def test_no_watch_is_missed_between_two_processes(tmp_path: Path) -> None:
    """The watcher sleeps only after it has set its watch and seen nothing new. The owner writes
    only if it has taken a watch after publishing. If one were lost, both would wait for ever."""
    owner = StatusTable.create(tmp_path / "status", 8)
    rounds = 3_000
    with subprocess.Popen(
        [sys.executable, "-c", _WATCHER, str(tmp_path / "status"), str(rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        for end in range(1, rounds + 1):
            owner.set(0, LOG_END_OFFSET, end)
            owner.publish()
            if owner.take_watch(0):
                watcher.stdin.write("\n")
                watcher.stdin.flush()
        assert watcher.stdout.readline() == f"{rounds}\n"
        watcher.stdin.close()
        assert watcher.wait(timeout=10) == 0


def test_slots_without_disk_space_are_a_storage_error(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        table = StatusTable.create(disk.folder / "status", 1 << 14)
        table.allocate_slots(64)
        disk.fill()
        table.allocate_slots(64)
        table.set(63, LOG_END_OFFSET, 7)
        with pytest.raises(StorageError, match="No space left"):
            table.allocate_slots(65)
        disk.empty()
        table.allocate_slots(65)
        table.set(64, LOG_END_OFFSET, 8)
        assert (table.log_end_offset(63), table.log_end_offset(64)) == (7, 8)
        table.close()
