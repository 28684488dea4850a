"""How busy a process is, by two clocks that the test sets."""

import pytest

from odradek.node.worker.busy_share import WINDOW_S, BusyShare


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 1.7])
def test_the_share_is_that_of_the_last_window(share: float) -> None:
    """Above 1 with several threads."""
    used_s = 5.0
    busy = BusyShare(lambda: used_s)
    now_s = 100.0
    assert busy.of_last_window(now_s) == 0
    for _ in range(10):
        now_s += WINDOW_S / 10
        used_s += share * WINDOW_S / 10
    assert busy.of_last_window(now_s + 0.001) == pytest.approx(share, rel=0.1)
    # The next one is not complete.
    used_s += 1.0
    assert busy.of_last_window(now_s + WINDOW_S / 2) == pytest.approx(share, rel=0.1)


def test_a_time_in_which_nobody_asked_counts_for_nothing() -> None:
    used_s = 5.0
    busy = BusyShare(lambda: used_s)
    busy.of_last_window(100.0)
    used_s += 3.0
    assert busy.of_last_window(103.0) == 0
    used_s += WINDOW_S
    assert busy.of_last_window(103.0 + WINDOW_S) == pytest.approx(1.0)
