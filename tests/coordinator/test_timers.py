"""Keyed deadlines, compared with a sorted dictionary."""

import random

import pytest

from odradek.coordinator.outcome import TimerKey
from odradek.coordinator.timers import Timers

A: TimerKey = ("session", "g", "a")
B: TimerKey = ("join", "g")


def test_the_earliest_deadline_is_next() -> None:
    timers = Timers()
    assert timers.next_check_ms() is None
    timers.set(A, 30)
    timers.set(B, 20)
    assert timers.next_check_ms() == 20


def test_a_timer_fires_once_at_its_deadline() -> None:
    timers = Timers()
    timers.set(A, 30)
    assert timers.pop_due(29) is None
    assert timers.pop_due(30) == A
    assert timers.pop_due(30) is None
    assert len(timers._entries) == 0


def test_moving_a_deadline_later_or_earlier_takes_effect() -> None:
    timers = Timers()
    timers.set(A, 30)
    timers.set(A, 50)
    assert timers.pop_due(49) is None
    assert timers.next_check_ms() == 50
    timers.set(A, 10)
    assert timers.next_check_ms() == 10
    assert timers.pop_due(10) == A
    assert timers.pop_due(1_000) is None


def test_a_cancelled_timer_that_is_set_again_fires_at_the_new_deadline() -> None:
    timers = Timers()
    timers.set(A, 30)
    timers.cancel(A)
    assert timers.pop_due(100) is None
    timers.set(A, 200)
    assert timers.pop_due(100) is None
    assert timers.pop_due(200) == A
    assert timers.pop_due(1_000) is None


def test_the_heap_stays_small_when_timers_are_set_and_cancelled() -> None:
    timers = Timers()
    for round_ in range(10_000):
        timers.set(A, 10_000 - round_)
        timers.cancel(B)
        timers.set(B, round_)
    assert len(timers._heap) < 200


def test_moved_timers_are_checked_once_and_together() -> None:
    timers = Timers()
    for member in range(1_000):
        timers.set(("session", "g", str(member)), 45_000 + member // 2)
    for now_ms in range(1_000, 40_000, 1_000):
        for member in range(1_000):
            timers.set(("session", "g", str(member)), now_ms + 45_000)
        assert timers.next_check_ms() == 45_000
    assert timers.pop_due(45_000) is None
    assert timers.next_check_ms() == 84_000
    assert timers.pop_due(84_000) is not None


def test_a_cancelled_timer_needs_no_further_check() -> None:
    timers = Timers()
    timers.set(A, 30)
    timers.cancel(A)
    assert timers.pop_due(30) is None
    assert timers.next_check_ms() is None


@pytest.mark.parametrize("seed", range(30))
def test_random_timers_agree_with_a_sorted_dictionary(seed: int) -> None:
    chance = random.Random(seed)
    timers = Timers()
    twin: dict[TimerKey, int] = {}
    now_ms = 0
    for _ in range(1_000):
        key = ("t", str(chance.randrange(20)))
        match chance.randrange(4):
            case 0 | 1:
                deadline_ms = now_ms + chance.randrange(50)
                timers.set(key, deadline_ms)
                twin[key] = deadline_ms
            case 2:
                timers.cancel(key)
                twin.pop(key, None)
            case _:
                now_ms += chance.randrange(20)
                fired = set()
                while (due := timers.pop_due(now_ms)) is not None:
                    fired.add(due)
                assert fired == {key for key, at in twin.items() if at <= now_ms}, seed
                look_ms = timers.next_check_ms()
                assert look_ms is None or look_ms > now_ms, seed
                twin = {key: at for key, at in twin.items() if at > now_ms}
        look_ms = timers.next_check_ms()
        assert not twin or (look_ms is not None and look_ms <= min(twin.values())), seed
        assert len(timers._entries) == len(twin), seed
