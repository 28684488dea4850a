"""Each wrong row is found by its offset, and each offset without a record is explained or found."""

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from odradek.pipeline.jobs.comparison import compare_window, find_unexplained, holes_of
from odradek.pipeline.jobs.findings import FindingKind, Findings
from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.wire.partition_reader import OffsetGap

SCHEMA = pa.schema([pa.field("kafka_offset", pa.int64()), pa.field("kafka_value", pa.binary())])
Row = tuple[int, bytes]
Told = dict[FindingKind, list[tuple[int, str]]]


def _rows(rows: Sequence[Row]) -> pa.Table:
    offsets = pa.array([offset for offset, _ in rows], pa.int64())
    values = pa.array([value for _, value in rows], pa.binary())
    return pa.Table.from_arrays([offsets, values], schema=SCHEMA)


def _window(start: int, end: int) -> PartitionRange:
    return PartitionRange("orders", "", 3, start, end)


def _compare(
    expected: Sequence[Row],
    found: Sequence[Row],
    *,
    end: int,
    start: int = 0,
    bad: Sequence[int] = (),
    gaps: Sequence[OffsetGap] = (),
) -> tuple[int, Told]:
    findings = Findings()
    window = _window(start, end)
    gone = compare_window(window, _rows(expected), _rows(found), bad, gaps, findings)
    committed = sorted([*(offset for offset, _ in expected), *bad])
    holes = holes_of(window, pa.chunked_array([committed], pa.int64()))
    find_unexplained(window, holes, gaps, findings)
    told = {
        kind: [(each.offset, each.detail) for each in findings.shown(kind)]
        for kind in findings.counts()
    }
    return gone, told


ROWS = [(offset, b"%d" % offset) for offset in range(10)]


def test_equal_rows_in_any_order_are_no_finding() -> None:
    assert _compare(ROWS, ROWS, end=10) == (0, {})
    assert _compare(ROWS, ROWS[5:] + ROWS[:5], end=10) == (0, {})


def test_dropped_doubled_and_altered_rows_are_each_reported_exactly() -> None:
    found = [*ROWS[:3], *ROWS[4:7], (7, b"x"), *ROWS[8:], ROWS[5], ROWS[5], ROWS[0]]

    _, told = _compare(ROWS, found, end=10)

    assert told == {
        FindingKind.MISSING: [(3, "")],
        FindingKind.DOUBLED: [(0, "2 times"), (5, "3 times")],
        FindingKind.ALTERED: [(7, "kafka_value")],
    }


def test_an_altered_copy_of_a_row_is_doubled_and_altered() -> None:
    _, told = _compare(ROWS, [*ROWS, (4, b"other")], end=10)

    assert told == {
        FindingKind.DOUBLED: [(4, "2 times")],
        FindingKind.ALTERED: [(4, "kafka_value")],
    }


def test_an_empty_table_misses_everything() -> None:
    gone, told = _compare(ROWS, [], end=10)

    assert gone == 0
    assert told == {FindingKind.MISSING: [(offset, "") for offset in range(10)]}


def test_gaps_with_a_reason_are_no_finding() -> None:
    records = [ROWS[2], ROWS[5], ROWS[6]]
    gaps = [
        OffsetGap(0, 2, "expired"),
        OffsetGap(3, 5, "aborted"),
        OffsetGap(7, 8, "control"),
        OffsetGap(8, 10, "compacted"),
    ]

    assert _compare(records, records, end=10, gaps=gaps) == (0, {})


def test_offsets_between_the_gaps_are_unexplained() -> None:
    gaps = [OffsetGap(1, 2, "control"), OffsetGap(4, 6, "aborted")]

    _, told = _compare([ROWS[0]], [ROWS[0]], end=8, gaps=gaps)

    assert told == {FindingKind.GAP_UNEXPLAINED: [(2, ""), (3, ""), (6, ""), (7, "")]}


def test_rows_of_compacted_and_expired_records_may_be_there_once() -> None:
    gaps = [OffsetGap(0, 4, "expired"), OffsetGap(6, 8, "compacted")]
    found = [ROWS[1], ROWS[3], ROWS[3], *ROWS[4:10]]

    gone, told = _compare([ROWS[4], ROWS[5], *ROWS[8:]], found, end=10, gaps=gaps)

    assert gone == 5
    assert told == {FindingKind.DOUBLED: [(3, "2 times")]}


def test_rows_without_a_committed_record_are_unexpected() -> None:
    gaps = [OffsetGap(1, 3, "aborted"), OffsetGap(3, 4, "control")]

    _, told = _compare([ROWS[0]], [*ROWS[:6]], end=5, bad=[4], gaps=gaps)

    assert told == {
        FindingKind.UNEXPECTED: [
            (1, "its record is of an aborted transaction"),
            (2, "its record is of an aborted transaction"),
            (3, "its offset is a control record"),
            (4, "its record does not fit the schema"),
            (5, "its offset has no record"),
        ]
    }


def test_bad_records_are_no_gaps() -> None:
    assert _compare([ROWS[1]], [ROWS[1]], end=3, bad=[2, 0]) == (0, {})


def test_holes_are_the_offsets_between_records() -> None:
    offsets = pa.chunked_array([[3, 4], [8]], pa.int64())

    assert holes_of(_window(0, 12), offsets) == [(0, 3), (5, 8), (9, 12)]
    assert holes_of(_window(5, 9), pa.chunked_array([], pa.int64())) == [(5, 9)]
    assert holes_of(_window(5, 5), pa.chunked_array([], pa.int64())) == []


@pytest.mark.parametrize("seed", range(50))
def test_same_findings_as_offset_by_offset(seed: int) -> None:
    chance = random.Random(seed)
    start = chance.randrange(100)
    end = start + chance.randrange(1, 60)
    what = {
        offset: chance.choice(["good", "good", "good", "bad", "control", "aborted", "expired", ""])
        for offset in range(start, end)
    }
    good = [(offset, b"%d" % offset) for offset, kind in what.items() if kind == "good"]
    gaps = [
        OffsetGap(offset, offset + 1, kind)
        for offset, kind in what.items()
        if kind in ("control", "aborted", "expired")
    ]
    found = [row for row in good for _ in range(chance.choice([1, 1, 1, 1, 0, 2]))]
    found += [
        (offset, b"") for offset, kind in what.items() if kind != "good" and chance.random() < 0.2
    ]
    found = [(offset, chance.choice([value, value, value, b"!"])) for offset, value in found]
    chance.shuffle(found)

    _, told = _compare(
        good,
        found,
        start=start,
        end=end,
        bad=[offset for offset, kind in what.items() if kind == "bad"],
        gaps=gaps,
    )

    at = [offset for offset, _ in found]
    wanted = {
        FindingKind.MISSING: {offset for offset, _ in good if offset not in at},
        FindingKind.DOUBLED: {offset for offset in at if at.count(offset) > 1},
        FindingKind.ALTERED: {
            row[0] for row in found if row not in good and what[row[0]] == "good"
        },
        FindingKind.UNEXPECTED: {o for o in at if what[o] not in ("good", "expired")},
        FindingKind.GAP_UNEXPLAINED: {offset for offset, kind in what.items() if not kind},
    }
    assert {kind: {offset for offset, _ in each} for kind, each in told.items()} == {
        kind: offsets for kind, offsets in wanted.items() if offsets
    }
