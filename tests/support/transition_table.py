"""The transition tables of docs/coordinators as values, to hold machines against.

A table has one row for each (state, event, condition). What follows is told in the other columns; a
cell may name several possibilities ("Reconciling or Stable"): then each of them must have been
seen, and nothing else. "-" is nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "docs" / "coordinators"
NOTHING = "-"


class TransitionKey(NamedTuple):
    """Where in a table: what it is before, what happens, and which of its cases this is."""

    state: str
    event: str
    condition: str = NOTHING


class TransitionRow(NamedTuple):
    """What follows there."""

    next_state: str = NOTHING
    records: str = NOTHING
    answer: str = NOTHING
    others: str = NOTHING
    """What those are told whose requests have been waiting."""


Table = Mapping[TransitionKey, TransitionRow]


def read(name: str, heading: str) -> dict[TransitionKey, TransitionRow]:
    """The first table below a heading of docs/coordinators/`name`."""
    lines = iter((FOLDER / name).read_text().splitlines())
    for line in lines:
        if line.lstrip("#").strip() == heading and line.startswith("#"):
            break
    table: dict[TransitionKey, TransitionRow] = {}
    for line in lines:
        if not line.startswith("|"):
            if table:
                break
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) not in (6, 7) or cells[0] == "State" or not cells[0].strip("-"):
            continue
        place = TransitionKey(*cells[:3])
        assert place not in table, f"twice in {name}: {place}"
        table[place] = TransitionRow(*cells[3:])
    assert table, f"no table below {heading} in {name}"
    return table


def alternatives(cell: str) -> frozenset[str]:
    """What a cell allows."""
    return frozenset(cell.split(" or "))


def allows(row: TransitionRow, seen: TransitionRow) -> bool:
    """Whether what was seen is what the table says."""
    return all(is_ in alternatives(cell) for cell, is_ in zip(row, seen, strict=True))


def never_seen(row: TransitionRow, seen: list[TransitionRow]) -> list[str]:
    """Possibilities that the table names and that no case has shown."""
    return [
        possibility
        for at, cell in enumerate(row)
        for possibility in sorted(alternatives(cell) - {each[at] for each in seen})
    ]


def rendered(table: Table) -> str:
    """The table as it stands in the document."""
    head = (
        "State",
        "Event",
        "Condition",
        "Next state",
        "Records",
        "Answer",
        "Others get",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join((*place, *row)) + " |" for place, row in table.items()]
    return "\n".join(lines)
