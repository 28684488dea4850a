"""The clean shutdown file: the previous broker epoch, an unclean shutdown, or neither."""

from pathlib import Path

import pytest

from odradek.node.controller.clean_shutdown import (
    NAME,
    UNCLEAN,
    boot_id,
    previous_broker_epoch,
    record_clean_shutdown,
    record_interval_durability,
    record_run,
)
from odradek.storage.settings import Durability

INTERVAL, COMMIT = Durability.INTERVAL, Durability.COMMIT


def test_without_a_file_there_is_no_previous_epoch(tmp_path: Path) -> None:
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) is None
    record_clean_shutdown(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) is None


def test_a_kill_is_not_an_unclean_shutdown(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "boot-1", INTERVAL)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == 17


@pytest.mark.parametrize(
    ("boot", "durability", "said"),
    [("boot-2", INTERVAL, UNCLEAN), ("", INTERVAL, UNCLEAN), ("boot-2", COMMIT, 17)],
)
def test_a_reboot_without_a_clean_shutdown_is_unclean(
    tmp_path: Path, boot: str, durability: Durability, said: int
) -> None:
    record_run(tmp_path, 17, "boot-1", durability)
    # What counts is what the run had, not what the node is started with now.
    for configured in Durability:
        assert previous_broker_epoch(tmp_path, boot, configured) == said


def test_a_run_that_was_weaker_for_a_while_is_unclean(tmp_path: Path) -> None:
    record_interval_durability(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-2", COMMIT) is None
    record_run(tmp_path, 17, "boot-1", COMMIT)
    record_interval_durability(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-2", COMMIT) == UNCLEAN
    assert previous_broker_epoch(tmp_path, "boot-1", COMMIT) == 17


def test_a_file_of_an_older_release_says_nothing_of_durability(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"broker_epoch":17,"boot_id":"boot-1","is_clean":false}')
    assert previous_broker_epoch(tmp_path, "boot-2", COMMIT) == 17
    assert previous_broker_epoch(tmp_path, "boot-2", INTERVAL) == UNCLEAN


def test_without_a_boot_id_an_unrecorded_shutdown_is_unclean(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "", INTERVAL)
    assert previous_broker_epoch(tmp_path, "", INTERVAL) == UNCLEAN


def test_a_clean_shutdown_counts_until_the_next_run_is_recorded(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "boot-1", INTERVAL)
    record_clean_shutdown(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-2", INTERVAL) == 17
    record_run(tmp_path, 20, "boot-2", INTERVAL)
    assert previous_broker_epoch(tmp_path, "boot-3", INTERVAL) == UNCLEAN


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"broker_epoch":"many"}'])
def test_a_damaged_file_is_an_unclean_shutdown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == UNCLEAN
    record_clean_shutdown(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == UNCLEAN


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "boot-1", INTERVAL)
    (tmp_path / f"{NAME}.new").mkdir()
    record_run(tmp_path, 20, "boot-1", INTERVAL)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == 17


def test_the_boot_id_is_read() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) in (0, 36)
