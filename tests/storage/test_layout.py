"""Names and keys are part of the disk format: these tests pin them."""

from pathlib import Path

from odradek.storage import layout
from odradek.storage.metadata_log import MetadataLog
from tests.support.stores import NOW_MS, append_now, batch_of, create, open_store


def test_the_store_of_a_partition_never_changes() -> None:
    topic_id = bytes.fromhex("0000000a" + "ff" * 12)
    assert [layout.store_index(topic_id, partition, 8) for partition in range(10)] == [
        2, 3, 4, 5, 6, 7, 0, 1, 2, 3,
    ]  # fmt: skip
    assert layout.store_index(bytes.fromhex("ffffffff" + "00" * 12), 0, 8) == 7
    assert layout.store_index(topic_id, 5, 1) == 0


def test_keys_sort_as_the_log_does() -> None:
    places = [(0, 0), (0, 1), (0, 2**63 - 1), (1, 0), (255, 7), (256, 3), (2**32 - 1, 0)]
    keys = [layout.KEY.pack(*place) for place in places]
    assert keys == sorted(keys)
    assert keys[4] == bytes.fromhex("000000ff0000000000000007")


def test_files_have_their_names(tmp_path: Path) -> None:
    folders = (tmp_path / "a", tmp_path / "b")
    assert layout.store_folder(folders, 3) == tmp_path / "a" / "3"
    second = layout.store_number(1, 3)
    assert layout.store_folder(folders, second) == tmp_path / "b" / "3"
    assert (layout.directory_of(second), layout.index_of(second)) == (1, 3)
    assert (layout.directory_of(3), layout.index_of(3)) == (0, 3)
    path = layout.segment_path(tmp_path, 42)
    assert path.name == "segment-00000042.mdb"
    assert layout.lock_path(path).name == "segment-00000042.mdb-lock"
    assert layout.journal_path(tmp_path, 42).name == "journal-00000042"


def test_segment_files_are_listed_and_removed_with_their_locks_and_journals(tmp_path: Path) -> None:
    for segment_id in (7, 123_456_789_012, 2):
        path = layout.segment_path(tmp_path, segment_id)
        path.touch()
        layout.lock_path(path).touch()
        layout.journal_path(tmp_path, segment_id).touch()
    (tmp_path / "segment-x.mdb").touch()
    (tmp_path / "catalog.mdb").touch()
    assert layout.segment_ids(tmp_path) == [2, 7, 123_456_789_012]
    layout.unlink_segment(tmp_path, 7)
    layout.unlink_segment(tmp_path, 7)
    assert layout.segment_ids(tmp_path) == [2, 123_456_789_012]
    assert layout.journal_ids(tmp_path) == [2, 123_456_789_012]
    layout.unlink_journal(tmp_path, 2)
    assert layout.journal_ids(tmp_path) == [123_456_789_012]
    assert len(list(tmp_path.iterdir())) == 7


def test_no_file_can_be_read_by_other_users(tmp_path: Path) -> None:
    """Records, and the credentials of the metadata log."""
    log = MetadataLog.open(tmp_path / "metadata")
    store = open_store(tmp_path / "0")
    append_now(store, create(store), batch_of(1))
    store.roll(NOW_MS)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
    store.close()
    log.close()
