"""Stock raftos in the scenarios of the comparison: its losses and their causes.

Skipped where raftos is not installed; it is not among the test dependencies. The cause of each loss
is named at its assertion; sections are those of the extended Raft paper.
"""

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.raft_comparison import table
from tests.raft_comparison.network import Kind
from tests.raft_comparison.raftos_cluster import RaftosCluster
from tests.raft_comparison.raftos_processes import RaftosProcesses
from tests.raft_comparison.scenarios import SCENARIOS, Play, play

if find_spec("raftos") is None:
    pytest.skip(
        "raftos is not installed: `make raftos` plays both in an environment of its own",
        allow_module_level=True,
    )


@pytest.fixture
def raftos(tmp_path: Path) -> Iterator[RaftosCluster]:
    """Three members, on a clock and a network that are moved by hand."""
    cluster = RaftosCluster(tmp_path)
    yield cluster
    cluster.close()


LOST: Mapping[str, tuple[str, ...]] = {
    # A follower cuts its log where a heartbeat stands, whatever it has learned since.
    "late heartbeat, leader killed": ("a", "b", "c"),
    # Its vote is cleared at every start: two leaders, both of whom acknowledge.
    "restart in a term after voting": ("told 1",),
    "leader killed": (),
    "16 proposals at once": (),
    # Only the last client still waits, and is answered when the first entry is applied.
    "16 proposals at once, leader killed": ("client 16",),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_loses_what_it_is_known_to_lose(
    scenario: str, raftos: RaftosCluster, outcomes: table.Outcomes
) -> None:
    outcome = outcomes[scenario, table.STOCK] = play(scenario, raftos)
    assert outcome.lost == LOST[scenario]
    assert raftos.errors == []


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_its_losses_are_no_matter_of_chance(scenario: str, seed: int, tmp_path: Path) -> None:
    cluster = RaftosCluster(tmp_path, seed=seed)
    outcome = play(scenario, cluster)
    cluster.close()
    assert outcome.lost == LOST[scenario]


def test_it_votes_twice_in_a_term(raftos: RaftosCluster) -> None:
    outcome = play("restart in a term after voting", raftos)
    assert outcome.double_vote_count == 1
    assert outcome.leader_count == 2


def test_it_counts_votes_of_an_earlier_term(raftos: RaftosCluster) -> None:
    stage = Play(raftos)
    raftos.network.keeps_back = lambda letter: letter.kind is Kind.ANSWER
    raftos.end_patience(1)
    stage.deliver()
    raftos.network.cut([1], [2, 3])
    raftos.end_patience(1)
    raftos.end_patience(1)
    assert raftos.network.bring_late() == 2
    stage.deliver()
    # In term 2 nobody but itself has been asked, and it leads.
    assert raftos.led == {(2, 1)}


def test_it_answers_one_of_sixteen_concurrent_proposals(raftos: RaftosCluster) -> None:
    assert play("16 proposals at once", raftos).acknowledged == ("client 16",)


def test_its_new_leader_commits_nothing_behind_an_entry_of_an_older_term(
    raftos: RaftosCluster,
) -> None:
    # It has no no-op (section 8), and stops counting at the first entry of a term not its own.
    assert not play("leader killed", raftos).is_writable


def test_it_syncs_nothing(raftos: RaftosCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    assert play("leader killed", raftos).acknowledged
    assert synced == []


def test_it_cannot_read_its_log_with_its_default_serializer(tmp_path: Path) -> None:
    cluster = RaftosCluster(tmp_path, serializer="MessagePackSerializer")
    stage = Play(cluster)
    stage.elect(1)
    stage.write(1, "a", "b", "c", "d")
    # It reads its log anew after every fifth entry, and at a start.
    stage.write(1, "e")
    assert cluster.acknowledged == ["a", "b", "c", "d"]
    assert {error.partition("(")[0] for error in cluster.errors} == {"ExtraData"}
    cluster.kill(2)
    with pytest.raises(ValueError, match="extra data"):
        cluster.restart(2)
    cluster.close()


@pytest.mark.e2e
@pytest.mark.slow
def test_three_processes_run_until_their_leader_is_killed(tmp_path: Path, notes: list[str]) -> None:
    # What happens after depends on chance and is told, not asserted.
    with RaftosProcesses(tmp_path) as processes:
        leader = processes.await_acknowledged(20)
        acknowledged = processes.kill(leader)
        next_s = processes.seconds_to_the_next_leader()
        is_writable = processes.accepts_writes(within_s=10.0)
        kept = processes.still_there(acknowledged)
    notes.append(
        f"raftos 0.2.6, three processes over UDP, leader killed with SIGKILL: {len(acknowledged)} "
        f"acknowledged, {kept} still in a survivor's log, next leader after {next_s:.1f} s, "
        f"{'accepts writes' if is_writable else 'does not accept writes in the 10 s after that'}"
    )
