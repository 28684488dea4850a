"""The table of a run: the result of each implementation in each scenario."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.raft_comparison.scenarios import SCENARIOS, ScenarioOutcome

OURS: Final = "cluster/raft"
STOCK: Final = "raftos 0.2.6"
HEAD: Final = (
    "scenario",
    "implementation",
    "proposed",
    "acknowledged",
    "still there",
    "lost",
    "double votes",
    "leaders in one term",
    "last term",
    "s without a leader",
    "accepts writes at the end",
)

Outcomes = dict[tuple[str, str], ScenarioOutcome]
"""By scenario and implementation."""


def lines(outcomes: Mapping[tuple[str, str], ScenarioOutcome]) -> Iterator[str]:
    """In Markdown, in the order of the scenarios, without skipped ones."""
    rows = [
        _row(scenario, implementation, outcomes[scenario, implementation])
        for scenario in SCENARIOS
        for implementation in (STOCK, OURS)
        if (scenario, implementation) in outcomes
    ]
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    yield _line(HEAD, widths)
    yield _line(["-" * width for width in widths], widths)
    for row in rows:
        yield _line(row, widths)


def _row(scenario: str, implementation: str, outcome: ScenarioOutcome) -> tuple[str, ...]:
    return (
        scenario,
        implementation,
        str(outcome.proposed_count),
        str(len(outcome.acknowledged)),
        str(len(outcome.acknowledged) - len(outcome.lost)),
        str(len(outcome.lost)),
        str(outcome.double_vote_count),
        str(outcome.leader_count),
        str(outcome.term),
        f"{outcome.leaderless_ms / 1_000:.1f}",
        "yes" if outcome.is_writable else "no",
    )


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"
