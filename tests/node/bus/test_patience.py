"""Patience: looks while they find something, fewer and fewer when they do not."""

from odradek.node.bus.patience import Patience


def _looks(patience: Patience, times: int, *, has_found: bool) -> int:
    count = 0
    for _ in range(times):
        if patience.is_worth_a_look():
            count += 1
            patience.ended(has_found=has_found)
    return count


def test_looks_that_find_something_go_on() -> None:
    assert _looks(Patience(), 1_000, has_found=True) == 1_000


def test_looks_in_vain_become_rare() -> None:
    patience = Patience()
    assert _looks(patience, 6_500, has_found=False) < 120
    assert _looks(patience, 6_500, has_found=False) <= 101


def test_one_find_restores_all_patience() -> None:
    patience = Patience()
    _looks(patience, 1_000, has_found=False)
    while not patience.is_worth_a_look():
        pass
    patience.ended(has_found=True)
    assert _looks(patience, 100, has_found=True) == 100
