"""The catalog: atomic, the same in memory and on disk, numbers and ids are never used twice."""

from pathlib import Path

import msgspec
import pytest

from odradek.storage.catalog import Catalog, CatalogFile, PartitionRow, SegmentRow, SegmentState
from odradek.storage.environment import StorageError
from odradek.storage.layout import segment_path
from odradek.storage.producer_state import ProducerStateEntry
from odradek.storage.segment import Extent
from odradek.storage.settings import LogSettings, TimestampType
from tests.support.stores import TOPIC_ID

MAP_BYTES = 8 << 20
PRODUCER = ProducerStateEntry(0, -1, 0, -1, ())


def row_of(number: int, partition: int = 0, **fields: object) -> PartitionRow:
    return PartitionRow(number, TOPIC_ID, "topic", partition, LogSettings(), **fields)  # type: ignore[arg-type]  # named by the tests


def mirror(catalog: Catalog) -> tuple[object, ...]:
    return (
        dict(catalog.partitions),
        dict(catalog.numbers),
        dict(catalog.segments),
        {number: list(extents) for number, extents in catalog.extents.items()},
        catalog.numbers_end,
    )


def test_a_change_is_in_memory_and_on_disk_once_it_is_committed(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    told = []
    catalog.on_change = lambda: told.append(mirror(catalog))
    settings = LogSettings(
        retention_ms=5, message_timestamp_type=TimestampType.LOG_APPEND_TIME, cleanup_compact=True
    )
    with catalog.change() as change:
        number = change.new_number()
        row = PartitionRow(number, TOPIC_ID, "tópic", 4, settings, 5, 9, ((0, 0), (3, 7)))
        change.put_partition(row)
        change.put_segment(SegmentRow(1, SegmentState.SEALED, 10, 20, 30, 40, 50, True))
        change.put_segment(SegmentRow(2, SegmentState.ACTIVE, 21))
        change.put_extent(number, Extent(1, 0, 9, 100, 3))
        change.put_producers(number, [77], {77: PRODUCER})
        change.put_property("clean", "1")
        assert catalog.partitions == {}
    assert catalog.partitions == {number: row}
    assert catalog.active_segment_id == 2
    assert told == [mirror(catalog)]
    again = Catalog(tmp_path, map_bytes=MAP_BYTES)
    assert mirror(again) == mirror(catalog)
    assert again.file.property_of("clean") == "1"
    assert again.file.property_of("missing") is None
    file = CatalogFile(tmp_path)
    assert file.number_of(TOPIC_ID, 4) == number
    assert file.number_of(TOPIC_ID, 5) is None
    assert file.partition(number) == row
    assert file.partition(99) is None
    assert file.extents_of(number) == [Extent(1, 0, 9, 100, 3)]
    assert list(file.producer_rows()) == [(number, 77, PRODUCER.encode())]
    assert file.segment_rows()[0].is_compacted


def test_the_row_of_a_segment_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    with catalog.change() as change:
        change.put_segment(SegmentRow(1, SegmentState.SEALED, 10, may_have_aborted=False))
    assert not CatalogFile(tmp_path).segment_rows()[0].may_have_aborted
    with catalog.file.lmdb.begin(catalog.file.segments, write=True) as transaction:
        ((key, row),) = transaction.cursor()
        *before, _ = msgspec.msgpack.decode(row)
        transaction.put(key, msgspec.msgpack.encode(before))
    (read,) = CatalogFile(tmp_path).segment_rows()
    assert read == SegmentRow(1, SegmentState.SEALED, 10, may_have_aborted=True)


def test_a_change_that_raises_changes_nothing(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    with catalog.change() as change:
        change.put_partition(row_of(change.new_number()))
        change.put_segment(SegmentRow(1, SegmentState.ACTIVE, 0))
        change.put_extent(0, Extent(1, 0, 9, 100, 3))
    catalog.free_numbers.append(17)
    before = mirror(catalog)

    def give_up() -> None:
        with catalog.change() as change:
            assert change.new_number() == 17
            change.delete_partition(0)
            change.delete_segment(1)
            raise KeyError

    with pytest.raises(KeyError):
        give_up()
    assert mirror(catalog) == before
    assert catalog.free_numbers == [17]
    assert mirror(Catalog(tmp_path, map_bytes=MAP_BYTES)) == before


def test_a_full_catalog_is_a_storage_error_and_changes_nothing(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=256 << 10)
    before = mirror(catalog)

    def fill() -> None:
        with catalog.change() as change:
            for partition in range(10_000):
                change.put_partition(row_of(change.new_number(), partition))

    with pytest.raises(StorageError):
        fill()
    assert mirror(catalog)[:4] == before[:4]
    with catalog.change() as change:
        change.put_partition(row_of(change.new_number()))
    assert len(catalog.partitions) == 1


def test_deleting_a_partition_removes_its_producers_but_not_its_extents(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    with catalog.change() as change:
        for number in range(3):
            change.put_partition(row_of(number, number))
            change.put_extent(number, Extent(1, 0, 9, 100, 3))
            change.put_producers(number, range(50), dict.fromkeys(range(50), PRODUCER))
    with catalog.change() as change:
        change.delete_partition(1)
        change.put_producers(2, [7], {})
    counts: dict[int, int] = {}
    for number, _, _ in catalog.file.producer_rows():
        counts[number] = counts.get(number, 0) + 1
    assert counts == {0: 50, 2: 49}
    assert [producer for _, producer, _ in catalog.file.producer_rows(2)][:9] == [
        0, 1, 2, 3, 4, 5, 6, 8, 9,
    ]  # fmt: skip
    assert sorted(catalog.extents) == [0, 1, 2]
    assert sorted(catalog.partitions) == [0, 2]


def test_extents_are_kept_in_the_order_of_the_log_whatever_the_segments_ids(
    tmp_path: Path,
) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    with catalog.change() as change:
        for segment_id, first in [(1, 0), (2, 10), (3, 20)]:
            change.put_segment(SegmentRow(segment_id, SegmentState.SEALED, 0))
            change.put_extent(5, Extent(segment_id, first, first + 10, 1, 1))
    with catalog.change() as change:  # a rewrite of 1 and 2
        change.delete_segment(1)
        change.delete_segment(2)
        change.put_segment(SegmentRow(9, SegmentState.SEALED, 0))
        change.put_extent(5, Extent(9, 0, 20, 2, 2))
    assert [extent.segment_id for extent in catalog.extents[5]] == [9, 3]
    assert catalog.file.extents_of(5) == catalog.extents[5]
    with catalog.change() as change:
        change.delete_segment(9)
        change.delete_extent(5, 3)
    assert 5 not in catalog.extents
    assert Catalog(tmp_path, map_bytes=MAP_BYTES).extents == {}


def test_segment_ids_are_not_reused(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    first = catalog.next_segment_id()
    with catalog.change() as change:
        change.put_segment(SegmentRow(first, SegmentState.SEALED, 0))
    with catalog.change() as change:
        change.delete_segment(first)
    again = Catalog(tmp_path, map_bytes=MAP_BYTES)
    assert again.next_segment_id() == first + 1
    segment_path(tmp_path, 40).touch()
    assert Catalog(tmp_path, map_bytes=MAP_BYTES).next_segment_id() == 41


def test_new_numbers_ascend_also_after_a_restart(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, map_bytes=MAP_BYTES)
    with catalog.change() as change:
        assert [change.new_number() for _ in range(3)] == [0, 1, 2]
    again = Catalog(tmp_path, map_bytes=MAP_BYTES)
    with again.change() as change:
        assert change.new_number() == 3
