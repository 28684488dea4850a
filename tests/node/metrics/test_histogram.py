"""Durations are in the bucket whose end is above them."""

import pytest

from odradek.node.metrics.histogram import BUCKETS, FIRST_BIT, DurationHistogram, le_texts


@pytest.mark.parametrize(
    ("duration_ns", "bucket"),
    [
        (0, 0),
        (2**FIRST_BIT - 1, 0),
        (2**FIRST_BIT, 1),
        (2 ** (FIRST_BIT + 1) - 1, 1),
        (2 ** (FIRST_BIT + BUCKETS - 1) - 1, BUCKETS - 1),
        (2 ** (FIRST_BIT + BUCKETS - 1), BUCKETS),
        (2**60, BUCKETS),
        (-5, 0),
    ],
)
def test_a_duration_is_counted_once(duration_ns: int, bucket: int) -> None:
    histogram = DurationHistogram()
    histogram.observe(duration_ns)
    below = [int(index >= bucket) for index in range(BUCKETS + 1)]
    assert histogram.cumulative() == below
    assert histogram.count == 1
    assert histogram.sum_s == max(0, duration_ns) / 1e9


def test_every_bucket_has_those_below_it() -> None:
    histogram = DurationHistogram()
    for duration_ns in (1, 2**FIRST_BIT, 2**62):
        histogram.observe(duration_ns)
    cumulative = histogram.cumulative()
    assert cumulative == [1, *[2] * (BUCKETS - 1), 3]
    assert len(le_texts()) == len(cumulative)
    assert le_texts()[0] == "6.5536e-05"
    assert le_texts()[-1] == "+Inf"
    ends = [float(text) for text in le_texts()]
    assert ends == sorted(ends)
