"""docs/coordinators/groups.md says what classic and consumer groups do, and this holds them to it.

Every row of its tables is driven through the machine, and no case that the machine can be brought
into may be without a row; random walks look for more of them.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

import pytest

from coordinator.group.classic import GroupState
from coordinator.group.settings import GroupSettings
from tests.support.classic_cases import Classic, classic_scenes
from tests.support.consumer_cases import SLOW, Consumers, consumer_scenes
from tests.support.consumer_playbook import NO_INTERVAL
from tests.support.group_cases import NONE, seen
from tests.support.transition_table import Place, Row, Table, allows, never_seen, read

DOCUMENT = "groups.md"
STEPS = 1_500

Scene = TypeVar("Scene", Classic, Consumers)


def observed(scenes: Sequence[Callable[[], Scene]]) -> dict[Place, list[Row]]:
    """Everything that may happen in every scene, and what came of it."""
    found: dict[Place, list[Row]] = {}
    for make in scenes:
        for at, _ in enumerate(make().cases()):
            # Each case in a scene of its own.
            scene = make()
            case = next(islice(scene.cases(), at, None))
            found.setdefault(case.place, []).append(seen(scene.play, scene.state, case.act))
    return found


def check(table: Table, found: Mapping[Place, list[Row]]) -> None:
    """Every case has a row that says what is seen, and every row says nothing else."""
    assert [place for place in found if place not in table] == [], "cases without a row"
    assert [place for place in table if place not in found] == [], "rows without a case"
    wrong = [
        (place, row)
        for place, rows in found.items()
        for row in rows
        if not allows(table[place], row)
    ]
    assert wrong == []
    idle = {place: never_seen(row, found[place]) for place, row in table.items()}
    assert {place: cells for place, cells in idle.items() if cells} == {}


def walk(table: Table, make: Callable[[], Scene], seed: int) -> set[str]:
    """Take steps by chance, each of which must be in the table; the states that were seen."""
    chance = random.Random(seed)
    scene = make()
    states = set()
    for number in range(STEPS):
        cases = [case for case in scene.cases() if not case.takes_time]
        if not cases:
            scene = make()
            continue
        case = chance.choice(cases)
        states.add(case.place.state)
        where = f"seed {seed}, step {number}: {case.place}"
        assert case.place in table, where
        row = seen(scene.play, scene.state, case.act)
        assert allows(table[case.place], row), f"{where}: {row} instead of {table[case.place]}"
    return states


def test_classic_groups_do_what_their_table_says_and_nothing_else() -> None:
    check(read(DOCUMENT, "Classic groups"), observed(classic_scenes()))


def test_consumer_groups_do_what_their_table_says_and_nothing_else() -> None:
    check(read(DOCUMENT, "Consumer groups"), observed(consumer_scenes()))


@pytest.mark.parametrize("seed", range(4))
def test_random_walks_of_classic_groups_stay_within_the_table(seed: int) -> None:
    states = walk(read(DOCUMENT, "Classic groups"), Classic, seed)
    assert states == {NONE, *GroupState}


@pytest.mark.parametrize("settings", [NO_INTERVAL, SLOW], ids=["at once", "later"])
@pytest.mark.parametrize("seed", range(3))
def test_random_walks_of_consumer_groups_stay_within_the_table(
    seed: int, settings: GroupSettings
) -> None:
    states = walk(read(DOCUMENT, "Consumer groups"), partial(Consumers, settings), seed)
    assert states >= {NONE, "Stable", "Reconciling" if settings is NO_INTERVAL else "Assigning"}


def test_a_table_that_says_something_else_is_noticed() -> None:
    """The check itself: a wrong cell, a row too few and a row too many."""
    table = read(DOCUMENT, "Classic groups")
    found = observed(classic_scenes()[:3])
    place, row = next((place, row) for place, row in table.items() if place in found)
    fitting = {place: row for place, row in table.items() if place in found}
    with pytest.raises(AssertionError, match="rows without a case"):
        check(table, found)
    with pytest.raises(AssertionError, match="cases without a row"):
        check({at: cells for at, cells in fitting.items() if at != place}, found)
    with pytest.raises(AssertionError):
        check({**fitting, place: row._replace(answer="FENCED_INSTANCE_ID")}, found)
