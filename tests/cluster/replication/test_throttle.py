"""The token bucket of replication throttles."""

from odradek.cluster.replication.throttle import TokenBudget


def test_without_a_rate_there_is_no_limit() -> None:
    budget = TokenBudget(0)
    budget.spend(1 << 40, 0)
    assert budget.available(0)
    assert budget.next_ms(5) == 5


def test_overdrawn_tokens_are_refilled_by_time() -> None:
    budget = TokenBudget(0, 1_000)
    assert budget.available(0)
    budget.spend(3_000, 0)
    assert not budget.available(0)
    due_ms = budget.next_ms(0)
    assert 2_000 <= due_ms <= 2_001
    assert not budget.available(due_ms - 1)
    assert budget.available(due_ms)


def test_the_allowance_does_not_overdraw() -> None:
    assert TokenBudget(0).allowance(0) is None
    budget = TokenBudget(0, 1_000)
    assert budget.allowance(0) == 1_000
    budget.spend(3_000, 0)
    assert budget.allowance(1_000) == 0
    assert budget.allowance(2_500) == 500


def test_tokens_accumulate_for_one_second() -> None:
    budget = TokenBudget(0, 1_000)
    budget.spend(1_001, 100_000)
    assert not budget.available(100_000)


def test_over_a_long_time_the_rate_is_kept() -> None:
    budget = TokenBudget(0, 10_000)
    sent = now_ms = 0
    while now_ms < 60_000:
        if budget.available(now_ms):
            budget.spend(700, now_ms)
            sent += 700
        now_ms += 1
    assert 590_000 <= sent <= 620_000


def test_a_rate_of_zero_allows_nothing() -> None:
    budget = TokenBudget(0, 0)
    assert not budget.available(10_000)
    assert budget.next_ms(10_000) > 10_000


def test_a_clock_that_goes_back_adds_no_tokens() -> None:
    budget = TokenBudget(1_000, 1_000)
    budget.spend(1_000, 1_000)
    assert not budget.available(0)
    assert not budget.available(1_000)
