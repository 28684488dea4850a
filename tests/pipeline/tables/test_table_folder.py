"""Files appear as a whole or not at all, and moves can be made again."""

import errno
import os
from pathlib import Path

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.table_folder import TableFolder


def test_a_text_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path / "table"))
    assert folder.read_text("a/b.json") is None
    folder.write_text("a/b.json", "first")
    folder.write_text("a/b.json", "é")
    assert folder.read_text("a/b.json") == "é"
    assert os.listdir(tmp_path / "table" / "a") == ["b.json"]


def test_a_uri_and_a_path_are_the_same_folder(tmp_path: Path) -> None:
    TableFolder(tmp_path.as_uri()).write_text("a", "text")
    folder = TableFolder(str(tmp_path))
    assert folder.read_text("a") == "text"
    assert folder.uri_of("a/b") == f"file://{tmp_path}/a/b"


def test_what_cannot_be_written_leaves_the_old_text(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path))
    folder.write_text("name", "old")
    # A folder stands where the new text would be collected.
    (tmp_path / "name.tmp").mkdir()
    with pytest.raises(OSError, match=r"name.tmp"):
        folder.write_text("name", "new")
    assert folder.read_text("name") == "old"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "name.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        TableFolder(str(tmp_path)).write_text("name", "text")
    assert raised.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []


def test_moves_can_be_made_again(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path))
    folder.write_text("staging/one", "1")
    folder.write_text("staging/two", "2")
    moves = [("staging/one", "day/one"), ("staging/two", "day/two")]
    folder.move(moves[:1])
    folder.move(moves)
    folder.move(moves)
    assert folder.names("day") == ["one", "two"]
    with pytest.raises(PipelineError, match=r"staging/three is lost"):
        folder.move([("staging/three", "day/three")])


def test_names_and_deletion_of_what_may_be_absent(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path))
    assert folder.names("absent") == []
    folder.delete_folder("absent")
    folder.write_text("a/b/c", "text")
    assert folder.exists("a/b")
    folder.delete_folder("a")
    assert not folder.exists("a")
