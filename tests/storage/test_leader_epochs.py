"""Leader epochs against KIP-101 and KIP-279, and against a list that is searched from the start."""

import random

import pytest

from odradek.storage.leader_epochs import LeaderEpochs


def test_an_epoch_ends_where_the_next_one_starts() -> None:
    epochs = LeaderEpochs([(1, 0), (3, 10), (7, 25)])
    assert epochs.end_offset(1, 40) == (1, 10)
    assert epochs.end_offset(2, 40) == (1, 10)
    assert epochs.end_offset(3, 40) == (3, 25)
    assert epochs.end_offset(7, 40) == (7, 40)


def test_an_unknown_newer_epoch_or_no_epoch_has_no_end() -> None:
    epochs = LeaderEpochs([(1, 0)])
    assert epochs.end_offset(2, 40) == (-1, -1)
    assert epochs.end_offset(-1, 40) == (-1, -1)
    assert LeaderEpochs().end_offset(0, 40) == (-1, -1)


def test_an_epoch_below_all_known_ones_ends_where_the_first_starts() -> None:
    assert LeaderEpochs([(5, 12)]).end_offset(3, 40) == (3, 12)


def test_an_epoch_without_records_is_replaced_by_the_next() -> None:
    epochs = LeaderEpochs([(1, 0)])
    epochs.assign(2, 10)
    epochs.assign(3, 10)
    assert list(epochs.entries) == [(1, 0), (3, 10)]
    epochs.assign(3, 99)
    epochs.assign(-1, 99)
    assert list(epochs.entries) == [(1, 0), (3, 10)]


def test_entries_that_contradict_a_new_one_are_removed() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10), (5, 30)])
    epochs.assign(4, 20)
    assert list(epochs.entries) == [(1, 0), (2, 10), (4, 20)]
    epochs.assign(6, 10)
    assert list(epochs.entries) == [(1, 0), (6, 10)]


def test_truncation_from_both_ends() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10), (5, 30)])
    epochs.truncate_start(15)
    assert list(epochs.entries) == [(2, 15), (5, 30)]
    epochs.truncate_end(30)
    assert list(epochs.entries) == [(2, 15)]
    epochs.truncate_end(15)
    assert list(epochs.entries) == []
    epochs.truncate_start(99)
    assert list(epochs.entries) == []


@pytest.mark.parametrize("seed", range(50))
def test_lookups_agree_with_a_log_that_is_searched_record_by_record(seed: int) -> None:
    chance = random.Random(seed)
    epochs = LeaderEpochs()
    records: list[int] = []
    epoch = 0
    for _ in range(chance.randrange(1, 12)):
        epoch += chance.randrange(1, 4)
        epochs.assign(epoch, len(records))
        records += [epoch] * chance.randrange(0, 4)
    start = chance.randrange(len(records) + 1)
    epochs.truncate_start(start)
    for offset in range(start, len(records)):
        assert epochs.epoch_at(offset) == records[offset]
    for asked in range(epoch + 1):
        if not any(known <= asked for known in records[start:]):
            continue
        best = max(known for known in records[start:] if known <= asked)
        end = next((i for i in range(start, len(records)) if records[i] > best), len(records))
        assert epochs.end_offset(asked, len(records)) in ((best, end), (epoch, len(records)))


def test_epochs_with_records_are_those_that_start_before_the_end() -> None:
    epochs = LeaderEpochs(((0, 0), (3, 5), (4, 9)))
    assert epochs.with_records(9) == ((0, 0), (3, 5))
    assert epochs.with_records(10) == ((0, 0), (3, 5), (4, 9))
    assert LeaderEpochs(((0, 0),)).with_records(0) == ()


def test_an_epoch_without_records_is_dropped_when_a_batch_of_an_earlier_one_follows() -> None:
    def left(entries: tuple[tuple[int, int], ...], base_offset: int) -> tuple[tuple[int, int], ...]:
        epochs = LeaderEpochs(entries)
        epochs.drop_if_empty(base_offset)
        return epochs.entries

    assert left(((0, 0), (3, 5)), 4) == ((0, 0), (3, 5))
    assert left(((0, 0), (3, 5)), 5) == ((0, 0),)
    assert left((), 0) == ()
