"""A data folder belongs to one node of one cluster, and to one process at a time."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.data_folder import (
    FolderLock,
    MetaProperties,
    StateFile,
    adopt_meta_properties,
    format_folder,
    new_cluster_id,
    read_meta_properties,
    unformatted_log_dirs,
)
from tests.support.disks import small_disk


def config_for(folder: Path, **options: str) -> NodeConfig:
    return load(environment={}, options={"data": str(folder), **options})


def test_the_first_start_formats_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    first = adopt_meta_properties(config_for(folder), formats=True)
    assert len(first.cluster_id) == 22
    assert first.store_count == 8
    again = adopt_meta_properties(config_for(folder), formats=True)
    assert again == first


def test_a_folder_keeps_its_number_of_stores(tmp_path: Path) -> None:
    adopt_meta_properties(config_for(tmp_path, stores="3"), formats=True)
    config = adopt_meta_properties(config_for(tmp_path, workers="4"), formats=True)
    assert (config.store_count, config.worker_count) == (3, 3)
    with pytest.raises(ConfigurationError, match=r"stores=5.*formatted with 3 stores"):
        adopt_meta_properties(config_for(tmp_path, stores="5"), formats=True)


def with_log_dirs(tmp_path: Path, *names: str) -> NodeConfig:
    """A node whose data folder is a, with further log directories."""
    folders = ",".join(str(tmp_path / name) for name in ("a", *names))
    return load(environment={}, options={"log.dirs": folders})


def test_each_log_directory_has_an_id_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    first = adopt_meta_properties(with_log_dirs(tmp_path, "b", "c"), formats=True)
    ids = {each.path: each.directory_id for each in first.log_dirs}
    assert len(set(ids.values()) - {""}) == 3
    again = adopt_meta_properties(with_log_dirs(tmp_path, "c", "b"), formats=False)
    assert {each.path: each.directory_id for each in again.log_dirs} == ids
    assert [each.path for each in again.log_dirs] == [str(tmp_path / name) for name in "acb"]
    written = read_meta_properties(tmp_path / "b")
    assert written is not None
    assert (written.cluster_id, written.store_count) == (first.cluster_id, first.store_count)


def test_a_folder_with_one_directory_gets_another(tmp_path: Path) -> None:
    first = adopt_meta_properties(with_log_dirs(tmp_path), formats=True)
    assert first.further_log_dirs == ()
    with pytest.raises(ConfigurationError, match="odradek format"):
        adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=False)
    assert unformatted_log_dirs(with_log_dirs(tmp_path, "b")) == [str(tmp_path / "b")]
    (added,) = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True).further_log_dirs
    assert (added.path, added.problem) == (str(tmp_path / "b"), "")
    assert unformatted_log_dirs(with_log_dirs(tmp_path, "b")) == []


def test_a_log_directory_that_is_not_mounted_is_offline_and_not_formatted(tmp_path: Path) -> None:
    (before,) = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True).further_log_dirs
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    (tmp_path / "b").mkdir()
    (missing,) = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True).further_log_dirs
    assert missing.directory_id == before.directory_id
    assert "Mount its volume" in missing.problem
    assert list((tmp_path / "b").iterdir()) == []
    (tmp_path / "b").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "b")
    (mounted,) = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True).further_log_dirs
    assert mounted == before


def test_a_lost_log_directory_is_formatted_when_that_is_asked_for(tmp_path: Path) -> None:
    (before,) = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True).further_log_dirs
    shutil.rmtree(tmp_path / "b")
    config = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True, replaces=True)
    (after,) = config.further_log_dirs
    assert after.problem == ""
    assert after.directory_id not in ("", before.directory_id)


def test_an_unreadable_log_directory_is_offline(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (broken,) = adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True).further_log_dirs
    assert "Not a directory" in broken.problem


def test_a_log_directory_of_another_node_or_twice_is_refused(tmp_path: Path) -> None:
    adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    with pytest.raises(ConfigurationError, match=r"c has the same meta\.properties as .*b"):
        adopt_meta_properties(with_log_dirs(tmp_path, "b", "c"), formats=True)
    other = {"log.dirs": f"{tmp_path / 'x'},{tmp_path / 'b'}"}
    with pytest.raises(ConfigurationError, match=r"belong to"):
        adopt_meta_properties(load(environment={}, options={**other, "node.id": "5"}), formats=True)


def test_stores_without_meta_properties_are_not_taken_for_a_new_directory(tmp_path: Path) -> None:
    (tmp_path / "b" / "stores" / "0").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="there are stores of a node here"):
        adopt_meta_properties(with_log_dirs(tmp_path, "b"), formats=True)


def test_an_unformatted_folder_is_refused_without_formats(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="odradek format"):
        adopt_meta_properties(config_for(tmp_path), formats=False)
    assert read_meta_properties(tmp_path) is None


@pytest.mark.parametrize("folder", ["stores", "metadata"])
def test_data_without_meta_properties_are_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "log").touch()
    with pytest.raises(ConfigurationError, match=rf"there is {folder} .* but no meta\.properties"):
        adopt_meta_properties(config_for(tmp_path), formats=True)
    assert read_meta_properties(tmp_path) is None


def test_the_data_of_another_node_or_cluster_are_refused(tmp_path: Path) -> None:
    format_folder(tmp_path, MetaProperties("cluster-a", 1, 8))
    with pytest.raises(ConfigurationError, match=r"node\.id=2: .* belong to node 1"):
        adopt_meta_properties(config_for(tmp_path, **{"node.id": "2"}), formats=True)
    options = {"node.id": "1", "cluster.id": "cluster-b"}
    with pytest.raises(
        ConfigurationError, match=r"cluster\.id=cluster-b: .* belong to cluster cluster-a"
    ):
        adopt_meta_properties(config_for(tmp_path, **options), formats=True)


def test_formatting_twice_is_refused(tmp_path: Path) -> None:
    format_folder(tmp_path, MetaProperties("cluster-a", 1, 8))
    with pytest.raises(ConfigurationError, match="formatted already"):
        format_folder(tmp_path, MetaProperties("cluster-b", 1, 8))


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    format_folder(tmp_path, MetaProperties("cluster-a", 1, 8, version=2))
    with pytest.raises(ConfigurationError, match=r"layout version 2.*newer release"):
        read_meta_properties(tmp_path)


@pytest.mark.parametrize("text", ["", "version=x\n", "version=1\ncluster.id=a\n"])
def test_a_damaged_file_is_not_taken_for_a_new_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(ConfigurationError, match="is damaged"):
        adopt_meta_properties(config_for(tmp_path), formats=True)


def test_cluster_ids_are_new_and_no_options() -> None:
    ids = {new_cluster_id() for _ in range(200)}
    assert len(ids) == 200
    assert not any(one.startswith("-") for one in ids)


def test_a_locked_folder_names_the_process_and_is_free_when_it_ends(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from odradek.node.data_folder import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            ConfigurationError, match=rf"running in this folder \(process {holder.pid}\)"
        ):
            FolderLock(tmp_path)
        holder.kill()
        holder.wait()
    FolderLock(tmp_path).release()


def test_a_folder_is_held_on_a_full_disk_as_well(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        FolderLock(disk.folder).release()
        disk.fill()
        lock = FolderLock(disk.folder)
        with pytest.raises(ConfigurationError, match=rf"\(process {os.getpid()}\)"):
            FolderLock(disk.folder)
        lock.release()
        disk.empty()
        (disk.folder / "node.lock").unlink()
        disk.fill()
        FolderLock(disk.folder).release()


def test_a_state_is_read_as_it_was_last_written_until_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    state = StateFile(path)
    state.remove()
    for text in (b'{"pids": [1, 22, 333]}', b"{}", b'["%s"]' % (b"x" * 3000), b"{}"):
        state.write(text)
        assert json.loads(path.read_bytes()) == json.loads(text)
    state.remove()
    assert not path.exists()


def test_a_state_is_renewed_and_made_anew_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk.folder / "node.json"
        state = StateFile(path)
        state.write(b"[0]")
        for number in range(1, 10):
            # What the last renewal has freed is taken by others.
            disk.fill()
            state.write(b"[%d]" % number)
            assert json.loads(path.read_bytes()) == [number]
        disk.fill()
        state.remove()
        state.write(b'["again"]')
        assert json.loads(path.read_bytes()) == ["again"]


def test_a_state_that_does_not_fit_leaves_no_partial_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk.folder / "node.json"
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            StateFile(path).write(b"[0]")
        assert not path.exists()
        disk.empty()
        StateFile(path).write(b"[1]")
        assert json.loads(path.read_bytes()) == [1]


def test_nodes_of_one_cluster_are_not_formatted_with_an_id_each(tmp_path: Path) -> None:
    peers = {"peers": "0@127.0.0.1:1,1@127.0.0.1:2,2@127.0.0.1:3"}
    with pytest.raises(
        ConfigurationError, match=r"set cluster\.id, or run odradek format --cluster-id"
    ):
        adopt_meta_properties(config_for(tmp_path, **peers), formats=True)
    assert read_meta_properties(tmp_path) is None
    config = adopt_meta_properties(
        config_for(tmp_path, **peers, **{"cluster.id": "c"}), formats=True
    )
    assert config.cluster_id == "c"


def test_every_formatting_makes_a_folder_of_its_own(tmp_path: Path) -> None:
    one, other = (
        adopt_meta_properties(config_for(tmp_path / name), formats=True).directory_id
        for name in "ab"
    )
    assert one != other
    assert adopt_meta_properties(config_for(tmp_path / "a"), formats=True).directory_id == one


def test_a_folder_from_before_there_were_directory_ids_is_served(tmp_path: Path) -> None:
    format_folder(tmp_path, MetaProperties("c", 0, 8))
    assert "directory.id" not in (tmp_path / "meta.properties").read_text()
    assert adopt_meta_properties(config_for(tmp_path), formats=True).directory_id == ""
