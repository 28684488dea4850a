"""Open transactions against a log that is read record by record."""

import random

import pytest

from odradek.storage.transactions import AbortedTransactionRow, UndecidedTransactions


def test_a_row_is_decoded() -> None:
    row = AbortedTransactionRow(5, 10, 20, 15)
    assert AbortedTransactionRow.decode(row.encode()) == row


def test_the_oldest_open_transaction_bounds_the_last_stable_offset() -> None:
    undecided = UndecidedTransactions()
    assert undecided.last_stable_offset(100) == 100
    undecided.open(1, 10)
    undecided.open(2, 20)
    undecided.open(1, 30)
    assert undecided.last_stable_offset(100) == 10
    assert undecided.last_stable_offset(5) == 5
    aborted = undecided.complete(1, 40, is_commit=False)
    assert aborted == AbortedTransactionRow(1, 10, 40, 20)
    assert undecided.last_stable_offset(100) == 10, "not decided for readers yet"
    undecided.on_high_watermark_updated(40)
    assert undecided.last_stable_offset(100) == 10
    undecided.on_high_watermark_updated(41)
    assert undecided.last_stable_offset(100) == 20


def test_a_marker_without_a_transaction_has_no_effect() -> None:
    undecided = UndecidedTransactions()
    assert undecided.complete(9, 40, is_commit=False) is None
    assert undecided.last_stable_offset(50) == 50


def test_a_copy_is_independent() -> None:
    undecided = UndecidedTransactions()
    undecided.open(1, 10)
    copied = undecided.copy()
    copied.complete(1, 11, is_commit=True)
    copied.open(2, 12)
    assert undecided.ongoing == {1: 10}
    assert undecided.unreplicated == []


@pytest.mark.parametrize("seed", range(60))
def test_last_stable_offset_and_aborted_rows_equal_a_scan_of_the_log(seed: int) -> None:
    chance = random.Random(seed)
    undecided = UndecidedTransactions()
    log: list[tuple[int, str]] = []
    rows: list[AbortedTransactionRow] = []
    high_watermark = 0
    for _ in range(60):
        producer = chance.randrange(4)
        kind = chance.choice(["data", "data", "data", "commit", "abort", "plain"])
        offset = len(log)
        log.append((producer, kind))
        if kind == "data":
            undecided.open(producer, offset)
        elif kind in ("commit", "abort"):
            row = undecided.complete(producer, offset, is_commit=kind == "commit")
            if row is not None:
                rows.append(row)
        high_watermark = chance.randrange(high_watermark, len(log) + 1)
        undecided.on_high_watermark_updated(high_watermark)
        assert undecided.last_stable_offset(high_watermark) == stable(log, high_watermark)
    assert [(r.producer_id, r.first_offset, r.last_offset) for r in rows] == aborted(log)
    # Whoever stops at a row whose stable offset reaches the end of his range misses nothing.
    for end in range(len(log)):
        for index, row in enumerate(rows):
            if row.last_stable_offset >= end:
                assert all(later.first_offset >= end for later in rows[index + 1 :])


def stable(log: list[tuple[int, str]], high_watermark: int) -> int:
    """The first transactional record below the high watermark whose marker is not below it."""
    for offset in range(high_watermark):
        producer, kind = log[offset]
        if kind == "data" and not any(
            other == producer and later in ("commit", "abort")
            for other, later in log[offset:high_watermark]
        ):
            return offset
    return high_watermark


def aborted(log: list[tuple[int, str]]) -> list[tuple[int, int, int]]:
    found = []
    first: dict[int, int] = {}
    for offset, (producer, kind) in enumerate(log):
        if kind == "data":
            first.setdefault(producer, offset)
        elif kind in ("commit", "abort") and producer in first:
            start = first.pop(producer)
            if kind == "abort":
                found.append((producer, start, offset))
    return found
