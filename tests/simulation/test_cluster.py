"""Whole clusters with faults: many seeds, every invariant after every event.

SIM_RUNS is the number of seeds, SIM_SEED the first of them (and the only one if no number is
given): a failure names it. Without them the number fits into a change's tests: about 0.2 s each.
"""

import os
from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation.cluster_scenario import ClusterScenario
from tests.simulation.ledger import Fate
from tests.simulation.simulation import SimulationFailure
from tests.simulation.trouble import (
    CONSUMERS,
    GROUPS,
    LEAVERS,
    POWER,
    PROFILES,
    SHARES,
    TRANSACTIONS,
)

_DEFAULT_RUNS = 12 * len(PROFILES)
_GROUP = len(PROFILES)


def seeds() -> range:
    """The seeds of the environment variables."""
    first = os.environ.get("SIM_SEED")
    default = _DEFAULT_RUNS if first is None else 1
    start = int(first or 0)
    return range(start, start + int(os.environ.get("SIM_RUNS", default)))


@pytest.mark.parametrize("start", seeds()[::_GROUP])
def test_a_cluster_in_trouble_keeps_every_promise_and_recovers(start: int) -> None:
    for seed in range(start, min(start + _GROUP, seeds().stop)):
        ClusterScenario(seed, PROFILES[seed % len(PROFILES)]).run()


def test_commits_of_before_a_rewind_never_win() -> None:
    """B.14: "old-generation commits never win"."""
    runs = [ClusterScenario(seed, replace(GROUPS, rewind_interval_ms=150)) for seed in range(8)]
    for run in runs:
        run.run()
    assert sum(run.rewinder.rewind_count for run in runs) >= 6


def test_members_of_the_consumer_protocol_own_what_they_are_told_while_they_are_rewound() -> None:
    """However many responses they lose meanwhile, only removed members are fenced."""
    trouble = replace(CONSUMERS, rewind_interval_ms=150, client_loss_share=0.15)
    runs = [ClusterScenario(seed, trouble) for seed in range(8)]
    for run in runs:
        run.run()
    assert sum(run.rewinder.rewind_count for run in runs) >= 6


def test_clients_that_leave_in_the_middle_are_refused_nothing_that_they_may_do() -> None:
    """Clients of transaction version 2 commit, abort, abort what was not begun, and leave."""
    runs = [ClusterScenario(seed, LEAVERS) for seed in range(8)]
    for run in runs:
        run.run()
    assert sum(payer.left_count for run in runs for payer in run.short_lived_payers) >= 40
    fates = Counter(p.fate for run in runs for p in run.ledger.payments.values())
    assert fates[Fate.COMMITTED] >= 40
    assert fates[Fate.ABORTED] >= 40


def test_trouble_is_had_and_work_is_done() -> None:
    """A simulation without events would find nothing."""
    runs = [
        ClusterScenario(seed, PROFILES[seed % len(PROFILES)]) for seed in range(2 * len(PROFILES))
    ]
    for run in runs:
        run.run()
    checkers = [run.checker for run in runs]
    assert all(checker.acknowledged_count for checker in checkers)
    assert all(checker.commit_count or checker.ownership.taken_count for checker in checkers)
    assert sum(checker.ownership.given_up_count for checker in checkers) >= 4
    assert sum(checker.ownership.removed_count for checker in checkers) >= 4
    assert sum(checker.ownership.standby_count for checker in checkers) >= 4
    assert sum(checker.acknowledged_count for checker in checkers) >= 1_000
    assert sum(checker.read_count for checker in checkers) >= 1_000
    assert sum(checker.commit_count for checker in checkers) >= 200
    assert sum(checker.owner_count for checker in checkers) >= 80
    assert sum(checker.epoch_count for checker in checkers) >= 50
    assert sum(checker.cut_count for checker in checkers) >= 5
    assert sum(checker.lost_count for checker in checkers) >= 1
    payments = [p for run in runs for p in run.ledger.payments.values()]
    fates = Counter(payment.fate for payment in payments)
    assert fates[Fate.COMMITTED] >= 10
    assert fates[Fate.ABORTED] >= 5
    assert sum(run.ledger.read_count for run in runs) >= 50
    shares = [checker.shares for checker in checkers]
    assert sum(each.accepted_count for each in shares) >= 40
    assert sum(each.again_count for each in shares) >= 10
    assert sum(each.snapshot_count for each in shares) >= 2
    assert any(node.disk.state.snapshot for run in runs for node in run.nodes.values())


def test_the_same_seed_is_the_same_history() -> None:
    def history(profile: int) -> tuple[int, int, int, list[int]]:
        run = ClusterScenario(5, PROFILES[profile])
        run.run()
        ends = [history.end_offset for history in run.checker.histories.values()]
        return run.simulation.event_count, run.simulation.now_ms, run.checker.read_count, ends

    for profile in (POWER, GROUPS, TRANSACTIONS, SHARES):
        at = PROFILES.index(profile)
        assert history(at) == history(at)


def test_a_failure_names_its_seed_and_tells_what_led_to_it() -> None:
    run = ClusterScenario(3, POWER)
    run.begin()
    run.simulation.after(500, lambda: run.checker.replied((0, 0)))
    with pytest.raises(
        SimulationFailure, match=r"(?s)seed 3, .*answered twice.*SIM_SEED=3.*is led by"
    ):
        run.simulation.run(1_000)
