"""A scrape of /metrics costs three times what is promised at most: other work runs beside tests."""

import pytest

from bench.metrics import CPU_S_MAX, SCRAPE_S_MAX, filled_broker, measure


@pytest.mark.slow
def test_a_scrape_of_a_thousand_partitions_and_a_hundred_groups_is_short() -> None:
    with filled_broker(partitions=1_000, topics=100, groups=100) as broker:
        costs = measure(broker, scrapes=5, interval_s=1.5)
    assert costs.series_count > 3 * 1_000 + 3 * 100, "offsets and sizes, and lag"
    assert min(costs.seconds) < 3 * SCRAPE_S_MAX
    assert costs.cpu_s < 3 * CPU_S_MAX
