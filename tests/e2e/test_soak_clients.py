"""What is said of groups that have not read what they should have."""

from tests.e2e.checker import Log, Position, Value
from tests.e2e.soak_clients import CopyGroup, ReadingGroup, Tally

LOG: Log = {0: [(0, Value(0, 0)), (1, Value(1, 5))], 1: [(7, Value(0, 2000))]}


def test_a_tally_counts_pairs() -> None:
    tally = Tally()
    for pair in ((1, 5), (0, 3000), (1, 5)):
        tally.add(pair)
    assert (tally.total, tally[1, 5], tally[0, 3000], tally[0, 1], tally[9, 9]) == (3, 2, 1, 0, 0)
    assert list(tally.pairs()) == [(0, 3000), (1, 5)]
    for _ in range(300):
        tally.add((1, 5))
    assert tally[1, 5] == 255


def test_a_group_must_have_read_everything_and_nothing_else() -> None:
    group = ReadingGroup("g")
    for position in (Position(0, 0), Position(0, 0), Position(1, 7)):
        group.add(position)
    assert group.unread(LOG) == 1
    assert group.found(LOG) == ["g has not read 1 records, such as Position(partition=0, offset=1)"]
    group.add(Position(0, 1))
    assert (group.unread(LOG), group.found(LOG), group.read_count()) == (0, [], 4)
    group.add(Position(5, 0))
    assert group.found(LOG) == ["g has read what is nowhere: 1 records, such as (5, 0)"]


def test_a_copy_must_have_everything_once() -> None:
    copy = CopyGroup("c", "127.0.0.1:1", 1)
    for value in (Value(0, 0), Value(0, 2000), Value(0, 2000), Value(3, 3)):
        copy._seen.add(value)
    assert copy.unread(LOG) == 1
    missing, doubled, invented = copy.found(LOG)
    assert missing.startswith("c has not copied 1 records")
    assert doubled == "c has copied more than once 1 records, such as (0, 2000)"
    assert invented == "c has copied what nobody sent: 1 records, such as (3, 3)"
    copy._consumer.close()
