"""The checker of end-to-end runs finds one fault of each kind."""

from collections.abc import Callable

import pytest

from tests.e2e.checker import ObservedHistory, ObservedRead, Position, Value, anomalies


def sound_history() -> ObservedHistory:
    """Ten records over two partitions, read by a group that was rebalanced once."""
    history = ObservedHistory()
    for number in range(10):
        value = Value(0, number)
        position = Position(number % 2, number // 2)
        history.sent[value] = position.partition
        history.acknowledged[value] = position
        history.log.setdefault(position.partition, []).append((position.offset, value))
    history.readings = [
        ObservedRead("a", 0, history.log[0][:3], committed=2),
        ObservedRead("a", 1, history.log[1][:]),
        ObservedRead("b", 0, history.log[0][2:]),
    ]
    return history


def test_a_sound_history_has_no_anomalies() -> None:
    assert anomalies(sound_history()) == []


def test_a_record_without_an_answer_may_be_there_or_not() -> None:
    history = sound_history()
    del history.acknowledged[Value(0, 9)]
    history.sent[Value(0, 10)] = 0
    assert anomalies(history) == []


def test_only_a_commit_from_before_a_reading_began_must_be_resumed() -> None:
    history = sound_history()
    history.readings[0].committed = 3
    history.readings[2].resumed_from = -1
    assert anomalies(history) == []
    history.readings[2].resumed_from = 3
    [sentence] = anomalies(history)
    assert sentence == "commit lost: b began partition 0 at 2, 3 was committed"


def lose(history: ObservedHistory) -> None:
    del history.log[0][4]
    del history.readings[2].records[-1]


def move(history: ObservedHistory) -> None:
    history.acknowledged[Value(0, 3)] = Position(1, 2)


def double(history: ObservedHistory) -> None:
    history.log[0].append((5, Value(0, 8)))
    history.readings[2].records.append((5, Value(0, 8)))


def invent(history: ObservedHistory) -> None:
    del history.sent[Value(0, 0)], history.acknowledged[Value(0, 0)]


def reorder(history: ObservedHistory) -> None:
    for records in (history.log[1], history.readings[1].records):
        (first, one), (second, other) = records[:2]
        records[:2] = [(first, other), (second, one)]
    history.acknowledged[Value(0, 1)] = Position(1, 1)
    history.acknowledged[Value(0, 3)] = Position(1, 0)


def misread(history: ObservedHistory) -> None:
    history.readings[1].records[2] = (2, Value(7, 7))


def vanish(history: ObservedHistory) -> None:
    """One member read the last record of partition 1; all later readers miss it."""
    value = Value(0, 10)
    history.sent[value] = 1
    history.readings[1].records.append((5, value))


def abort(history: ObservedHistory) -> None:
    """A record of a transaction that was aborted, which was read nevertheless."""
    value = history.readings[1].records[-1][1]
    history.aborted.add(value)
    del history.acknowledged[value]


def skip(history: ObservedHistory) -> None:
    del history.readings[1].records[2]


def go_back(history: ObservedHistory) -> None:
    history.readings[1].records.append(history.log[1][0])


def begin_late(history: ObservedHistory) -> None:
    del history.readings[2].records[:2]


def forget_a_commit(history: ObservedHistory) -> None:
    history.readings[0].committed = 3


def end_early(history: ObservedHistory) -> None:
    history.readings[1].records.pop()


def complain(history: ObservedHistory) -> None:
    history.complaints.append("_FATAL")


@pytest.mark.parametrize(
    ("spoil", "beginning"),
    [
        (lose, "lost: "),
        (move, "moved: "),
        (double, "doubled: "),
        (invent, "invented: "),
        (reorder, "reordered: "),
        (misread, "inconsistent: "),
        (vanish, "vanished: "),
        (abort, "aborted: "),
        (skip, "skipped: "),
        (go_back, "went back: "),
        (begin_late, "unread: "),
        (forget_a_commit, "commit lost: "),
        (end_early, "unread: "),
        (complain, "an application was told: _FATAL"),
    ],
)
def test_a_fault_is_found(spoil: Callable[[ObservedHistory], None], beginning: str) -> None:
    history = sound_history()
    spoil(history)
    found = anomalies(history)
    assert len(found) == 1
    assert found[0].startswith(beginning)


def test_many_of_a_kind_are_counted() -> None:
    history = sound_history()
    history.complaints = [str(number) for number in range(10)]
    assert anomalies(history)[-1] == "... and 7 more like this"
