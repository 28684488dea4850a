"""Bells: heard by who sleeps, never in the way of who rings, and silent for who is gone."""

import select
from pathlib import Path

from odradek.node.bus.wakeup_pipe import WakeupPipe, WakeupWriter


def _is_rung(wakeup_pipe: WakeupPipe, timeout_s: float = 0) -> bool:
    return bool(select.select([wakeup_pipe], [], [], timeout_s)[0])


def _writer(path: Path) -> WakeupWriter:
    wakeup_writer = WakeupWriter.open(path)
    assert wakeup_writer is not None
    return wakeup_writer


def test_ringing_makes_the_bell_readable_until_it_is_quiet(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "bell")
    wakeup_writer = _writer(tmp_path / "bell")
    assert not _is_rung(wakeup_pipe)
    assert wakeup_writer.wake()
    assert wakeup_writer.wake()
    assert _is_rung(wakeup_pipe, 5)
    wakeup_pipe.clear()
    assert not _is_rung(wakeup_pipe)
    wakeup_writer.close()
    wakeup_pipe.close()


def test_ringing_never_blocks_however_often(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "bell")
    wakeup_writer = _writer(tmp_path / "bell")
    assert all(wakeup_writer.wake() for _ in range(100_000))
    wakeup_writer.close()
    wakeup_pipe.close()


def test_ringer_learns_that_the_sleeper_is_gone(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "bell")
    wakeup_writer = _writer(tmp_path / "bell")
    wakeup_pipe.close()
    assert not wakeup_writer.wake()
    assert WakeupWriter.open(tmp_path / "bell") is None
    wakeup_writer.close()


def test_successor_has_a_bell_of_its_own(tmp_path: Path) -> None:
    old = WakeupPipe(tmp_path / "bell")
    wakeup_writer = _writer(tmp_path / "bell")
    new = WakeupPipe(tmp_path / "bell")
    assert wakeup_writer.wake()
    assert not _is_rung(new)
    assert _writer(tmp_path / "bell").wake()
    assert _is_rung(new, 5)
    old.close()
    new.close()


def test_bell_without_ringers_does_not_wake_its_owner_for_ever(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "bell")
    wakeup_writer = _writer(tmp_path / "bell")
    wakeup_writer.wake()
    wakeup_writer.close()
    assert _is_rung(wakeup_pipe, 5)
    wakeup_pipe.clear()
    events = select.poll()
    events.register(wakeup_pipe, select.POLLIN)
    assert events.poll(0) == [], "a hang-up would wake the owner's loop for ever"
    wakeup_pipe.close()
