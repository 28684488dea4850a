"""The arithmetic of quotas, against Kafka's.

`quota_rates_kafka_4_3_1.json` was recorded from the classes Rate and TokenBucket of Apache Kafka
4.3.1: for some sizes of samples, a history of (milliseconds, value) and after each step the rate
and the throttle time of QuotaUtils for a limit of 150 per second; and the tokens and throttle times
of a bucket with a limit of 2.5 per second and 11 samples of a second.
"""

import json
from pathlib import Path

import pytest

from odradek.cluster.security.quota_rates import (
    THROTTLE_MS_MAX,
    BurstCredit,
    SampledRate,
    TokenBucket,
)

LIMIT = 1_000_000.0
RECORDED = json.loads(
    (Path(__file__).parents[2] / "support" / "quota_rates_kafka_4_3_1.json").read_text()
)


@pytest.mark.parametrize("history", RECORDED["rates"], ids=lambda each: f"{each[0]}x{each[1]}ms")
def test_rates_and_throttle_times_are_those_of_kafka(history: list[object]) -> None:
    sample_count, sample_ms, steps = history
    assert isinstance(sample_count, int)
    assert isinstance(sample_ms, int)
    assert isinstance(steps, list)
    rate = SampledRate(sample_count, sample_ms)
    for now_ms, value, expected_rate, expected_ms in steps:
        rate.record(value, now_ms)
        assert rate.rate(now_ms) == pytest.approx(expected_rate)
        assert rate.throttle_ms(150.0, now_ms) == pytest.approx(expected_ms, abs=1)


def test_tokens_are_those_of_kafka() -> None:
    bucket = TokenBucket()
    for now_ms, count, tokens, throttle_ms in RECORDED["buckets"]:
        bucket.take(count, 2.5, 11.0, now_ms)
        assert bucket.tokens(2.5, 11.0, now_ms) == pytest.approx(tokens)
        assert bucket.throttle_ms(2.5, 11.0, now_ms) == pytest.approx(throttle_ms, abs=1)


def test_what_is_taken_back_does_not_count() -> None:
    rate = SampledRate(11, 1000)
    rate.record(100.0, 0)
    before = rate.rate(500)
    rate.record(900.0, 500)
    rate.record(-900.0, 500)
    assert rate.rate(500) == before


def test_a_rate_is_zero_after_the_window() -> None:
    rate = SampledRate(3, 1000)
    rate.record(100.0, 0)
    assert not rate.is_idle(2_999)
    assert rate.is_idle(3_000)
    assert rate.rate(3_000) == 0.0


def test_the_number_of_samples_is_bounded() -> None:
    rate = SampledRate(3, 1000)
    for second in range(100):
        rate.record(1.0, second * 1000)
    assert len(rate._samples) == 4


def test_throttle_times_fit_into_a_response() -> None:
    rate = SampledRate(11, 1000)
    rate.record(1e9, 0)
    assert rate.throttle_ms(1e-6, 0) == THROTTLE_MS_MAX
    bucket = TokenBucket()
    bucket.take(1e9, 1e-6, 11.0, 0)
    assert bucket.throttle_ms(1e-6, 11.0, 0) == THROTTLE_MS_MAX


def test_a_new_bucket_is_full_and_does_not_overflow() -> None:
    bucket = TokenBucket()
    assert bucket.tokens(5.0, 10.0, 0) == 50.0
    bucket.take(20.0, 5.0, 10.0, 0)
    assert bucket.tokens(5.0, 10.0, 2_000) == 40.0
    assert bucket.tokens(5.0, 10.0, 60_000) == 50.0
    # A smaller limit takes away what is above its burst.
    assert bucket.tokens(1.0, 10.0, 60_000) == 10.0


class SaturatingClient:
    """Uses as much as it may, in requests of this size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used: list[int] = []

    def run(self, *, until_ms: int) -> None:
        rate, credit = SampledRate(11, 1000), BurstCredit()
        now_ms = 0
        while now_ms < until_ms:
            rate.record(self._size, now_ms)
            credit.record(self._size, LIMIT, now_ms, sample_ms=1000, credit_ms_max=10_000)
            self._used.append(now_ms)
            now_ms += rate.throttle_ms(LIMIT, now_ms) or credit.throttle_ms(now_ms, 1000)
            now_ms += 1

    def rate(self, start_ms: int, end_ms: int) -> float:
        used = sum(start_ms <= used_ms < end_ms for used_ms in self._used)
        return 1000 * used * self._size / (end_ms - start_ms)


@pytest.mark.parametrize("size", [10_000, 50_000, 200_000])
def test_a_client_that_uses_all_it_may_is_within_a_tenth_of_its_limit(size: int) -> None:
    client = SaturatingClient(size)
    client.run(until_ms=70_000)
    # The first burst is paid back within its window.
    assert client.rate(0, 30_000) == pytest.approx(LIMIT, rel=0.1)
    for start_ms in range(12_000, 40_000, 2_000):
        assert client.rate(start_ms, start_ms + 30_000) == pytest.approx(LIMIT, rel=0.1)


def test_credit_comes_back_while_less_than_the_limit_is_used() -> None:
    credit = BurstCredit()

    def use(value: float, now_ms: int) -> int:
        credit.record(value, 100.0, now_ms, sample_ms=1000, credit_ms_max=10_000)
        return credit.throttle_ms(now_ms, 1000)

    assert use(1_000, 0) == 0
    # One second of credit is left.
    assert use(100, 10_000) == 0
    assert use(200, 10_000) == 2_000
    # Three seconds were used at 10 s, and seven were not.
    assert use(700, 20_000) == 0
    assert use(100, 20_000) == 7_000
