"""The results of the comparison, collected over the run and shown at its end.

raftos is not among the test dependencies. Without it its half is skipped, ours runs nevertheless,
and no table is shown.
"""

import pytest

from tests.raft_comparison import table

OUTCOMES = pytest.StashKey[table.Outcomes]()
NOTES = pytest.StashKey[list[str]]()


@pytest.fixture
def outcomes(pytestconfig: pytest.Config) -> table.Outcomes:
    """The results so far."""
    return pytestconfig.stash.setdefault(OUTCOMES, {})


@pytest.fixture
def notes(pytestconfig: pytest.Config) -> list[str]:
    """Lines below the table."""
    return pytestconfig.stash.setdefault(NOTES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of lost entries."""
    outcomes = terminalreporter.config.stash.get(OUTCOMES, {})
    if any(implementation == table.STOCK for _, implementation in outcomes):
        terminalreporter.section("Raft: what each keeps of what it has acknowledged")
        for line in [*table.lines(outcomes), *terminalreporter.config.stash.get(NOTES, [])]:
            terminalreporter.write_line(line)
