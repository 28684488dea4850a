"""The Raft core with faults: many seeds, every invariant after every event.

SIM_RUNS is the number of seeds, SIM_SEED the first of them (and the only one if no number is
given): a failure names it.
"""

import os

import pytest

from tests.simulation.raft_scenario import MEMBERSHIP, PROFILES, RaftScenario

_DEFAULT_RUNS = 128
_GROUP = 16


def seeds() -> range:
    """The seeds of the environment variables."""
    first = os.environ.get("SIM_SEED")
    default = _DEFAULT_RUNS if first is None else 1
    start = int(first or 0)
    return range(start, start + int(os.environ.get("SIM_RUNS", default)))


@pytest.mark.parametrize("start", seeds()[::_GROUP])
def test_a_quorum_in_trouble_keeps_every_promise_and_recovers(start: int) -> None:
    for seed in range(start, min(start + _GROUP, seeds().stop)):
        RaftScenario(seed, PROFILES[seed % len(PROFILES)]).run()


def test_trouble_is_had_and_work_is_done() -> None:
    """A simulation without events would find nothing."""
    runs = [RaftScenario(seed, PROFILES[seed]) for seed in range(len(PROFILES))]
    for run in runs:
        run.run()
    assert all(run.checker.acknowledged for run in runs)
    assert sum(len(run.checker.acknowledged) for run in runs) >= 500
    terms = [max(host.node.term for host in run.hosts.values()) for run in runs]
    assert sum(terms) >= 4 * len(runs)
    voters = {host.node.configuration.voter_ids for run in runs for host in run.hosts.values()}
    assert len(voters) >= 4
    assert any(host.disk.state.snapshot for run in runs for host in run.hosts.values())
    assert any(run.checker.install_count for run in runs)


def test_the_same_seed_is_the_same_history() -> None:
    def history() -> tuple[int, dict[int, int]]:
        run = RaftScenario(7, MEMBERSHIP)
        run.run()
        return run.simulation.event_count, run.checker.acknowledged

    assert history() == history()
