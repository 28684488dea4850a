"""A torn segment: found batches are right, and all right batches are found."""

import random
import struct
from pathlib import Path

import msgspec
import pytest

from odradek.storage.layout import KEY, STAMP, journal_path, segment_path
from odradek.storage.reader import StoreReader
from odradek.storage.recovery import Examination, boot_id, may_be_torn
from odradek.storage.segment import Segment
from odradek.storage.settings import Durability, StoreOptions
from odradek.storage.store import Store
from tests.support.power_loss import (
    PAGE,
    WriteHistory,
    WrittenBatch,
    make_batch,
    mix_versions,
    survivors,
    tear,
    write_history,
    write_turn,
)
from tests.support.stores import (
    NOW_MS,
    append_now,
    as_stored,
    batch_of,
    create,
    open_store,
    read_all,
    set_durability,
    wait_for_sync,
)

TORN_CASES = 320
TORN_STORES = 80
SYNCED_STORES = 80
GROUPS = 8


def examine(path: Path, content: bytes, history: WriteHistory) -> Examination:
    path.write_bytes(content)
    return Examination(path, log_ends=history.log_ends)


def salvaged(examination: Examination) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for number, batch in examination.salvaged_batches():
        found.setdefault(number, []).append(bytes(batch))
    return found


def by_partition(batches: list[WrittenBatch]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for written in batches:
        found.setdefault(written.number, []).append(written.batch)
    return found


@pytest.mark.parametrize("group", range(GROUPS))
def test_salvage_of_a_torn_segment_has_all_batches_up_to_the_first_gap(
    tmp_path: Path, group: int
) -> None:
    for seed in range(group, TORN_CASES, GROUPS):
        dice = random.Random(seed)
        history = write_history(tmp_path / str(seed), dice)
        torn = tear(history, dice)
        examination = examine(tmp_path / "torn", torn, history)
        expected = {
            number: [written.batch for written in batches]
            for number, batches in survivors(history, torn).items()
        }
        assert salvaged(examination) == expected, f"seed {seed}"
        if torn == history.unsynced:
            assert examination.is_whole, f"seed {seed}: {examination.fault}"
        if examination.is_whole:
            assert_lmdb_agrees(tmp_path / f"whole-{seed}", torn, expected)


def assert_lmdb_agrees(folder: Path, content: bytes, expected: dict[int, list[bytes]]) -> None:
    """LMDB opens a file that passed, and it has the expected content."""
    folder.mkdir()
    segment_path(folder, 1).write_bytes(content)
    found: dict[int, list[bytes]] = {}
    for batch in Segment.open(folder, 1).iterate():
        found.setdefault(batch.number, []).append(bytes(batch.batch))
    assert found == expected


def test_an_untouched_segment_is_whole(tmp_path: Path) -> None:
    history = write_history(tmp_path / "segment", random.Random(1))
    examination = examine(tmp_path / "copy", history.unsynced, history)
    assert examination.fault is None
    assert salvaged(examination) == by_partition(history.batches)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\0" * 3 * PAGE, b"\xff" * 3 * PAGE])
def test_an_empty_file_is_torn(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "torn").write_bytes(content)
    examination = Examination(tmp_path / "torn", log_ends={})
    assert not examination.is_whole
    assert list(examination.salvaged_batches()) == []


@pytest.mark.parametrize("seed", range(20))
def test_salvage_of_random_bytes_has_only_written_batches(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    history = write_history(tmp_path / "segment", dice)
    originals = by_partition(history.batches)
    for _ in range(10):
        content = bytearray(history.unsynced)
        for _ in range(dice.choice([1, 10, 1000])):
            content[dice.randrange(len(content))] = dice.randrange(256)
        for number, batches in salvaged(
            examine(tmp_path / "torn", bytes(content), history)
        ).items():
            # Neither base offset nor leader epoch is covered by a CRC: a flip there may pass, but
            # the contents and their order are the original ones.
            payloads = [batch[17:] for batch in batches]
            assert payloads == [batch[17:] for batch in originals[number][: len(payloads)]]


def test_batches_of_turns_whose_meta_page_was_lost_are_found(tmp_path: Path) -> None:
    dice = random.Random(3)
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    path = segment_path(tmp_path, 1)
    first = make_batch(dice, base_offset=0, size=5000)
    end = struct.unpack_from(">i", first, 23)[0] + 1
    second = make_batch(dice, base_offset=end, size=5000)
    write_turn(segment, 1, before=0, batch=first)
    metas = path.read_bytes()[: 2 * PAGE]
    write_turn(segment, 1, before=end, batch=second)
    torn = metas + path.read_bytes()[2 * PAGE :]
    (tmp_path / "torn").write_bytes(torn)
    examination = Examination(tmp_path / "torn", log_ends={})
    assert examination.fault is not None
    assert "the tree does not have" in examination.fault
    assert salvaged(examination) == {1: [first, second]}


def test_an_older_tree_under_the_newest_meta_page_is_detected(tmp_path: Path) -> None:
    dice = random.Random(5)
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    path = segment_path(tmp_path, 1)
    batches = []
    end = 0
    for _ in range(4):
        batches.append(make_batch(dice, base_offset=end, size=5000))
        write_turn(segment, 1, before=end, batch=batches[-1])
        end += struct.unpack_from(">i", batches[-1], 23)[0] + 1
    content = bytearray(path.read_bytes())
    transaction_ids = [
        struct.unpack_from("<Q", content, at + 16 + 24 + 96 + 8)[0] for at in (0, PAGE)
    ]
    newest, older = (0, PAGE) if transaction_ids[0] > transaction_ids[1] else (PAGE, 0)
    main_at = 16 + 24 + 48  # behind page head, magic to map size, and the tree of free pages
    content[newest + main_at : newest + main_at + 48] = content[
        older + main_at : older + main_at + 48
    ]
    (tmp_path / "torn").write_bytes(content)
    examination = Examination(tmp_path / "torn", log_ends={})
    assert not examination.is_whole
    assert salvaged(examination) == {1: batches}


def test_a_store_may_be_torn_if_it_was_not_closed_before_a_reboot() -> None:
    def asked(*, was_closed: bool, then: str, now: str) -> bool:
        return may_be_torn(was_closed=was_closed, boot_id_then=then, boot_id_now=now)

    assert not asked(was_closed=False, then="a", now="a")
    assert asked(was_closed=False, then="a", now="b")
    assert asked(was_closed=False, then="", now="b")
    assert asked(was_closed=False, then="", now="")
    assert not asked(was_closed=True, then="a", now="b")
    assert boot_id() == boot_id()


def pull_the_plug(store: Store, folder: Path, synced: bytes, dice: random.Random) -> WriteHistory:
    """Copy an open store as the disk has it after a power loss; only the active segment was not
    synced. Returns the batches that must survive."""
    folder.mkdir()
    active_id = store.catalog.active_segment_id
    assert active_id is not None
    log_ends = {number: row.log_end_offset for number, row in store.catalog.partitions.items()}
    active = segment_path(store.directory, active_id)
    batches = []
    with Segment.open(store.directory, active_id).begin() as transaction:
        cursor = transaction.cursor(Segment.open(store.directory, active_id).batches)
        for key, value in cursor:
            number, base_offset = KEY.unpack(key)
            _, turn, before = STAMP.unpack_from(value)
            batch = bytes(value[STAMP.size :])
            end_offset = base_offset + struct.unpack_from(">i", batch, 23)[0] + 1
            batches.append(WrittenBatch(number, turn, before, base_offset, end_offset, batch))
    history = WriteHistory(synced, active.read_bytes(), batches, log_ends)
    for path in store.directory.iterdir():
        if not path.name.endswith("-lock"):
            (folder / path.name).write_bytes(path.read_bytes())
    torn = tear(history, dice)
    segment_path(folder, active_id).write_bytes(torn)
    return history._replace(unsynced=torn)


@pytest.mark.parametrize("group", range(GROUPS))
def test_after_a_power_loss_a_store_has_all_intact_batches(
    tmp_path: Path, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(group, TORN_STORES, GROUPS):
        dice = random.Random(seed)
        store = open_store(tmp_path / str(seed))
        numbers = [create(store, partition) for partition in range(4)]
        sequences = dict.fromkeys(numbers, 0)
        synced = b""
        turns = dice.randint(3, 25)
        synced_at, rolled_at = dice.randrange(turns), dice.randrange(turns)
        for at in range(turns):
            for _ in range(dice.randint(1, 3)):
                number = dice.choice(numbers)
                count = dice.randint(1, 4)
                batch = batch_of(
                    count,
                    size=dice.choice([5, 200, 1500, 5000]),
                    producer_id=number,
                    producer_epoch=0,
                    base_sequence=sequences[number],
                )
                append_now(store, number, batch)
                sequences[number] += count
            if at == rolled_at:
                store.roll(NOW_MS)
                synced = b""
            if at == synced_at or not synced:
                active_id = store.catalog.active_segment_id
                synced = segment_path(store.directory, active_id or 0).read_bytes()
        copy = tmp_path / f"{seed}-after"
        history = pull_the_plug(store, copy, synced, dice)
        sealed = {
            number: read_all_of(store, number)[: _sealed_count(store, number)] for number in numbers
        }
        store.close()
        expected = survivors(history, history.unsynced)

        with monkeypatch.context() as patch:
            patch.setattr("odradek.storage.recovery.boot_id", lambda: "another boot")
            after = open_store(copy)
        for number in numbers:
            found = read_all_of(after, number)
            salvaged = [written.batch for written in expected.get(number, [])]
            assert found == sealed[number] + salvaged, f"seed {seed}, partition {number}"
            end = sum(struct.unpack_from(">i", batch, 57)[0] for batch in found)
            assert after.partitions()[number].log_end_offset == end
            # The producer goes on where its last whole batch ended.
            batch = batch_of(1, producer_id=number, producer_epoch=0, base_sequence=end)
            assert append_now(after, number, batch) == [end]
        after.close()


class PowerLossHistory:
    """A store up to a power loss: the possible content of its active segment and journal on the
    disk, and the batches that it must not lose.

    Everything committed at the begin of a sync is promised once the sync has ended. By then every
    page is on disk as it was at the begin, or in a later version. The kernel writes pages at any
    time, so each page may have any version since the begin of the last completed sync.
    """

    def __init__(self, folder: Path, options: StoreOptions, dice: random.Random) -> None:
        self.store = open_store(folder, options)
        self.numbers = [create(self.store, partition) for partition in range(dice.randint(1, 6))]
        self.appended: dict[int, list[bytes]] = {number: [] for number in self.numbers}
        self._dice = dice
        self._now_ms = NOW_MS
        self.versions: list[tuple[bytes, bytes]] = []
        """Segment and journal after each turn since the begin of the last complete sync."""
        self.is_syncing = False
        self.begin_sync()
        self.end_sync()

    def files(self) -> tuple[Path, Path]:
        active_id = self.store.catalog.active_segment_id or 0
        folder = self.store.directory
        return segment_path(folder, active_id), journal_path(folder, active_id)

    def see(self) -> None:
        segment, journal = self.files()
        content = journal.read_bytes().rstrip(b"\0") if journal.exists() else b""
        self.versions.append((segment.read_bytes(), content))

    def begin_sync(self) -> None:
        self.is_syncing = True
        self._counts = {number: len(batches) for number, batches in self.appended.items()}
        self._begun_at = len(self.versions)
        self.see()

    def end_sync(self) -> None:
        self.is_syncing = False
        del self.versions[: self._begun_at]
        self.promised = {n: self.appended[n][:count] for n, count in self._counts.items()}

    def switch(self) -> None:
        """Change the durability while the store is open."""
        is_commit = self.store.options.durability is Durability.COMMIT
        if is_commit:
            self.begin_sync()
            self.end_sync()
        set_durability(self.store, Durability.INTERVAL if is_commit else Durability.COMMIT)
        active_id = self.store.catalog.active_segment_id
        self.store.run_due_tasks(self._now_ms)
        if self.store.catalog.active_segment_id != active_id:
            self.begin_sync()
            self.end_sync()

    def play(self, turns: int, *, switches: bool = False) -> None:
        dice, store = self._dice, self.store
        for _ in range(turns):
            is_first = switches and dice.random() < 0.05
            if is_first:
                self.switch()
            for _ in range(dice.randint(1, 3)):
                if store.options.durability is Durability.COMMIT and not is_first:
                    self.begin_sync()  # the one of the turn before
                    self.end_sync()
                is_first = False
                number = dice.choice(self.numbers)
                batch = batch_of(size=dice.choice([5, 50, 200, 900, 1500, 5000]))
                (offset,) = append_now(store, number, batch, now_ms=self._now_ms)
                self.appended[number].append(as_stored(batch, offset))
                self.see()
            if store.options.durability is Durability.COMMIT:
                continue
            if self.is_syncing and dice.random() < 0.3:
                self.end_sync()
            elif not self.is_syncing and dice.random() < 0.2:
                wait_for_sync(store._flusher._syncer)
                self._now_ms += store.options.sync_interval_ms
                store.run_due_tasks(self._now_ms)
                self.begin_sync()
            elif dice.random() < 0.03:
                store.roll(self._now_ms)
                self.begin_sync()
                self.end_sync()

    def pull(self, folder: Path) -> None:
        """Copy the store as it may be on the disk now."""
        folder.mkdir()
        for path in self.store.directory.iterdir():
            if not path.name.endswith("-lock"):
                (folder / path.name).write_bytes(path.read_bytes())
        segment, journal = self.files()
        segments, journals = zip(*self.versions, strict=True)
        (folder / segment.name).write_bytes(mix_versions(segments, self._dice))
        if journal.exists():
            (folder / journal.name).write_bytes(mix_versions(journals, self._dice))


def lost_of(
    tmp_path: Path,
    seed: int,
    durability: Durability,
    monkeypatch: pytest.MonkeyPatch,
    *,
    with_journal: bool = True,
    switches: bool = False,
) -> int:
    """Run a store up to a power loss; returns the number of lost promised batches. The recovered
    batches must be a prefix of the log."""
    dice = random.Random(seed)
    options = StoreOptions(durability=durability, segment_map_bytes=64 << 20, status_slots=64)
    plug = PowerLossHistory(tmp_path / f"{durability}-{seed}", options, dice)
    plug.play(dice.randint(5, 40), switches=switches)
    if switches:
        options = msgspec.structs.replace(options, durability=dice.choice(list(Durability)))
    copy = tmp_path / f"{durability}-{seed}-after-{with_journal}"
    plug.pull(copy)
    plug.store.close()
    if not with_journal:
        (copy / plug.files()[1].name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("odradek.storage.recovery.boot_id", lambda: "another boot")
        after = open_store(copy, options)
    lost = 0
    for number in plug.numbers:
        found = read_all_of(after, number)
        assert found == plug.appended[number][: len(found)], f"seed {seed}, partition {number}"
        lost += max(0, len(plug.promised[number]) - len(found))
    after.close()
    return lost


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("group", range(GROUPS))
def test_synced_batches_survive_any_later_power_loss(
    tmp_path: Path, group: int, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(group, SYNCED_STORES, GROUPS):
        assert lost_of(tmp_path, seed, durability, monkeypatch) == 0, f"seed {seed}"


@pytest.mark.parametrize("durability", Durability)
def test_synced_batches_survive_a_power_loss_whatever_the_durability_was_changed_to(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(10):
        assert lost_of(tmp_path, seed, durability, monkeypatch, switches=True) == 0, f"seed {seed}"


def test_without_the_journal_small_batches_that_were_synced_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [
        lost_of(tmp_path, seed, Durability.INTERVAL, monkeypatch, with_journal=False)
        for seed in range(20)
    ]
    assert sum(count > 0 for count in lost) >= 2, "the model is too kind to prove anything"


def _sealed_count(store: Store, number: int) -> int:
    return sum(extent.batch_count for extent in store.catalog.extents.get(number, ()))


def read_all_of(store: Store, number: int) -> list[bytes]:
    reader = StoreReader(store.directory)
    try:
        return read_all(reader, number)
    finally:
        reader.close()
