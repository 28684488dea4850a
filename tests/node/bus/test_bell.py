"""Bells: heard by who sleeps, never in the way of who rings, and silent for who is gone."""

import select
from pathlib import Path

from odradek.node.bus.bell import Bell, Ringer


def _is_rung(bell: Bell, timeout_s: float = 0) -> bool:
    return bool(select.select([bell], [], [], timeout_s)[0])


def _ringer(path: Path) -> Ringer:
    ringer = Ringer.open(path)
    assert ringer is not None
    return ringer


def test_ringing_makes_the_bell_readable_until_it_is_quiet(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    ringer = _ringer(tmp_path / "bell")
    assert not _is_rung(bell)
    assert ringer.ring()
    assert ringer.ring()
    assert _is_rung(bell, 5)
    bell.quiet()
    assert not _is_rung(bell)
    ringer.close()
    bell.close()


def test_ringing_never_blocks_however_often(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    ringer = _ringer(tmp_path / "bell")
    assert all(ringer.ring() for _ in range(100_000))
    ringer.close()
    bell.close()


def test_ringer_learns_that_the_sleeper_is_gone(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    ringer = _ringer(tmp_path / "bell")
    bell.close()
    assert not ringer.ring()
    assert Ringer.open(tmp_path / "bell") is None
    ringer.close()


def test_successor_has_a_bell_of_its_own(tmp_path: Path) -> None:
    old = Bell(tmp_path / "bell")
    ringer = _ringer(tmp_path / "bell")
    new = Bell(tmp_path / "bell")
    assert ringer.ring()
    assert not _is_rung(new)
    assert _ringer(tmp_path / "bell").ring()
    assert _is_rung(new, 5)
    old.close()
    new.close()


def test_bell_without_ringers_does_not_wake_its_owner_for_ever(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    ringer = _ringer(tmp_path / "bell")
    ringer.ring()
    ringer.close()
    assert _is_rung(bell, 5)
    bell.quiet()
    events = select.poll()
    events.register(bell, select.POLLIN)
    assert events.poll(0) == [], "a hang-up would wake the owner's loop for ever"
    bell.close()
