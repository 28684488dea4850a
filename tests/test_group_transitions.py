"""The tables of docs/coordinators/groups.md agree with the machines of classic and consumer groups.

Every row is driven through the machine, and every case of the machine has a row; random walks look
for more cases.
"""

from functools import partial

import pytest

from odradek.coordinator.group.classic.group import GroupState
from odradek.coordinator.group.settings import GroupSettings
from tests.support.classic_cases import ClassicGroupScenario, classic_scenes
from tests.support.consumer_cases import SLOW, ConsumerGroupScenario, consumer_scenes
from tests.support.consumer_playbook import NO_INTERVAL
from tests.support.group_cases import NONE
from tests.support.transition_check import check, observed, walk
from tests.support.transition_table import read

DOCUMENT = "groups.md"


def test_classic_groups_do_what_their_table_says_and_nothing_else() -> None:
    check(read(DOCUMENT, "Classic groups"), observed(classic_scenes()))


def test_consumer_groups_do_what_their_table_says_and_nothing_else() -> None:
    check(read(DOCUMENT, "Consumer groups"), observed(consumer_scenes()))


@pytest.mark.parametrize("seed", range(4))
def test_random_walks_of_classic_groups_stay_within_the_table(seed: int) -> None:
    states = walk(read(DOCUMENT, "Classic groups"), ClassicGroupScenario, seed)
    assert states == {NONE, *GroupState}


@pytest.mark.parametrize("settings", [NO_INTERVAL, SLOW], ids=["at once", "later"])
@pytest.mark.parametrize("seed", range(3))
def test_random_walks_of_consumer_groups_stay_within_the_table(
    seed: int, settings: GroupSettings
) -> None:
    states = walk(read(DOCUMENT, "Consumer groups"), partial(ConsumerGroupScenario, settings), seed)
    assert states >= {NONE, "Stable", "Reconciling" if settings is NO_INTERVAL else "Assigning"}


def test_a_table_that_says_something_else_is_noticed() -> None:
    """The check itself: a wrong cell, a missing row and a superfluous row."""
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
