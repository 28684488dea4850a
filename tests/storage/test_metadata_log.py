"""The metadata log against a list in memory, across reopening and SIGKILL."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.storage.metadata_log import (
    MetadataLog,
    MetadataLogEntry,
    MetadataLogError,
    MetadataLogFullError,
    StoredHardState,
)
from tests.support.disks import small_disk
from tests.support.metadata_logs import append_payloads

APPENDER = """
import sys
from pathlib import Path
from odradek.storage.metadata_log import StoredHardState, MetadataLog
from tests.support.metadata_logs import append_payloads

log = MetadataLog.open(Path(sys.argv[1]))
while True:
    first = log.last_index + 1
    payloads = [b"%d:" % index + b"x" * (index * 977 % 9000) for index in range(first, first + 5)]
    hard_state = StoredHardState(first, 1, first - 1)
    last = append_payloads(log, payloads, term=first, hard_state=hard_state)
    sys.stdout.write(f"{last}\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metadata"


def payloads_of(log: MetadataLog) -> list[bytes]:
    return [entry.data for entry in log.read_entries()]


def write_snapshot(log: MetadataLog, *, index: int, term: int, content: bytes) -> None:
    writer = log.begin_snapshot(index=index, term=term, configuration=b"voters")
    for start in range(0, len(content), 1000):
        assert writer.size == start
        writer.write(content[start : start + 1000])
    writer.commit()


def test_a_new_log_is_empty_and_starts_at_index_one(folder: Path) -> None:
    log = MetadataLog.open(folder)
    assert (log.first_index, log.last_index) == (1, 0)
    assert log.hard_state == StoredHardState(term=0, vote=None, commit=0)
    assert log.snapshot is None
    assert log.term_at(0) == 0
    assert log.read_entries() == []
    log.close()


def test_entries_of_all_sizes_are_read_after_reopening(folder: Path) -> None:
    payloads = [b"", b"a", bytes(1899), bytes(1900), bytes(1901), bytes(3800), b"z" * 300_000]
    log = MetadataLog.open(folder)
    assert append_payloads(log, payloads, term=3) == len(payloads)
    log.close()
    log = MetadataLog.open(folder)
    assert payloads_of(log) == payloads
    assert {entry.term for entry in log.read_entries()} == {3}
    log.close()


def test_an_entry_at_a_known_index_replaces_the_suffix(folder: Path) -> None:
    # Raft 5.3: "If an existing entry conflicts with a new one, delete the existing entry and all
    # that follow it."
    log = MetadataLog.open(folder)
    append_payloads(log, [b"1", b"2" * 5000, b"3", b"4"], term=1)
    log.append_entries([MetadataLogEntry(2, 2, b"two")])
    assert [(e.index, e.term, e.data) for e in log.read_entries()] == [(1, 1, b"1"), (2, 2, b"two")]
    with pytest.raises(AssertionError, match="gap"):
        log.append_entries([MetadataLogEntry(4, 2, b"four")])
    log.close()


def test_hard_state_is_kept_with_the_entries_of_its_commit(folder: Path) -> None:
    log = MetadataLog.open(folder)
    append_payloads(log, [b"x"], term=7, hard_state=StoredHardState(7, 2, 0))
    log.append_entries((), hard_state=StoredHardState(8, None, 1))
    log.close()
    log = MetadataLog.open(folder)
    assert log.hard_state == StoredHardState(8, None, 1)
    assert log.last_index == 1
    log.close()


def test_a_second_opener_is_refused(folder: Path) -> None:
    log = MetadataLog.open(folder)
    with pytest.raises(MetadataLogError, match="in use"):
        MetadataLog.open(folder)
    log.close()
    MetadataLog.open(folder).close()


def test_an_append_to_a_full_map_fails_and_changes_nothing(folder: Path) -> None:
    log = MetadataLog.open(folder, map_bytes=1 << 20)
    append_payloads(log, [b"kept"], term=1)
    with pytest.raises(MetadataLogFullError):
        append_payloads(log, [bytes(2 << 20)], term=1)
    assert log.last_index == 1
    append_payloads(log, [b"next"], term=1)
    assert payloads_of(log) == [b"kept", b"next"]
    log.close()


def test_a_snapshot_replaces_the_prefix_after_truncate_prefix(folder: Path) -> None:
    log = MetadataLog.open(folder)
    append_payloads(log, [b"%d" % at for at in range(1, 11)], term=4)
    write_snapshot(log, index=8, term=4, content=b"state" * 999)
    assert log.first_index == 1
    log.truncate_prefix(7)
    assert (log.first_index, log.last_index) == (7, 10)
    assert (log.term_at(6), log.term_at(5), log.term_at(7)) == (4, None, 4)
    assert [entry.index for entry in log.read_entries()] == [7, 8, 9, 10]
    log.close()
    log = MetadataLog.open(folder)
    assert (log.first_index, log.last_index, log.term_at(6)) == (7, 10, 4)
    assert log.snapshot_content() == b"state" * 999
    mark = log.snapshot
    assert mark is not None
    assert (mark.index, mark.term, mark.size, mark.configuration) == (8, 4, 4995, b"voters")
    log.truncate_prefix(9)
    assert payloads_of(log) == [b"9", b"10"]
    log.close()


def test_a_snapshot_beyond_the_log_drops_the_log(folder: Path) -> None:
    # Raft 7: a snapshot with what the follower does not have replaces its entire log.
    log = MetadataLog.open(folder)
    append_payloads(log, [b"old"] * 5, term=1)
    write_snapshot(log, index=20, term=3, content=b"leader's state")
    assert (log.first_index, log.last_index, log.term_at(20)) == (21, 20, 3)
    assert append_payloads(log, [b"new"], term=3) == 21
    log.close()
    log = MetadataLog.open(folder)
    assert [(e.index, e.data) for e in log.read_entries()] == [(21, b"new")]
    log.close()


def test_a_conflicting_entry_at_the_snapshots_index_drops_the_log(folder: Path) -> None:
    log = MetadataLog.open(folder)
    append_payloads(log, [b"old"] * 5, term=1)
    write_snapshot(log, index=3, term=2, content=b"other history")
    assert (log.first_index, log.last_index) == (4, 3)
    log.close()


def test_an_unfinished_snapshot_does_not_replace_the_last_one(folder: Path) -> None:
    log = MetadataLog.open(folder)
    append_payloads(log, [b"e"] * 4, term=1)
    write_snapshot(log, index=2, term=1, content=b"first")
    log.begin_snapshot(index=4, term=1).write(b"sec")
    log.begin_snapshot(index=3, term=1).write(b"thi")
    assert log.snapshot_content() == b"first"
    log.close()
    assert sorted(path.name for path in folder.glob("snapshot-*")) == ["snapshot-2-1"]
    (folder / "snapshot-4-1.unfinished").write_bytes(b"sec")  # as after a crash
    (folder / "snapshot-4-1").write_bytes(b"second")  # a crash between name and mark
    log = MetadataLog.open(folder)
    assert log.snapshot_content() == b"first"
    assert sorted(path.name for path in folder.glob("snapshot-*")) == ["snapshot-2-1"]
    log.begin_snapshot(index=4, term=1).abort()
    write_snapshot(log, index=4, term=1, content=b"second")
    assert sorted(path.name for path in folder.glob("snapshot-*")) == ["snapshot-4-1"]
    log.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_corrupt_snapshot_is_an_error_with_its_path(folder: Path, damage: str) -> None:
    log = MetadataLog.open(folder)
    write_snapshot(log, index=2, term=1, content=b"state" * 100)
    log.close()
    path = folder / "snapshot-2-1"
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[100] ^= 1
        path.write_bytes(content[:-3] if damage == "cut" else content)
    with pytest.raises(MetadataLogError, match="snapshot-2-1"):
        MetadataLog.open(folder)


@pytest.mark.parametrize("seed", range(5))
def test_random_histories_equal_a_list(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    log = MetadataLog.open(folder)
    model: list[tuple[int, int, bytes]] = []  # index, term, data
    first, term = 1, 1
    for _ in range(150):
        last = first + len(model) - 1
        match dice.choice(["append", "append", "append", "replace", "snapshot", "open"]):
            case "append":
                batch = [
                    dice.randbytes(dice.choice([3, 50, 5000])) for _ in range(dice.randint(1, 20))
                ]
                append_payloads(log, batch, term=term)
                model += [(last + 1 + at, term, data) for at, data in enumerate(batch)]
            case "replace" if model:
                term += 1
                at = dice.randrange(len(model))
                entry = MetadataLogEntry(first + at, term, b"replaced")
                log.append_entries([entry])
                model[at:] = [(entry.index, entry.term, entry.data)]
            case "snapshot" if model:
                at = dice.randrange(len(model))
                write_snapshot(log, index=model[at][0], term=model[at][1], content=b"s" * at)
                kept_from = dice.randint(first, model[at][0] + 1)
                log.truncate_prefix(kept_from)
                del model[: kept_from - first]
                first = kept_from
            case "open":
                log.close()
                log = MetadataLog.open(folder)
            case _:
                pass
        assert (log.first_index, log.last_index) == (first, first + len(model) - 1)
        assert [(e.index, e.term, e.data) for e in log.read_entries()] == model
    log.close()


@pytest.mark.parametrize("answers", [1, 7, 20])
def test_appends_that_returned_survive_sigkill(folder: Path, answers: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    answered = 0
    for _ in range(answers):
        answered = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    log = MetadataLog.open(folder)
    assert log.last_index >= answered
    assert log.last_index % 5 == 0, "half a batch"
    assert log.hard_state == StoredHardState(log.last_index - 4, 1, log.last_index - 5)
    for entry in log.read_entries():
        assert entry.data == b"%d:" % entry.index + b"x" * (entry.index * 977 % 9000)
        assert entry.term == (entry.index - 1) // 5 * 5 + 1
    log.close()


def test_bootstrap_voters_are_stored(folder: Path) -> None:
    log = MetadataLog.open(folder)
    assert log.bootstrap_voters is None
    log.save_bootstrap_voters(b"0,1,2")
    log.close()
    log = MetadataLog.open(folder)
    assert log.bootstrap_voters == b"0,1,2"
    log.close()


def test_a_snapshot_writer_has_size_and_checksum_before_the_commit(folder: Path) -> None:
    log = MetadataLog.open(folder)
    append_payloads(log, [b"x"], term=1)
    writer = log.begin_snapshot(index=1, term=1)
    writer.write(b"some")
    writer.write(b"thing")
    told = (writer.size, writer.checksum)
    mark = writer.commit()
    assert told == (mark.size, mark.checksum)
    log.close()


def test_space_is_counted_without_the_reserve(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        log = MetadataLog.open(disk.folder)
        assert log.has_space_for(1 << 20)
        assert not log.has_space_for(8 << 20)
        disk.fill(leave_bytes=1 << 20)
        assert log.has_space_for(100)
        assert not log.has_space_for(1 << 20)
        disk.fill()
        assert not log.has_space_for(100)
        log.close()


def test_only_the_user_of_the_node_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    folder.mkdir(mode=0o755)
    MetadataLog.open(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
