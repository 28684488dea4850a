"""The terms of a share group."""

from coordinator.share.terms import Terms


def test_without_a_delay_nothing_rests() -> None:
    assert Terms().delay_ms(3) == 0


def test_a_record_rests_longer_with_each_delivery_but_never_more_than_a_day() -> None:
    terms = Terms(redelivery_delay_ms=100, redelivery_backoff=2.0)
    assert [terms.delay_ms(count) for count in (0, 1, 2, 3)] == [0, 100, 200, 400]
    assert terms.delay_ms(60) == 86_400_000


def test_suspicion_begins_at_half_of_the_limit_rounded_up_but_not_below_two() -> None:
    limits = [Terms(delivery_count_limit=limit).throttle_from for limit in (2, 3, 5, 6, 10)]
    assert limits == [2, 2, 3, 3, 5]
