"""Stores that cannot be written, and that can again, on real disks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.node.observability import StorageReport
from odradek.node.storage_health import StorageHealth
from odradek.node.worker.storage_monitor import CHECK_INTERVAL_MS, StorageMonitor
from odradek.storage.environment import StorageError
from odradek.storage.log_append import LogAppend
from odradek.storage.reserve import DISK_FULL
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.disks import SmallDisk, small_disk
from tests.support.stores import NOW_MS, append_now, batch_of, create, open_store


class Watched:
    """A store, its monitor, and what was reported. Each tick comes when it is due."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reports: list[StorageReport] = []
        self.monitor = StorageMonitor({3: store}, StorageHealth(self.reports.append))
        self._steady_ms = 0

    def tick(self) -> None:
        self._steady_ms += CHECK_INTERVAL_MS
        self.monitor.tick(self._steady_ms, NOW_MS)

    @property
    def problems(self) -> list[str]:
        return [report.problem for report in self.reports]


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    watched = Watched(open_store(folder))
    yield watched
    watched.store.close()


def test_a_full_disk_is_noticed_without_an_append_and_until_it_has_ample_space(
    tmp_path: Path,
) -> None:
    def check(disk: SmallDisk) -> None:
        with watched(disk.folder / "3") as store:
            store.tick()
            assert store.problems == []
            disk.fill()
            store.tick()
            store.tick()
            assert store.problems == [DISK_FULL]
            disk.empty()
            disk.fill(leave_bytes=1 << 20)
            store.tick()
            assert store.problems == [DISK_FULL], "a little space is not enough"
            disk.empty()
            store.tick()
            assert store.problems == [DISK_FULL, ""]

    with small_disk(tmp_path / "disk", 32 << 20) as disk:
        check(disk)


def test_an_append_that_fails_for_lack_of_space_says_that_the_disk_is_full(tmp_path: Path) -> None:
    def check(disk: SmallDisk) -> None:
        with watched(disk.folder / "3") as store:
            number = create(store.store)
            disk.fill(leave_bytes=200 << 10)
            turn = store.store.begin(NOW_MS)
            turn.append(number, LogAppend.of_bytes(batch_of(1, size=900_000), AppendOrigin.CLIENT))
            with pytest.raises(StorageError, match=f"^{DISK_FULL}$"):
                turn.commit()
            store.monitor.record_failures(failures := {3: DISK_FULL})
            assert failures == {}
            store.tick()
            assert store.problems == [DISK_FULL], "although 200 KiB are free"
            disk.empty()

    with small_disk(tmp_path / "disk", 32 << 20) as disk:
        check(disk)


def test_after_another_failure_a_new_segment_tells_that_the_store_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path / "3") as store:
        number = create(store.store)
        append_now(store.store, number, batch_of())
        store.monitor.record_failures({3: "Input/output error"})

        def fail(*_arguments: object) -> None:
            raise StorageError("segment-2: Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr("odradek.storage.log_loader.create_active_segment", fail)
            store.tick()
            store.tick()
        assert store.problems == ["Input/output error", "segment-2: Input/output error"]
        store.tick()
        assert store.problems[2:] == [""]
        assert append_now(store.store, number, batch_of()) == [1]


def test_a_folder_that_somebody_has_deleted_is_a_problem_and_no_exception(tmp_path: Path) -> None:
    folder = tmp_path / "3"
    with watched(folder) as store:
        create(store.store)
        folder.rename(tmp_path / "moved")
        store.tick()
        store.tick()
        assert store.problems == [f"{folder}: No such file or directory"]
        (tmp_path / "moved").rename(folder)
        store.tick()
        assert store.problems[1:] == [""]
