"""The folders of a node whose configuration names none."""

import tempfile
from pathlib import Path

import pytest

from odradek.node.default_folders import default_data_folder, default_run_folder


def test_folders_belong_to_this_user_and_this_data_folder() -> None:
    assert default_data_folder({"XDG_DATA_HOME": "/data/home"}) == Path("/data/home/odradek")
    one, two = default_run_folder(Path("/a"), {}), default_run_folder(Path("/b"), {})
    assert one != two
    assert one == default_run_folder(Path("/a"), {})
    assert len(str(one)) < 80


def test_without_a_temporary_folder_the_run_folder_is_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container whose root file system is read-only."""

    def no_folder() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    assert default_run_folder(Path("/a"), {}).parent == Path("/dev/shm")
