"""The tables of docs/coordinators/share.md agree with the machines of share groups.

Groups, states of partitions, records of a share partition, and durable states: every row of the
four tables is driven through its machine, and every case has a row.
"""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

import pytest

from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.share.state_batches import RecordState
from tests.support.share_group_cases import SLOW_SHARE, ShareGroupScenario, share_scenes
from tests.support.share_group_playbook import AT_ONCE
from tests.support.share_record_cases import record_cases
from tests.support.share_state_cases import keeping_cases, knowing_cases
from tests.support.transition_check import check, observed, walk
from tests.support.transition_table import TransitionKey, TransitionRow, read

DOCUMENT = "share.md"


class RunnableCase(Protocol):
    """A case that runs by itself and returns its results."""

    @property
    def place(self) -> TransitionKey: ...

    def play(self) -> TransitionRow: ...


def played(cases: Iterable[RunnableCase]) -> dict[TransitionKey, list[TransitionRow]]:
    """Every case in a scene of its own."""
    found: dict[TransitionKey, list[TransitionRow]] = {}
    for case in cases:
        found.setdefault(case.place, []).append(case.play())
    return found


def test_share_groups_do_what_their_table_says_and_nothing_else() -> None:
    check(read(DOCUMENT, "Share groups"), observed(share_scenes()))


@pytest.mark.parametrize("settings", [AT_ONCE, SLOW_SHARE], ids=["at once", "later"])
@pytest.mark.parametrize("seed", range(2))
def test_random_walks_of_share_groups_stay_within_the_table(
    seed: int, settings: GroupSettings
) -> None:
    states = walk(read(DOCUMENT, "Share groups"), partial(ShareGroupScenario, settings), seed)
    assert states == {"none", "Empty", "Stable"}


def test_states_of_partitions_come_and_go_as_their_table_says() -> None:
    check(read(DOCUMENT, "States of partitions"), played(knowing_cases()))


def test_records_of_a_share_partition_fare_as_their_table_says() -> None:
    table = read(DOCUMENT, "Records of a share partition")
    check(table, played(record_cases()))
    named = {state.name.capitalize() for state in RecordState}
    assert {place.state for place in table} == {*named, "in transition"}


def test_what_is_kept_for_good_changes_as_its_table_says() -> None:
    check(read(DOCUMENT, "What is kept"), played(keeping_cases()))


def test_a_table_that_says_something_else_is_noticed() -> None:
    """The check itself: a wrong cell, a missing row and a superfluous row."""
    table, found = read(DOCUMENT, "What is kept"), played(keeping_cases())
    place = TransitionKey("known", "Delete")
    with pytest.raises(AssertionError, match="cases without a row"):
        check({at: row for at, row in table.items() if at != place}, found)
    with pytest.raises(AssertionError, match="rows without a case"):
        check(table, {at: rows for at, rows in found.items() if at != place})
    with pytest.raises(AssertionError):
        check({**table, place: table[place]._replace(next_state="known")}, found)
