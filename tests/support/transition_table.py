"""The transition tables of docs/coordinators as values.

A table has one row for each (state, event, condition). The other columns have the results. A cell
may have several possibilities ("Reconciling or Stable"): then each of them must occur, and nothing
else. "-" is nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "docs" / "coordinators"
NOTHING = "-"


class TransitionKey(NamedTuple):
    """The key of a row: the state before, the event, and its condition."""

    state: str
    event: str
    condition: str = NOTHING


class TransitionRow(NamedTuple):
    """The results."""

    next_state: str = NOTHING
    records: str = NOTHING
    answer: str = NOTHING
    others: str = NOTHING
    """The responses to requests that were waiting."""


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
    """The possibilities of a cell."""
    return frozenset(cell.split(" or "))


def allows(row: TransitionRow, seen: TransitionRow) -> bool:
    """Whether the results match the table."""
    return all(is_ in alternatives(cell) for cell, is_ in zip(row, seen, strict=True))


def never_seen(row: TransitionRow, seen: list[TransitionRow]) -> list[str]:
    """Possibilities of the table that no event has shown."""
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
