"""The scratch table against a dict."""

import random
from pathlib import Path

import pytest

from odradek.storage.environment import StorageError
from odradek.storage.scratch_table import ScratchTable


def test_the_table_equals_a_dict(tmp_path: Path) -> None:
    dice = random.Random(1)
    table = ScratchTable(tmp_path / "scratch")
    model: dict[bytes, int] = {}
    for _ in range(5):
        numbers = {
            dice.randbytes(dice.choice([0, 1, 17])): dice.randrange(2**60) for _ in range(300)
        }
        for _ in table.put_all(numbers):
            pass
        model.update(numbers)
        assert all(table.get(key) == number for key, number in model.items())
    assert table.get(b"no such key") is None
    table.remove()


def test_many_keys_are_put_in_slices(tmp_path: Path) -> None:
    table = ScratchTable(tmp_path / "scratch")
    numbers = {b"%d" % (at * 7919 % 12_000): at for at in range(12_000)}
    assert sum(1 for _ in table.put_all(numbers)) == 3 + 12
    assert all(table.get(key) == number for key, number in numbers.items())
    table.remove()


def test_the_file_of_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "scratch").write_bytes(b"whatever")
    table = ScratchTable(tmp_path / "scratch")
    assert table.get(b"key") is None
    table.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        ScratchTable(tmp_path / "gone" / "scratch")
