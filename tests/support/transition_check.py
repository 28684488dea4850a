"""Compares a machine with its transition table: every row, every event, and random walks."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from tests.support.group_cases import TransitionCase, seen
from tests.support.group_playbook import Playbook
from tests.support.transition_table import Table, TransitionKey, TransitionRow, allows, never_seen

STEPS = 1_500


class Scenario(Protocol):
    """A group in some state."""

    @property
    def play(self) -> Playbook: ...

    def state(self) -> str:
        """The state's name in the table."""

    def cases(self) -> Iterator[TransitionCase]:
        """The events that are possible now."""


S = TypeVar("S", bound=Scenario)


def observed(scenes: Sequence[Callable[[], S]]) -> dict[TransitionKey, list[TransitionRow]]:
    """Every event in every scene, and its results."""
    found: dict[TransitionKey, list[TransitionRow]] = {}
    for make in scenes:
        for at, _ in enumerate(make().cases()):
            # Each case in a scene of its own.
            scene = make()
            case = next(islice(scene.cases(), at, None))
            found.setdefault(case.place, []).append(seen(scene.play, scene.state, case.act))
    return found


def check(table: Table, found: Mapping[TransitionKey, list[TransitionRow]]) -> None:
    """Every event has a row with its results, and every row has nothing else."""
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


def walk(table: Table, make: Callable[[], S], seed: int) -> set[str]:
    """Take random steps, each of which must be in the table; returns the states."""
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
