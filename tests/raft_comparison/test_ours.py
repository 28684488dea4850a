"""Our core in the scenarios of the comparison: it loses no acknowledged entry.

Clock and network are moved by hand, so every run is the same.
"""

import pytest

from odradek.cluster.raft.ready import HardState
from tests.raft_comparison import table
from tests.raft_comparison.our_cluster import OurCluster
from tests.raft_comparison.scenarios import SCENARIOS, play


class WithoutPersistence(OurCluster):
    """Our members, if they did not persist their terms and votes."""

    def restart(self, member: int) -> None:
        self._members[member].hard_state = HardState()
        super().restart(member)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ours_keeps_what_it_has_acknowledged(scenario: str, outcomes: table.Outcomes) -> None:
    outcome = outcomes[scenario, table.OURS] = play(scenario, OurCluster())
    assert outcome.acknowledged
    assert outcome.lost == ()
    assert outcome.double_vote_count == 0
    assert outcome.leader_count == 1
    assert outcome.is_writable


def test_ours_answers_every_one_of_concurrent_proposals() -> None:
    outcome = play("16 proposals at once", OurCluster())
    assert len(outcome.acknowledged) == outcome.proposed_count == 16


def test_a_core_of_ours_that_forgets_its_vote_is_seen() -> None:
    outcome = play("restart in a term after voting", WithoutPersistence())
    assert outcome.double_vote_count == 1
    assert outcome.leader_count == 2
