"""What a reader maps of the segments, as the kernel counts it."""

import gc
import sys
import zlib
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

import pytest

from odradek.storage import mapped_pages
from odradek.storage.compaction import CompactionPass, plan_compaction
from odradek.storage.layout import segment_ids, segment_path
from odradek.storage.mapped_pages import (
    MAPPED_PAGES,
    RELEASE_BYTES_MAX,
    RELEASE_BYTES_MIN,
    MappedPages,
    default_release_bytes,
)
from odradek.storage.reader import OFFSET_MAX, ReadResult, StoreReader
from odradek.storage.recovery import Examination
from odradek.storage.settings import StoreOptions
from tests.support.stores import (
    NOW_MS,
    append,
    append_now,
    batch_of,
    create,
    mapped_segment_bytes,
    open_store,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to unmap")

MIB = 1 << 20
BATCHES = 64
BATCH_BYTES = 128 << 10


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StoreReader]:
    """Of a store with 8 MiB in one partition, number 0, in batches of 128 KiB."""
    store = open_store(tmp_path)
    number = create(store)
    for index in range(BATCHES):
        append_now(store, number, batch_of(size=BATCH_BYTES, fill=index))
    reader = StoreReader(store.directory)
    yield reader
    reader.close()
    store.close()


def read(reader: StoreReader, offset: int) -> ReadResult:
    return reader.read(0, offset, max_bytes=BATCH_BYTES * 2, end_offset=OFFSET_MAX)


def touched(result: ReadResult) -> bytes:
    """The bytes of a result, every page of them read."""
    return b"".join(bytes(each) for each in result.buffers)


def test_pages_are_unmapped_and_views_stay_valid(reader: StoreReader) -> None:
    results = []
    offset = 0
    while offset < BATCHES:
        results.append(read(reader, offset))
        offset = results[-1].next_offset
    before = [touched(each) for each in results]
    assert mapped_segment_bytes() > BATCHES * BATCH_BYTES
    MAPPED_PAGES.release()
    assert mapped_segment_bytes() < MIB
    assert [touched(each) for each in results] == before
    assert mapped_segment_bytes() > BATCHES * BATCH_BYTES


def test_a_reader_maps_no_more_than_the_bound(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MAPPED_PAGES, "_release_bytes", MIB)
    MAPPED_PAGES.release()
    most = offset = 0
    while offset < BATCHES:
        result = read(reader, offset)
        touched(result)
        most = max(most, mapped_segment_bytes())
        offset = result.next_offset
    assert MIB // 2 < most < 3 * MIB


def test_the_bound_is_a_share_of_what_the_container_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in (
        (None, RELEASE_BYTES_MAX),
        (512 * MIB, 64 * MIB),
        (64 * MIB, RELEASE_BYTES_MIN),
        (64 << 30, RELEASE_BYTES_MAX),
    ):
        monkeypatch.setattr(mapped_pages, "memory_limit_bytes", lambda limit=limit: limit)
        assert default_release_bytes() == expected


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was mapped each time that pages were unmapped, which is about every 2 MiB."""
    found: list[int] = []
    release = MappedPages.release

    def note_peak(pages: MappedPages) -> None:
        found.append(mapped_segment_bytes())
        release(pages)

    monkeypatch.setattr(MAPPED_PAGES, "_release_bytes", 2 * MIB)
    MAPPED_PAGES.release()
    monkeypatch.setattr(MappedPages, "release", note_peak)
    return found


def peak(peaks: list[int]) -> int:
    """The highest since the last time, and what is mapped now."""
    highest = max([*peaks, mapped_segment_bytes()])
    MAPPED_PAGES.release()
    peaks.clear()
    return highest


def test_appends_recovery_and_compaction_map_no_more_than_the_bound(
    tmp_path: Path, peaks: list[int]
) -> None:
    options = StoreOptions(segment_map_bytes=128 * MIB, status_slots=64)
    store = open_store(tmp_path, options)
    number = create(store, cleanup_compact=True, cleanup_delete=False)
    # Each turn reads a page that the one before wrote.
    for index in range(1_500):
        append_now(store, number, batch_of(key=b"%d" % index, size=1_800))
    assert peak(peaks) < 4 * MIB
    turn = store.begin(NOW_MS)
    for index in range(500):
        append(turn, number, batch_of(key=b"%d" % index, size=9_000))
    turn.commit()
    assert peak(peaks) < 4 * MIB

    path = segment_path(store.directory, segment_ids(store.directory)[-1])
    examination = Examination(path, log_ends={})
    assert examination.is_whole
    assert peak(peaks) < 4 * MIB
    salvaged = [zlib.crc32(batch) for _, batch in examination.salvaged_batches()]
    assert len(salvaged) == 2_000
    assert peak(peaks) < 4 * MIB

    store.roll(NOW_MS)
    plan = plan_compaction(store.catalog, store.partitions()[number], now_ms=NOW_MS)
    assert plan is not None
    compaction = CompactionPass(
        store.catalog, store.partitions(), [plan], now_ms=NOW_MS, keys_max=100
    )
    for _ in compaction.run():
        pass
    assert store.catalog.rewrite_count == 1
    assert peak(peaks) < 4 * MIB
    store.close()


def test_small_reads_count_as_what_a_fault_maps(reader: StoreReader) -> None:
    touched(read(reader, 0))
    pages = MappedPages(MIB)
    for _ in range(15):
        pages.note(1)
    assert mapped_segment_bytes() > 0
    pages.note(1)
    assert mapped_segment_bytes() == 0


def test_a_segment_is_not_closed_while_its_pages_are_unmapped(tmp_path: Path) -> None:
    """As by a thread that drops the last reference between the look at the mappings and the call
    for their addresses."""
    store = open_store(tmp_path)
    append_now(store, create(store), batch_of(size=BATCH_BYTES))
    store.close()
    readers = [StoreReader(store.directory)]
    del store
    gc.collect()
    touched(read(readers[0], 0))
    pages = MappedPages(MIB)
    held = []

    def is_mapped() -> bool:
        return f"{tmp_path}/" in Path("/proc/self/maps").read_text()

    class Library:
        def madvise(self, _start: int, _size: int, _advice: int) -> None:
            readers.clear()
            held.append(is_mapped())

    pages._libc = Library()  # type: ignore[assignment]
    pages.release()
    assert held
    assert all(held)
    assert not is_mapped(), "nothing else refers to it"


def test_mappings_that_nobody_holds_are_left_alone(tmp_path: Path) -> None:
    """As that of a segment which another thread is closing."""
    path = tmp_path / "segment-7.mdb"
    path.write_bytes(bytes(MIB))
    with path.open("r+b") as file, mmap(file.fileno(), MIB) as mapping:
        assert not any(mapping[at] for at in range(0, MIB, 4096))
        assert mapped_segment_bytes() >= MIB
        MAPPED_PAGES.release()
        assert mapped_segment_bytes() >= MIB
