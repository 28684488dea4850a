"""What is said of the last run: its epoch if its logs are whole, that they are not, or nothing."""

from pathlib import Path

import pytest

from odradek.node.controller.clean_shutdown import (
    NAME,
    UNCLEAN,
    boot_id,
    previous_broker_epoch,
    record_clean_shutdown,
    record_run,
)
from odradek.storage.settings import Durability

INTERVAL, COMMIT = Durability.INTERVAL, Durability.COMMIT


def test_nothing_is_said_of_a_run_that_nobody_noted(tmp_path: Path) -> None:
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) is None
    record_clean_shutdown(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) is None


def test_a_process_that_was_killed_has_lost_nothing(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "boot-1")
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == 17


@pytest.mark.parametrize(
    ("boot", "durability", "said"),
    [("boot-2", INTERVAL, UNCLEAN), ("", INTERVAL, UNCLEAN), ("boot-2", COMMIT, 17)],
)
def test_with_the_system_may_go_what_was_not_on_the_disk(
    tmp_path: Path, boot: str, durability: Durability, said: int
) -> None:
    record_run(tmp_path, 17, "boot-1")
    assert previous_broker_epoch(tmp_path, boot, durability) == said


def test_where_the_system_does_not_say_one_start_is_like_another(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "")
    assert previous_broker_epoch(tmp_path, "", INTERVAL) == UNCLEAN


def test_a_run_that_ended_in_order_has_everything_until_the_next_is_noted(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "boot-1")
    record_clean_shutdown(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-2", INTERVAL) == 17
    record_run(tmp_path, 20, "boot-2")
    assert previous_broker_epoch(tmp_path, "boot-3", INTERVAL) == UNCLEAN


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"broker_epoch":"many"}'])
def test_nonsense_is_not_counted_upon(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == UNCLEAN
    record_clean_shutdown(tmp_path)
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == UNCLEAN


def test_a_disk_that_takes_nothing_keeps_what_was_there(tmp_path: Path) -> None:
    record_run(tmp_path, 17, "boot-1")
    (tmp_path / f"{NAME}.new").mkdir()
    record_run(tmp_path, 20, "boot-1")
    assert previous_broker_epoch(tmp_path, "boot-1", INTERVAL) == 17


def test_the_system_says_which_start_it_is() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) in (0, 36)
