"""The configuration file of a running node is read again when it has changed, and only then."""

import logging
import os
from pathlib import Path

import pytest

from odradek.node.config import NodeConfig, load
from odradek.node.config_watch import LOOK_S, ConfigFileWatch
from tests.support.log_lines import log_lines


class WatchedFile:
    """A file, and a watch whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "node.toml"
        self.version = 0
        self.write("num.partitions = 1")
        self.watch = ConfigFileWatch(self.path, self.load, self.load())
        self.now = 100.0

    def load(self) -> NodeConfig:
        return load(file=self.path, environment={})

    def write(self, text: str) -> None:
        self.path.write_text(text)
        # Two writes within the file system's resolution of time are two all the same.
        self.version += 1
        os.utime(self.path, ns=(self.version * 10**9, self.version * 10**9))

    def look(self) -> NodeConfig | None:
        self.now += LOOK_S
        return self.watch.poll(self.now)


@pytest.fixture
def file(tmp_path: Path) -> WatchedFile:
    return WatchedFile(tmp_path)


def test_a_change_is_read_once_when_the_file_has_settled(file: WatchedFile) -> None:
    assert file.look() is None
    file.write("num.partitions = 2")
    assert file.look() is None, "it may be half of what is being written"
    file.write("num.partitions = 3")
    assert file.look() is None
    changed = file.look()
    assert changed is not None
    assert changed.static_configs == {"num.partitions": "3"}
    file.watch.accept(changed)
    assert file.watch.accepted is changed
    assert [file.look(), file.look()] == [None, None]
    assert (file.watch.applied_count, file.watch.refused_count) == (1, 0)


def test_it_is_looked_at_once_a_second(file: WatchedFile) -> None:
    assert file.look() is None
    file.write("num.partitions = 2")
    for _ in range(5):
        assert file.watch.poll(file.now + LOOK_S / 2) is None
    assert file.look() is None
    assert file.look() is not None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num.partitions = 0", "Value must be at least 1"),
        ("num.partitions = 2\nno.such.key = 1", "Unknown broker config name: no.such.key"),
        ("num.partitions", "is not TOML"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_and_logged_once(
    file: WatchedFile, text: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.write(text)
    with caplog.at_level(logging.INFO, logger="odradek.node.config_watch"):
        assert [file.look() for _ in range(5)] == [None] * 5
    assert says in file.watch.problem
    assert file.watch.accepted.static_configs == {"num.partitions": "1"}
    assert file.watch.refused_count == 1
    (line,) = log_lines(caplog)
    assert "is refused as a whole" in line
    file.write("num.partitions = 4")
    assert file.look() is None
    valid = file.look()
    assert valid is not None
    file.watch.accept(valid)
    assert file.watch.problem == ""


def test_a_file_that_is_gone_is_refused_and_one_that_is_replaced_is_read(
    file: WatchedFile,
) -> None:
    file.path.unlink()
    assert file.look() is None
    assert file.watch.problem == ""
    assert file.look() is None
    assert "cannot read the configuration file" in file.watch.problem
    file.write("num.partitions = 5")
    assert file.look() is None
    assert file.look() is not None


def test_the_file_of_the_cluster_secrets_is_watched_with_and_without_another(
    tmp_path: Path,
) -> None:
    old, new = "the secret of yesterday", "the secret of tomorrow"
    secrets = tmp_path / "secret"
    secrets.write_text(old)
    options = {"cluster.secret.file": str(secrets)}

    def read() -> NodeConfig:
        return load(environment={}, options=options)

    watch = ConfigFileWatch(None, read, read())
    assert watch.poll(1.0) is None
    secrets.write_text(f"{old}\n{new}\n")
    assert watch.poll(3.0) is None
    changed = watch.poll(5.0)
    assert changed is not None
    assert changed.cluster_secrets == (old, new)
    watch.accept(changed)
    secrets.write_text("short")
    assert [watch.poll(7.0), watch.poll(9.0)] == [None, None]
    assert "at least 16 random characters" in watch.problem
    assert "short" not in watch.problem
    assert watch.accepted.cluster_secrets == (old, new)
