"""Wakeup pipes: they wake the reader, never block the writer, and report a missing reader."""

from pathlib import Path

from odradek.node.bus.wakeup_pipe import WakeupPipe, WakeupWriter
from tests.support.waiting import is_readable


def _writer(path: Path) -> WakeupWriter:
    wakeup_writer = WakeupWriter.open(path)
    assert wakeup_writer is not None
    return wakeup_writer


def test_a_wakeup_makes_the_pipe_readable_until_it_is_cleared(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "pipe")
    wakeup_writer = _writer(tmp_path / "pipe")
    assert not is_readable(wakeup_pipe)
    assert wakeup_writer.wake()
    assert wakeup_writer.wake()
    assert is_readable(wakeup_pipe, 5)
    wakeup_pipe.clear()
    assert not is_readable(wakeup_pipe)
    wakeup_writer.close()
    wakeup_pipe.close()


def test_many_wakeups_do_not_block(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "pipe")
    wakeup_writer = _writer(tmp_path / "pipe")
    assert all(wakeup_writer.wake() for _ in range(100_000))
    wakeup_writer.close()
    wakeup_pipe.close()


def test_a_wakeup_fails_if_the_reader_is_gone(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "pipe")
    wakeup_writer = _writer(tmp_path / "pipe")
    wakeup_pipe.close()
    assert not wakeup_writer.wake()
    assert WakeupWriter.open(tmp_path / "pipe") is None
    wakeup_writer.close()


def test_a_new_reader_has_a_new_pipe(tmp_path: Path) -> None:
    old = WakeupPipe(tmp_path / "pipe")
    wakeup_writer = _writer(tmp_path / "pipe")
    new = WakeupPipe(tmp_path / "pipe")
    assert wakeup_writer.wake()
    assert not is_readable(new)
    assert _writer(tmp_path / "pipe").wake()
    assert is_readable(new, 5)
    old.close()
    new.close()


def test_a_pipe_whose_writers_are_gone_is_not_readable(tmp_path: Path) -> None:
    wakeup_pipe = WakeupPipe(tmp_path / "pipe")
    wakeup_writer = _writer(tmp_path / "pipe")
    wakeup_writer.wake()
    wakeup_writer.close()
    assert is_readable(wakeup_pipe, 5)
    wakeup_pipe.clear()
    assert not is_readable(wakeup_pipe), "a hang-up would wake the owner's loop for ever"
    wakeup_pipe.close()
