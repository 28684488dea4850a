"""The simulation of clusters finds every planted bug and names the violation."""

import pytest

from odradek.node.controller.active_controller import ActiveController
from tests.simulation import planted_share_bugs
from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.planted_cluster_bugs import (
    PLANTED,
    PlantedBug,
    decides_on_what_is_committed,
    follows_what_is_committed,
)
from tests.simulation.planted_group_bugs import PLANTED_IN_GROUPS
from tests.simulation.planted_transaction_bugs import PLANTED_IN_TRANSACTIONS
from tests.simulation.simulation import SimulationFailure

_SEEDS_MAX = 120
ALL = PLANTED | planted_share_bugs.PLANTED | PLANTED_IN_GROUPS | PLANTED_IN_TRANSACTIONS


@pytest.mark.parametrize("bug", ALL.values(), ids=list(ALL))
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: PlantedBug) -> None:
    monkeypatch.setattr(bug.owner, bug.name, bug.wrong)
    if bug.wrong is decides_on_what_is_committed:
        monkeypatch.setattr(ActiveController, "committed", follows_what_is_committed)
    with pytest.raises(SimulationFailure, match=bug.finding):
        run_many(bug)


def run_many(bug: PlantedBug) -> None:
    """Run one seed after another until one fails, from the bug's on."""
    for number in range(_SEEDS_MAX):
        ClusterScenario((bug.seed + number) % _SEEDS_MAX, bug.trouble).run()
