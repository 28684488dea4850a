"""The simulation finds every planted bug and names the violation."""

import dataclasses

import pytest

from odradek.cluster.raft.node import RaftNode
from tests.simulation import planted_bugs as planted
from tests.simulation.raft_scenario import (
    FIGURE_8,
    GROWTH,
    MEMBERSHIP,
    RESTARTS,
    SNAPSHOTS,
    WIPES,
    QuorumTrouble,
    RaftScenario,
)
from tests.simulation.simulation import SimulationFailure

_SEEDS_MAX = 200
_SUCCESSION = dataclasses.replace(
    FIGURE_8, crash_interval_ms=200, cut_interval_ms=80, delay_ms_max=60
)
_LATE = QuorumTrouble(double_share=0.2, delay_ms_max=60, propose_interval_ms=10)
_HASTE = dataclasses.replace(GROWTH, membership_interval_ms=100, cut_interval_ms=300)


@pytest.mark.parametrize(
    ("core", "trouble", "finding"),
    [
        (planted.VotesBeforeTheDisk, QuorumTrouble(), "votes in term .* before it is on its disk"),
        (
            planted.AcknowledgesBeforeTheDisk,
            QuorumTrouble(),
            "acknowledges .* and has .* on its disk",
        ),
        (planted.ForgetsItsVote, RESTARTS, "votes twice in term"),
        (planted.CommitsOldTerms, _SUCCESSION, "without entry .* which was committed"),
        (planted.CountsStaleVotes, FIGURE_8, "without a pre-vote|both lead"),
        (planted.VotesForAnyLog, FIGURE_8, "without entry .* which was committed"),
        (planted.TruncatesOnLateRequests, _LATE, "acknowledges .* and has .* on its disk"),
        (planted.CommitsWhatWasNotConfirmed, FIGURE_8, "another (state|entry)"),
        (planted.TakesAnyChunk, SNAPSHOTS, "a chunk at .* after"),
        (planted.CampaignsWithoutPreVote, QuorumTrouble(), "without a pre-vote"),
        (planted.GrantsPreVotesForOldTerms, QuorumTrouble(), "grants a pre-vote for an old term"),
        (planted.CountsObservers, MEMBERSHIP, "commits .* which .* voters have"),
        (planted.CountsItselfBeforeTheDisk, QuorumTrouble(), "commits .* which .* voters have"),
        (planted.CountsItselfAfterItsRemoval, MEMBERSHIP, "commits .* which .* voters have"),
        (planted.ChangesManyVotersAtOnce, _HASTE, "without entry|both lead|another|not whole"),
    ],
)
def test_a_planted_bug_is_found(core: type[RaftNode], trouble: QuorumTrouble, finding: str) -> None:
    with pytest.raises(SimulationFailure, match=finding):
        run_many(dataclasses.replace(trouble, core=core))


def test_a_wiped_disk_under_the_old_id_is_found() -> None:
    """This is why a member id belongs to a disk and not to a node (KIP-853)."""
    trouble = dataclasses.replace(WIPES, is_wiped_as_itself=True)
    with pytest.raises(SimulationFailure, match=r"votes twice|without entry|voters have|not whole"):
        run_many(trouble)


def run_many(trouble: QuorumTrouble) -> None:
    """Run one seed after another until one fails."""
    for seed in range(_SEEDS_MAX):
        RaftScenario(seed, trouble).run()
