"""The arithmetic of quotas, against Kafka's.

`quota_rates_kafka_4_3_1.json` was recorded from the classes Rate and TokenBucket of Apache Kafka
4.3.1: for some sizes of samples, a history of (milliseconds, value) and after each step the rate
and the throttle time of QuotaUtils for a limit of 150 per second; and the tokens and throttle times
of a bucket with a limit of 2.5 per second and 11 samples of a second.
"""

import json
from pathlib import Path

import pytest

from odradek.cluster.security.quota_rates import THROTTLE_MS_MAX, SampledRate, TokenBucket

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
