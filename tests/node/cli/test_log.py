"""`odradek log dump` on segments that a store has written."""

from pathlib import Path

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.records import Record, build_batch
from odradek.storage.layout import segment_path
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import NewPartition
from odradek.storage.settings import LogSettings, StoreOptions
from odradek.storage.store import Store
from tests.node.cli.conftest import Run

TOPIC_ID = bytes(range(16))


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    """A store with two partitions: three batches in orders-0, one in orders-1."""
    folder = tmp_path / "0"
    store = Store.open(folder, StoreOptions(), now_ms=1_700_000_000_000)
    for partition, batches in ((0, 3), (1, 1)):
        new = NewPartition(TOPIC_ID, "orders", partition, 0, LogSettings())
        [number] = store.create_partitions([new])
        for index in range(batches):
            records = [
                Record(0, 1_700_000_000_000, None, None, ()),
                Record(1, 1_700_000_000_001, b"key", f"value {partition}.{index}".encode(), ()),
            ]
            codec = Codec.NONE if partition else Codec.LZ4
            arena = memoryview(bytearray(build_batch(records, codec=codec)))
            turn = store.begin(1_700_000_000_000)
            append = LogAppend(arena, 0, len(arena), leader_epoch=0)
            assert turn.append(number, append).error_code == 0
            turn.commit()
    store.close()
    return folder


def test_a_store_is_dumped_batch_by_batch(store_folder: Path, odradek: Run) -> None:
    batches = odradek("log", "dump", str(store_folder), "-o", "json").json_lines()
    assert [(b["topic"], b["partition"], b["base_offset"], b["end_offset"]) for b in batches] == [
        ("orders", 0, 0, 2),
        ("orders", 0, 2, 4),
        ("orders", 0, 4, 6),
        ("orders", 1, 0, 2),
    ]
    assert [b["compression"] for b in batches] == ["lz4", "lz4", "lz4", "none"]
    assert {(b["record_count"], b["crc_valid"]) for b in batches} == {(2, True)}


def test_batches_are_selected_by_topic_and_offset(store_folder: Path, odradek: Run) -> None:
    narrowed = ("-t", "orders:0", "--offset", "3", "-n", "1", "-o", "json")
    (batch,) = odradek("log", "dump", str(store_folder), *narrowed).json_lines()
    assert batch["base_offset"] == 2


def test_records_are_shown_with_records(store_folder: Path, odradek: Run) -> None:
    segment = segment_path(store_folder, 1)
    dumped = odradek("log", "dump", str(segment), "-t", "orders:1", "--records").stdout
    assert dumped.splitlines()[0].startswith("orders-1 [0, 2)  2 records, ")
    assert dumped.splitlines()[1] == "  0  2023-11-14T22:13:20.000Z  null  null"
    assert dumped.splitlines()[2] == "  1  2023-11-14T22:13:20.001Z  key  value 1.0"


def test_a_damaged_batch_is_marked_and_its_records_are_not_read(
    store_folder: Path, odradek: Run
) -> None:
    segment = segment_path(store_folder, 1)
    # Only the batch of the second partition is not compressed; older copies of its page go too.
    segment.write_bytes(segment.read_bytes().replace(b"value 1.0", b"value 1.2"))
    batches = odradek("log", "dump", str(store_folder), "-r", "-o", "json").json_lines()
    assert [b["crc_valid"] for b in batches] == [True, True, True, False]
    assert batches[-1]["records"] == []
    assert "CRC WRONG" in odradek("log", "dump", str(store_folder)).stdout


def test_a_file_that_is_not_a_segment_is_refused(tmp_path: Path, odradek: Run) -> None:
    other = tmp_path / "other.mdb"
    other.touch()
    assert "is not a segment" in odradek("log", "dump", str(other)).stderr
    assert "has no segments" in odradek("log", "dump", str(tmp_path)).stderr
    damaged = tmp_path / "segment-00000001.mdb"
    damaged.write_bytes(b"\xff" * 8192)
    ran = odradek("log", "dump", str(damaged))
    assert ran.exit_code == 1
    assert "Traceback" not in ran.stderr
