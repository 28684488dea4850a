"""The state of a store after a kill: everything that was committed, with few reads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL
from odradek.storage import log_loader
from odradek.storage.append import Turn
from odradek.storage.layout import segment_path
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import PartitionLog
from odradek.storage.reader import StoreReader
from odradek.storage.segment import Segment
from odradek.storage.settings import Durability, StoreOptions
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import (
    NOW_MS,
    OPTIONS,
    append,
    append_now,
    batch_of,
    create,
    offsets_of,
    open_store,
    read_all,
)

ROOT = Path(__file__).parent.parent.parent


def abandon(store: Store) -> None:
    """Leave the store as a kill would: nothing is written, the lock is released."""
    os.close(store._lock)
    store._lock = os.open(os.devnull, os.O_RDONLY)


def state_of(log: PartitionLog) -> dict[str, object]:
    """The state of a log that must not depend on its history."""
    volatile = {"dirty_producers", "unsealed_producers", "producer_undo", "flushed_offset",
                "unchecked_batches", "active_first_append_ms", "indexer", "epochs",
                "undecided", "client_bytes", "client_records"}  # fmt: skip
    state = {name: getattr(log, name) for name in PartitionLog.__slots__ if name not in volatile}
    state["max_timestamp"] = log.indexer.max_timestamp
    state["epochs"] = log.epochs.entries
    state["ongoing"] = dict(log.undecided.ongoing)
    return state


@pytest.mark.parametrize("checkpoint_batches", [1, 3, 10_000])
def test_a_killed_store_has_the_same_state_after_opening(
    tmp_path: Path, checkpoint_batches: int
) -> None:
    options = StoreOptions(
        # With it the active segment stays the active one, and all of it is read.
        durability=Durability.COMMIT,
        segment_map_bytes=64 << 20,
        status_slots=64,
        checkpoint_batches=checkpoint_batches,
    )
    store = open_store(tmp_path, options)
    numbers = [create(store, partition) for partition in range(4)]
    for round_ in range(25):
        for number in numbers:
            store.set_leader_epoch(number, round_ // 10)
        turn = store.begin(NOW_MS + round_)
        for number in numbers[: 1 + round_ % 4]:
            batch = batch_of(
                2,
                timestamp=NOW_MS + round_,
                producer_id=round_ % 7,
                producer_epoch=0,
                base_sequence=2 * (round_ // 7),
                attributes=TRANSACTIONAL if round_ % 5 == 0 else 0,
            )
            append(turn, number, batch, leader_epoch=round_ // 10)
        turn.commit()
        if round_ == 12:
            store.roll(NOW_MS)
            store.log_starts.delete_records(numbers[0], 5)
            store.delete_partitions([numbers[3]])
            numbers.pop()
    states = {number: state_of(log) for number, log in store.partitions().items()}
    abandon(store)
    store = open_store(tmp_path, options)
    for number in numbers:
        # An epoch in which nothing was appended is told by the metadata once more.
        store.set_leader_epoch(number, 2)
    assert {number: state_of(log) for number, log in store.partitions().items()} == states
    store.roll(NOW_MS)
    states = {number: state_of(log) for number, log in store.partitions().items()}
    store.close()
    store = open_store(tmp_path, options)
    for number in numbers:
        store.set_leader_epoch(number, 2)
    assert {number: state_of(log) for number, log in store.partitions().items()} == states
    store.close()


def test_a_log_start_inside_the_last_batch_of_the_active_segment_does_not_move_the_end(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(10))
    store.log_starts.delete_records(number, 4)
    abandon(store)
    store = open_store(tmp_path)
    assert append_now(store, number, batch_of(1)) == [10]
    store.close()


def test_opening_reads_only_the_batches_since_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, StoreOptions(status_slots=64, checkpoint_batches=10))
    number = create(store)
    for _ in range(95):
        append_now(store, number, batch_of())
    abandon(store)
    advanced = 0
    original = PartitionLog.advance

    def count(self: PartitionLog, *header: object, **fields: object) -> object:
        nonlocal advanced
        advanced += 1
        return original(self, *header, **fields)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(PartitionLog, "advance", count)
    store = open_store(tmp_path)
    assert advanced == 5
    assert store.partitions()[number].log_end_offset == 95
    store.close()
    advanced = 0
    open_store(tmp_path).close()
    assert advanced == 0


def test_files_that_are_not_in_the_catalog_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close()
    Segment.create(tmp_path, 77, map_bytes=1 << 20)
    assert segment_path(tmp_path, 77).exists()
    store = open_store(tmp_path)
    assert not segment_path(tmp_path, 77).exists()
    assert len(list(tmp_path.glob("segment-*"))) == 2
    store.close()


def test_numbers_of_a_segment_are_found_without_reading_its_batches(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    numbers = [create(store, partition) for partition in range(9)]
    for number in (numbers[2], numbers[5], numbers[8]):
        append_now(store, number, *[batch_of()] * 20)
    assert log_loader.numbers_in(store._segment) == {numbers[2], numbers[5], numbers[8]}
    store.close()


_OWNER = """
import sys
from pathlib import Path
from tests.support.stores import *
store = open_store(Path(sys.argv[1]))
numbers = [create(store, partition) for partition in range(3)]
ends = {number: store.partitions()[number].log_end_offset for number in numbers}
for round_ in range(10**9):
    turn = store.begin(NOW_MS)
    results = []
    for number in numbers:
        size = (20, 300, 9_000)[(round_ + number) % 3]
        entry = store.partitions()[number].producers.get(4)
        sequence = 0 if entry is None else entry.last_sequence + 1
        batch = batch_of(2, size=size, producer_id=4, producer_epoch=0, base_sequence=sequence)
        results.append((number, sequence, append(turn, number, batch)))
    turn.commit()
    print(*[f"{n}:{s}:{r.base_offset}" for n, s, r in results], flush=True)
    store.run_due_tasks(NOW_MS + round_)
    if round_ % 50 == 49:
        store.roll(NOW_MS)
