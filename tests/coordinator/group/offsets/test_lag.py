"""Where a group has lag, and how the lag of partitions adds up."""

from odradek.coordinator.group.offsets.lag import LagSum, lag_positions

COUNTS = {"t": 3, "u": 1}


def positions(topics: set[str], commits: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    return dict(lag_positions(topics, commits, lambda topic: COUNTS.get(topic, 0)))


def test_every_partition_of_the_topics_that_a_group_reads_has_a_position() -> None:
    assert positions({"t"}, {("t", 1): 7}) == {("t", 0): -1, ("t", 1): 7, ("t", 2): -1}


def test_topics_are_read_where_something_is_committed() -> None:
    assert positions(set(), {("t", 1): 7}).keys() == {("t", 0), ("t", 1), ("t", 2)}
    assert positions({"u"}, {}) == {("u", 0): -1}


def test_of_a_topic_that_does_not_exist_only_committed_offsets_are_known() -> None:
    assert positions({"gone"}, {("old", 4): 2}) == {("old", 4): 2}


def test_records_and_bytes_add_up_and_the_age_is_the_largest() -> None:
    total = LagSum()
    total.add(3, 210, 5_000, is_committed=True)
    total.add(2, 140, 9_000, is_committed=False)
    total.add(0, 0, 0, is_committed=True)
    assert (total.records, total.bytes, total.lag_ms) == (5, 350, 9_000)
    assert (total.uncommitted_count, total.is_known) == (1, True)


def test_a_sum_is_not_known_while_a_partition_is_not() -> None:
    total = LagSum()
    total.add(3, 210, 5_000, is_committed=True)
    total.add_unknown()
    assert (total.is_known, total.unknown_count) == (False, 1)
