"""The limits of an acquisition."""

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acquisition import (
    AcquiredRange,
    AcquireOptions,
    Acquisition,
    is_last_attempt,
    throttled_records_max,
)

SETTINGS = ShareGroupSettings(delivery_count_limit=6)


def test_adjacent_ranges_are_joined_up_to_the_batch_size() -> None:
    acquisition = Acquisition(AcquireOptions(records_max=100, batch_size=4))
    for start in (0, 2, 4, 6):
        acquisition.add(start, start + 2, 1)
    assert acquisition.ranges == [AcquiredRange(0, 4, 1), AcquiredRange(4, 8, 1)]
    assert acquisition.count == 8


def test_ranges_with_different_delivery_counts_or_a_gap_are_not_joined() -> None:
    acquisition = Acquisition(AcquireOptions(records_max=100))
    acquisition.add(0, 2, 1)
    acquisition.add(2, 4, 2)
    acquisition.add(5, 6, 2)
    assert len(acquisition.ranges) == 3


def test_a_batch_is_split_only_in_record_limit_mode() -> None:
    assert Acquisition(AcquireOptions(records_max=3)).room(9) == 9
    assert Acquisition(AcquireOptions(records_max=3, is_exact=True)).room(9) == 3


def test_throttling_starts_at_half_of_the_limit_and_halves_the_count_each_time() -> None:
    assert throttled_records_max(SETTINGS, 2, 500) is None
    assert throttled_records_max(SETTINGS, 3, 500) == 250
    assert throttled_records_max(SETTINGS, 4, 500) == 125
    assert throttled_records_max(SETTINGS, 5, 500) == 1
    assert throttled_records_max(SETTINGS, 4, 2) == 1


def test_with_a_limit_of_two_no_delivery_is_made_alone() -> None:
    assert not is_last_attempt(ShareGroupSettings(delivery_count_limit=2), 1)
    assert is_last_attempt(ShareGroupSettings(delivery_count_limit=3), 2)