"""


def test_a_kill_neither_loses_nor_duplicates_acknowledged_batches(tmp_path: Path) -> None:
    acknowledged: dict[int, tuple[int, int]] = {}
    for kill_after in (7, 60, 101):
        with subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as owner:
            assert owner.stdout is not None
            for _ in range(kill_after):
                for answer in owner.stdout.readline().split():
                    number, sequence, offset = map(int, answer.split(":"))
                    assert acknowledged.get(number, (-2, -2)) == (sequence - 2, offset - 2)
                    acknowledged[number] = (sequence, offset)
            owner.send_signal(signal.SIGKILL)
            for line in owner.stdout.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    for answer in line.split():
                        number, sequence, offset = map(int, answer.split(":"))
                        acknowledged[number] = (sequence, offset)
        store = open_store(tmp_path)
        reader = StoreReader(tmp_path)
        for number, (sequence, offset) in acknowledged.items():
            offsets = offsets_of(read_all(reader, number))
            assert offsets == list(range(0, len(offsets) * 2, 2))
            assert offsets[-1] in (offset, offset + 2), "one turn may be committed and not told"
            retry = batch_of(2, size=1, producer_id=4, producer_epoch=0, base_sequence=sequence)
            turn = store.begin(NOW_MS)
            result = append(turn, number, retry)
            turn.commit()
            assert (result.error_code, result.base_offset) == (ErrorCode.NONE, offset)
            if offsets[-1] != offset:
                acknowledged[number] = (sequence + 2, offset + 2)
        reader.close()
        store.close()


def test_salvage_in_several_turns_restores_all_batches(tmp_path: Path) -> None:
    """Feeds a store with another one's batches as salvage does, in several commits."""
    source = open_store(tmp_path / "source")
    target = open_store(tmp_path / "target", OPTIONS)
    numbers = [create(source, partition) for partition in range(2)]
    assert [create(target, partition) for partition in range(2)] == numbers
    for i in range(40):
        append_now(source, numbers[i % 2], batch_of(1 + i % 3, size=1_000 * (i % 9)))
    turn: Turn = target.begin(NOW_MS)
    for stored in source._segment.iterate():
        append = LogAppend(stored.batch, 0, len(stored.batch), origin=AppendOrigin.REPLICATION)
        turn.append(stored.number, append)
    turn.commit()
    for number in numbers:
        assert read_all(StoreReader(tmp_path / "target"), number) == read_all(
            StoreReader(tmp_path / "source"), number
        )
    source.close()
    target.close()
