"""Spins continue while they find messages, and become rare when they do not."""

from odradek.node.bus.adaptive_spin import PROCESSORS_MIN, AdaptiveSpin


def _looks(patience: AdaptiveSpin, times: int, *, has_message: bool) -> int:
    count = 0
    for _ in range(times):
        if patience.should_spin():
            count += 1
            patience.spin_ended(has_message=has_message)
    return count


def test_spins_with_results_continue() -> None:
    assert _looks(AdaptiveSpin(PROCESSORS_MIN), 1_000, has_message=True) == 1_000


def test_spins_without_results_become_rare() -> None:
    patience = AdaptiveSpin(PROCESSORS_MIN)
    assert _looks(patience, 6_500, has_message=False) < 120
    assert _looks(patience, 6_500, has_message=False) <= 101


def test_one_result_ends_the_skipping() -> None:
    patience = AdaptiveSpin(PROCESSORS_MIN)
    _looks(patience, 1_000, has_message=False)
    while not patience.should_spin():
        pass
    patience.spin_ended(has_message=True)
    assert _looks(patience, 100, has_message=True) == 100


def test_nothing_spins_where_the_client_needs_the_processor() -> None:
    assert _looks(AdaptiveSpin(PROCESSORS_MIN - 1), 1_000, has_message=True) == 0
