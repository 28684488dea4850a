"""Tables with a committed state, compared with a simple model that copies itself."""

import random

import pytest

from odradek.coordinator.timeline import Timeline, TimelineTable, count


class Twin:
    """The states at all positions, as whole dictionaries."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, int]] = {0: {}}
        self.position = 0
        self.committed = 0

    def change(self, key: str, value: int | None) -> None:
        state = dict(self.states[self.position])
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
        self.position += 1
        self.states[self.position] = state


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_commits_and_reverts_agree_with_copies(seed: int) -> None:
    chance = random.Random(seed)
    timeline = Timeline()
    table: TimelineTable[str, int] = TimelineTable(timeline)
    twin = Twin()
    for _ in range(400):
        action = chance.random()
        if action < 0.8:
            key = chance.choice("abcdef")
            value = None if chance.random() < 0.3 else chance.randrange(100)
            timeline.advance()
            twin.change(key, value)
            if value is None:
                table.remove(key)
            else:
                table.put(key, value)
        elif action < 0.93:
            twin.committed = chance.randint(twin.committed, twin.position)
            timeline.commit(twin.committed)
        else:
            twin.position = twin.committed
            timeline.revert()
        newest = twin.states[twin.position]
        committed = twin.states[twin.committed]
        assert dict(table.items()) == newest, seed
        assert dict(table.committed_items()) == committed, seed
        for key in "abcdef":
            assert table.get(key) == newest.get(key), seed
            assert (key in table) == (key in newest), seed
            assert table.committed(key) == committed.get(key), seed
        assert len(table) == len(newest)
        assert table.is_droppable == (not newest and not table._previous), seed


def test_several_tables_share_one_timeline() -> None:
    timeline = Timeline()
    one: TimelineTable[str, int] = TimelineTable(timeline)
    other: TimelineTable[str, int] = TimelineTable(timeline)
    timeline.advance()
    one.put("a", 1)
    timeline.commit(1)
    timeline.advance()
    one.put("a", 2)
    timeline.advance()
    other.put("b", 3)
    timeline.revert()
    assert one.get("a") == 1
    assert other.get("b") is None
    assert timeline.position == 1


def test_changes_while_loading_are_final() -> None:
    timeline = Timeline()
    table: TimelineTable[str, int] = TimelineTable(timeline)
    table.put("a", 1)
    timeline.revert()
    assert table.committed("a") == 1


def test_a_key_is_settled_when_all_its_changes_are_committed() -> None:
    timeline = Timeline()
    table: TimelineTable[str, int] = TimelineTable(timeline)
    timeline.advance()
    table.put("a", 1)
    timeline.advance()
    table.remove("a")
    assert (table.is_settled("a"), table.is_settled("b")) == (False, True)
    timeline.commit(1)
    assert not table.is_settled("a")
    timeline.commit(2)
    assert table.is_settled("a")


def test_two_changes_of_one_record_are_reverted_together() -> None:
    timeline = Timeline()
    table: TimelineTable[str, int] = TimelineTable(timeline)
    position = timeline.advance()
    table.put("a", 1)
    table.put("a", 2)
    assert table.committed("a") is None
    timeline.commit(position)
    assert table.committed("a") == 2


def test_a_commit_outside_of_the_written_positions_is_refused() -> None:
    timeline = Timeline()
    timeline.advance()
    timeline.commit(1)
    with pytest.raises(ValueError, match="outside"):
        timeline.commit(0)
    with pytest.raises(ValueError, match="outside"):
        timeline.commit(2)


def test_a_count_of_zero_is_removed() -> None:
    timeline = Timeline()
    table: TimelineTable[str, int] = TimelineTable(timeline)
    timeline.advance()
    count(table, "a", 1)
    count(table, "a", 1)
    count(table, "a", -1)
    count(table, "b", 1)
    count(table, "b", -1)
    assert dict(table.items()) == {"a": 1}
    timeline.revert()
    assert dict(table.items()) == {}
