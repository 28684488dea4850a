"""Plans of offsets: nothing starves, nothing is lost or doubled, tasks have equal shares."""

import random

from odradek.pipeline.jobs.offload_plan import (
    PIECE_ROWS_MIN,
    PartitionProgress,
    next_ranges,
    task_pieces,
)
from odradek.pipeline.kafka_types import PartitionName, PartitionRange


def progress(*bounds: tuple[int, int]) -> dict[PartitionName, PartitionProgress]:
    return {
        PartitionName("orders", partition): PartitionProgress("an-id", start, end)
        for partition, (start, end) in enumerate(bounds)
    }


def bounds_of(ranges: tuple[PartitionRange, ...]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


def test_a_plan_has_all_that_is_there_if_it_fits() -> None:
    ranges = next_ranges(progress((0, 10), (5, 5), (7, 9)), 100, is_first=False)
    assert bounds_of(ranges) == [(0, 0, 10), (2, 7, 9)]
    assert ranges[0].topic_id == "an-id"


def test_the_first_plan_says_where_each_partition_begins() -> None:
    ranges = next_ranges(progress((0, 10), (5, 5)), 100, is_first=True)
    assert bounds_of(ranges) == [(0, 0, 10), (1, 5, 5)]


def test_a_limit_is_shared_by_lag_and_nobody_starves() -> None:
    ranges = next_ranges(progress((0, 9_000_000), (0, 1_000_000), (3, 4)), 1000, is_first=False)
    assert bounds_of(ranges) == [(0, 0, 900), (1, 0, 100), (2, 3, 4)]


def test_without_lag_there_is_nothing_to_do() -> None:
    assert next_ranges(progress((4, 4), (9, 8)), 100, is_first=False) == ()


def test_one_large_partition_has_work_for_every_core() -> None:
    tasks = task_pieces((PartitionRange("orders", "", 0, 10, 1_000_010),), 4)
    assert [bounds_of(task) for task in tasks] == [
        [(0, 10, 250_010)],
        [(0, 250_010, 500_010)],
        [(0, 500_010, 750_010)],
        [(0, 750_010, 1_000_010)],
    ]


def test_small_ranges_share_a_task() -> None:
    ranges = [PartitionRange("orders", "", partition, 0, 10) for partition in range(100)]
    tasks = task_pieces(ranges, 4)
    assert [len(task) for task in tasks] == [25, 25, 25, 25]
    assert task_pieces((), 4) == ()
    assert task_pieces([PartitionRange("orders", "", 0, 5, 5)], 4) == ()


def test_every_offset_is_in_exactly_one_piece() -> None:
    chance = random.Random(14)
    for _ in range(300):
        ranges = tuple(
            PartitionRange("orders", "", partition, start, start + size)
            for partition in range(chance.randrange(8))
            for start in [chance.randrange(100)]
            for size in [chance.choice([0, 1, chance.randrange(20 * PIECE_ROWS_MIN)])]
        )
        pieces = [piece for task in task_pieces(ranges, chance.randint(1, 9)) for piece in task]
        for each in ranges:
            own = sorted(
                (piece.start, piece.end) for piece in pieces if piece.partition == each.partition
            )
            joined = [each.start, *(end for _, end in own)]
            assert joined[-1] == each.end
            assert [start for start, _ in own] == joined[:-1]
